"""Steady mixed load, through HTTP and through plain SQL, as callers make it who do not give up."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from tests.chaos.client_log import ClientLog
from tests.chaos.clock import clock
from tests.chaos.graphs import make_graph
from tests.chaos.job_requests import QUEUE, RETRY_POLICY, JobRequest, Mix, RequestGenerator

_REQUEST_TIMEOUT_SEC = 5.0  # seconds for one answer
_RETRY_DEADLINE_SEC = 60.0  # seconds for which a caller asks again


@dataclass
class Load:
    """Callers, a thread each, until `stop`. `port` is the API's; None: everything goes through SQL."""

    seed: int
    mix: Mix
    record: ClientLog
    dsn: Callable[[], str]
    port: int | None
    per_sec: float
    callers: int = 16  # in an outage each of them waits for its answer
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # answers that no caller should ever get

    def start(self) -> None:
        for n in range(self.callers):
            self._threads.append(threading.Thread(target=self._run_caller, args=(n,), name=f"caller-{n}", daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ask for nothing new; what is on its way is still asked to its end."""
        self._stopping.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(_RETRY_DEADLINE_SEC + 30)

    # ── a caller ────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_caller(self, n: int) -> None:
        asking, chance = RequestGenerator(f"{self.seed}.{n}", self.mix), random.Random(f"caller {self.seed}.{n}")
        pause = self.callers / self.per_sec
        next_at = time.monotonic() + chance.uniform(0, pause)
        while not self._stopping.wait(max(0.0, next_at - time.monotonic())):
            # After an outage the rate stays the same; missed requests are not made up for.
            next_at = max(next_at + chance.uniform(0, 2 * pause), time.monotonic() - 2.0)
            kind, key, jobs = asking.next()
            if kind == "canceled":
                self._cancel(chance, key, jobs[0])
            elif kind == "retried":
                self._retry(chance)
            elif kind == "pair":
                self._insert(f"{key}:first", jobs)
                time.sleep(chance.uniform(0.0, 0.1))
                self._insert(f"{key}:second", jobs)
            elif kind == "graph":
                self._trigger_graph(chance, key)
            elif kind == "slice":
                self._load_slice(key, jobs[0])
            elif kind in ("bulk", "partner") or self.port is None or chance.random() < 0.3:
                self._insert(key, jobs)
            else:
                self._trigger(key, jobs[0])

    def _trigger(self, key: str, job: JobRequest) -> str | None:
        body = job.body(key)
        # A weight above the limit is refused, also that of a job which an earlier try without an answer has made.
        refusals = (400,) if job.limits else ()
        answer = self._send_until_answered("POST", "/api/v1/jobs/trigger", body, accepted_statuses=refusals)
        if answer is None or "job_id" not in answer:
            self.record.unanswered(job.task, key)
            return None
        self.record.accepted(answer["job_id"], job.task, key)
        return str(answer["job_id"])

    def _trigger_graph(self, random_source: random.Random, key: str) -> None:
        """Ask for a graph over HTTP, or without an API by SQL, until it is confirmed: its key makes it one."""
        body = make_graph(random_source, key, QUEUE, random_source.choice(self.mix.lease_sec), RETRY_POLICY)
        made = self._send_until_answered("POST", "/api/v1/graphs", body) if self.port else self._enqueue_graph(body)
        for job in body["jobs"]:
            its_key = f"{key}:{job['key']}"
            if made is None:
                self.record.unanswered(job["task"], its_key)
            else:
                self.record.accepted(made["jobs"][job["key"]], job["task"], its_key)

    def _enqueue_graph(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        until = time.monotonic() + _RETRY_DEADLINE_SEC
        while time.monotonic() < until:
            try:
                rows = self._sql("SELECT key, job_id FROM dl_enqueue_graph(%s::jsonb)", json.dumps(body))
                return {"jobs": dict(rows)}
            except psycopg2.Error:
                time.sleep(0.3)
        return None

    def _insert(self, key: str, jobs: list[JobRequest]) -> list[str]:
        """As another service does, with a plain INSERT, in one transaction. An insert whose commit was not answered is
        looked for: it is there, or it is not. A weight above the limit is refused: the caller gives up."""
        keys = [f"{key}:{n}" for n in range(len(jobs))]
        over = time.monotonic() + _RETRY_DEADLINE_SEC
        while time.monotonic() < over:
            try:
                found = self._sql(
                    "WITH made AS (INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec, max_attempts,"
                    "   idempotency_key, available_at, limits)"
                    " SELECT queue, task, lock_key, args::jsonb, lease, tries, key,"
                    "        now() + make_interval(secs => delay), limits::jsonb"
                    "   FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::int[], %s::text[],"
                    "               %s::float8[], %s::text[])"
                    "        AS t (queue, task, lock_key, args, lease, tries, key, delay, limits)"
                    " ON CONFLICT DO NOTHING RETURNING job_id, idempotency_key)"
                    " SELECT * FROM made UNION"
                    " SELECT job_id, idempotency_key FROM dl_jobs WHERE idempotency_key = ANY (%s)",
                    [job.queue for job in jobs],
                    [job.task for job in jobs],
                    [job.lock_key for job in jobs],
                    [json.dumps(dict(job.args)) for job in jobs],
                    [job.lease_ttl_sec for job in jobs],
                    [job.max_attempts for job in jobs],
                    keys,
                    [job.delay_sec or 0.0 for job in jobs],
                    [json.dumps(job.limits) if job.limits else None for job in jobs],
                    keys,
                )
                ids = {its_key: job_id for job_id, its_key in found}
                if len(ids) == len(keys):  # else some were being committed by our own earlier try: look again
                    for its_key, job in zip(keys, jobs, strict=True):
                        self.record.accepted(ids[its_key], job.task, its_key)
                    return list(ids.values())
            except psycopg2.errors.InvalidParameterValue:
                break
            except psycopg2.Error:
                pass
            if self._stopping.wait(0.5) and time.monotonic() > over - _RETRY_DEADLINE_SEC / 2:
                break
        for job, its_key in zip(jobs, keys, strict=True):
            self.record.unanswered(job.task, its_key)
        return []

    def _load_slice(self, key: str, job: JobRequest) -> None:
        """As a service does that loads a slice itself: one that has a job already gets that one."""
        body = job.body(key) | {
            "live_key": job.lock_key,
            "partition_key": job.lock_key.removeprefix(f"slice:{job.task}:"),
        }
        until = time.monotonic() + _RETRY_DEADLINE_SEC
        while time.monotonic() < until:
            try:
                ((job_id, outcome),) = self._sql(
                    "SELECT job_id, outcome FROM dl_enqueue_many(%s::jsonb)", json.dumps([body])
                )
            except psycopg2.Error:
                time.sleep(0.3)
                continue
            if outcome == "created":
                self.record.accepted(job_id, job.task, key)
            return
        self.record.unanswered(job.task, key)

    def _cancel(self, random_source: random.Random, key: str, job: JobRequest) -> None:
        """One of the last jobs, or a new one a moment later."""
        job_id = self._pick_recent_job(random_source)
        if random_source.random() < 0.5 or job_id is None:
            long = JobRequest("chaos.long", job.lock_key, {"seconds": 6.0, "queue": QUEUE}, job.lease_ttl_sec, 6)
            made = [self._trigger(key, long)] if self.port is not None else self._insert(key, [long])
            if not made or made[0] is None:
                return
            job_id = made[0]
            self._stopping.wait(random_source.uniform(0.0, 1.5))
        if self.port is None:
            self._cancel_by_sql(job_id)
            return
        answer = self._send_until_answered("POST", f"/api/v1/jobs/{job_id}/cancel", {})
        if answer is not None:
            self.record.canceled(job_id, answer["status"])

    def _cancel_by_sql(self, job_id: str) -> None:
        """Without an API: through the queue's own statement."""
        from dataloader.app.db.connection import Session
        from dataloader.app.db.encoding import as_uuid
        from dataloader.app.queue.jobs import JobQueue

        session = Session(self.dsn(), application_name="chaos-caller")
        try:
            self.record.canceled(job_id, JobQueue(session).cancel(as_uuid(job_id)).status.value)
        finally:
            session.close()

    def _retry(self, random_source: random.Random) -> None:
        """Retry a failed job, never a canceled one, whose new runs would not violate the rules."""
        if self.port is None:
            return
        result = self.record.responses
        canceled = {line.job_id for line in result if line.what in ("canceled", "retried")}
        failing = [
            line.job_id
            for line in result[-2000:]
            if line.what == "accepted" and line.task == "chaos.failing" and line.job_id not in canceled
        ]
        if failing:
            answer = self._send_until_answered(
                "POST", f"/api/v1/jobs/{random_source.choice(failing)}/retry", {}, accepted_statuses=(409,)
            )
            if answer is not None and "job_id" in answer:
                self.record.retried(answer["job_id"], answer.get("status", ""))

    def _pick_recent_job(self, random_source: random.Random) -> str | None:
        result = self.record.responses
        retried = {line.job_id for line in result if line.what == "retried"}
        recent = [line.job_id for line in result[-60:] if line.what == "accepted" and line.job_id not in retried]
        # A failing job is left to those who retry.
        recent = [job for job in recent if not any(t.job_id == job and t.task == "chaos.failing" for t in result[-60:])]
        return random_source.choice(recent) if recent else None

    # ── how it is asked ─────────────────────────────────────────────────────────────────────────────────────────

    def _send_until_answered(
        self, method: str, path: str, body: Mapping[str, Any], accepted_statuses: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """Repeat the request until there is a response; it is idempotent."""
        over = clock() + _RETRY_DEADLINE_SEC
        while clock() < over:
            status, answer = self._send(method, path, body)
            if status == 200 or status in accepted_statuses:
                return answer
            if status is not None and status not in (429, 500, 502, 503):
                self.failures.append(f"{method} {path}: {status} {answer}")
                return None
            if status == 500:
                self.failures.append(f"{method} {path}: 500 {answer}")
            time.sleep(0.3)
        return None

    def _send(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int | None, dict[str, Any]]:
        assert self.port is not None
        try:
            with closing(
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_TIMEOUT_SEC)
            ) as connection:
                connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            return None, {}

    def _sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        opened = psycopg2.connect(self.dsn(), connect_timeout=3, tcp_user_timeout=4000)
        with closing(opened) as connection, connection, connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '4s'")
            cursor.execute(text, parameters)
            return cursor.fetchall()
