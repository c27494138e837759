"""A real HTTP server that speaks the jobs' part of the contract from memory, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

AT = "2026-11-21T10:00:00+00:00"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    body: Any
    key: str | None = None


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    return Answer(
        status, {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail, **more}
    )


BUSY = problem(503, "database_unavailable", "the database does not answer")
STALL, HANG_UP = "stall", "hang up"


class Standin:
    """Answers `unruly` first, then behaves. `asked` is everything it was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.unruly: deque[Answer | str | None] = deque()  # None: behave this time
        self.logged: dict[str, list[str]] = {}  # the lines of each job's log
        self.later: dict[str, list[list[str]]] = {}  # what it says before each further look; a job ends with the last
        self.jobs: dict[str, dict[str, Any]] = {}
        self.lives: dict[str, deque[dict[str, Any] | Answer]] = {}  # what each look at a job finds next
        self.progresses: dict[str, dict[str, Any] | Answer] = {}  # a service of before has no such route
        self.next_lives: list[dict[str, Any] | Answer] = []  # the lives of a job that will be triggered
        self.keys: dict[str, str] = {}
        self.missing: dict[str, str] = {}  # what it says of fields that a trigger leaves out
        self.warnings: list[str] = []  # of each trigger
        self.url = ""
        self.closing = threading.Event()

    def add(self, *lives: dict[str, Any] | Answer, **job: Any) -> str:
        """A job; each look at its status takes the next of `lives` into it, and the last one stays."""
        job_id = str(uuid4())
        self.jobs[job_id] = {**_fresh(job_id), **job}
        self.lives[job_id] = deque(lives)
        return job_id

    def say(self, job_id: str, *lines: str) -> None:
        self.logged.setdefault(job_id, []).extend(lines)

    def _logs(self, job_id: str, query: dict[str, list[str]]) -> Answer:
        after, later = int(query.get("after", ["0"])[0]), self.later.get(job_id, [])
        if after and later:
            self.say(job_id, *later.pop(0))
        known = list(enumerate(self.logged.get(job_id, []), 1))[after:]
        known = known[-int(query["tail"][0]) :] if "tail" in query else known[:1000]
        lines = [
            {"log_id": n, "ts": AT, "attempt": 1, "level": "INFO", "stream": "log", "line": line} for n, line in known
        ]
        page = {"lines": lines, "next": known[-1][0] if known else after, "complete": not later}
        return Answer(body={"job_id": job_id, **page})

    def answer(self, asked: Asked) -> Answer:
        match (asked.method, *asked.path.strip("/").split("/")[2:]):
            case ("POST", "jobs", "trigger"):
                return self._trigger(asked.body)
            case ("GET", "jobs"):
                wanted = {name: values[0] for name, values in asked.query.items() if name != "limit"}
                found = [j for j in self.jobs.values() if wanted.items() <= j.items()]
                return Answer(body={"jobs": found[: int(asked.query["limit"][0])], "next": None, "scanned_to": None})
            case ("GET", "jobs", job_id) if job_id in self.jobs:
                return Answer(body={**_state(self.jobs[job_id]), "result": self.jobs[job_id].get("result")})
            case ("GET", "jobs", job_id, "logs") if job_id in self.jobs:
                return self._logs(job_id, asked.query)
            case ("GET", "jobs", job_id, "progress"):
                known = self.progresses.get(job_id, problem(404, "not_found", "There is nothing at this address"))
                return known if isinstance(known, Answer) else Answer(body={**_state(self.jobs[job_id]), **known})
            case (_, "jobs", job_id, action) if job_id in self.jobs:
                return self._about(job_id, action)
            case (_, "jobs", job_id, _):
                return problem(404, "job_not_found", f"there is no job {job_id}")
        return problem(404, "not_found", "There is nothing at this address")

    def _trigger(self, body: dict[str, Any]) -> Answer:
        job_id = self.keys.get(body["idempotency_key"]) if "idempotency_key" in body else None
        missing = [{"field": f, "message": m} for f, m in self.missing.items() if f not in body]
        if missing:
            return problem(400, "invalid_request", "it cannot be taken; see errors", errors=missing)
        if body["task"] == "bad":
            errors = [{"field": "args.x", "message": "is required"}]
            return problem(400, "invalid_request", "1 field(s) cannot be taken; see errors", errors=errors)
        if job_id is None:
            job_id = self.add(*self.next_lives, task=body["task"], **_wanted(body))
            self.keys[body.get("idempotency_key", job_id)] = job_id
        elif self.jobs[job_id]["task"] != body["task"]:
            return problem(409, "idempotency_conflict", f"the key already belongs to job {job_id}", job_id=job_id)
        warnings = {"warnings": self.warnings} if self.warnings else {}
        return Answer(body={"job_id": job_id, "status": self.jobs[job_id]["status"], **warnings})

    def _about(self, job_id: str, action: str) -> Answer:
        job = self.jobs[job_id]
        if action == "events":
            kinds = ["queued", "picked"]
            events = [
                {"event_id": n, "ts": AT, "kind": k, "payload": {"n": n} if n else {}} for n, k in enumerate(kinds)
            ]
            return Answer(body={"job_id": job_id, "events": events})
        if action == "cancel" and job["status"] == "queued":
            job["status"] = "canceled"
        if action == "retry":
            if job["status"] not in ("failed", "canceled", "lost"):
                return problem(409, "not_retryable", f"job {job_id} has {job['status']}; it cannot be retried")
            job["status"] = "queued"
        if action == "status" and self.lives[job_id]:
            change = self.lives[job_id].popleft()
            if isinstance(change, Answer):
                return change
            job |= change
        return Answer(body=_state(job))


@contextmanager
def standing_in() -> Iterator[Standin]:
    standin = Standin()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(standin))
    server.daemon_threads, server.block_on_close = True, False
    standin.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield standin
    finally:
        standin.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(standin: Standin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            address = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sent = json.loads(body) if body else None
            asked = Asked(self.command, address.path, parse_qs(address.query), sent, self.headers.get("Authorization"))
            standin.asked.append(asked)
            answer = (standin.unruly.popleft() if standin.unruly else None) or standin.answer(asked)
            if isinstance(answer, str):
                if answer == STALL:
                    standin.closing.wait(30)
                self.close_connection = True
                return
            text = json.dumps(answer.body).encode() if answer.raw is None else answer.raw
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            return None

    return Handler


def _fresh(job_id: str) -> dict[str, Any]:
    times = dict.fromkeys(("started_at", "finished_at", "heartbeat_at"))
    return {
        "job_id": job_id, "status": "queued", "queue": "etl.default", "task": "noop", "attempt": 0, "max_attempts": 5,
        "created_at": AT, "error": None, "progress": {}, **times,
    }  # fmt: skip


def _wanted(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("queue", "max_attempts") if name in body}


def _state(job: dict[str, Any]) -> dict[str, Any]:
    names = ("job_id", "status", "attempt", "started_at", "finished_at", "heartbeat_at", "error", "progress")
    return {name: job[name] for name in names}
