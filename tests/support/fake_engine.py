"""An engine with faults: an HTTP server that runs programs by name, and its executor.

POST /programs/NAME starts a program, or answers 409 if the name exists; GET shows its state, DELETE stops it. A fault
is taken by the next request of its method: `500` and `hang` before it has an effect, `lost` and `slow` after it;
`late` answers 500 and has its effect half a second later; `unknown` and `garbage` in place of its answer, `twice` as if
it was sent twice; `ignored` answers and has no effect, `reset` closes the connection.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal

import requests

from dataloader.pipelines.offload import (
    MAX_LOG_LINES,
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    result_of_lines,
)

_HANG_SEC = 3.0
_LATE_SEC = 0.5
_CLIENT_TIMEOUT_SEC = 1.0


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    log: Path
    kind: str = "error"  # of its failure
    is_stopped: bool = False
    is_forgotten: bool = False

    def state(self) -> dict[str, Any]:
        code = self.process.poll()
        if code is None:
            return {"state": "running"}
        if self.is_stopped:
            return {"state": "stopped"}
        return {"state": "succeeded"} if code == 0 else {"state": "failed", "kind": self.kind, "detail": f"exit {code}"}


@dataclass
class FakeEngine:
    """Survives `down` and `up`, as the store of a real engine does."""

    folder: Path
    programs: dict[str, Program] = field(default_factory=dict)
    faults: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))  # by POST, GET, DELETE
    requests: list[tuple[float, str, str]] = field(default_factory=list)  # time, method, name
    starts: Counter[str] = field(default_factory=Counter)
    ignores_stop: bool = False
    has_lost_logs: bool = False
    token: str | None = None  # that requests must bear
    port: int = 0
    _server: ThreadingHTTPServer | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def up(self) -> FakeEngine:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None: ...

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.close_connection = True
                if engine.token is not None and self.headers.get("Authorization") != f"Bearer {engine.token}":
                    code, value = 401, {"error": "Unauthorized"}
                else:
                    try:
                        code, value = engine.handle(self.command, self.path, json.loads(body or b"null"))
                    except ConnectionError:
                        return
                content = json.dumps(value).encode()
                with suppress(ConnectionError):  # the client has given up
                    self.send_response(code)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_POST = do_DELETE = answer

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self.down()
        for program in self.programs.values():
            program.process.kill()
            program.process.wait()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count_requests(self, method: str | None = None) -> int:
        return sum(1 for _, used, _ in self.requests if method in (None, used))

    def handle(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        name, _, part = path.removeprefix("/programs/").partition("/")
        self.requests.append((time.monotonic(), method, name))
        fault = self.faults[method].popleft() if self.faults[method] else ""
        if fault == "hang":
            time.sleep(_HANG_SEC)
        if fault in ("hang", "500"):
            return 500, {"error": "a fault"}
        if fault == "ignored":
            return 200, {}
        if fault == "reset":
            raise ConnectionError("a fault")
        if fault == "late":
            threading.Timer(_LATE_SEC, getattr(self, f"_{method.lower()}"), (name, part, body)).start()
            return 500, {"error": "a fault"}
        if fault == "twice":
            getattr(self, f"_{method.lower()}")(name, part, body)
        code, value = getattr(self, f"_{method.lower()}")(name, part, body)
        if fault == "slow":
            time.sleep(_HANG_SEC)
        if fault == "lost":
            return 500, {"error": "the answer was lost"}
        answers: dict[str, tuple[int, Any]] = {"unknown": (404, {}), "garbage": (200, ["garbage"])}
        return answers.get(fault, (code, value))

    def _post(self, name: str, part: str, body: Any) -> tuple[int, Any]:
        with self._starting:
            return self._start(name, body)

    def _start(self, name: str, body: Any) -> tuple[int, Any]:
        if name in self.programs and not self.programs[name].is_forgotten:
            return 409, {"error": "it exists"}
        if body["entrypoint"].startswith("refused"):
            return 400, {"error": "no such program"}
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(body["entrypoint"]), env={**os.environ, **body["env"]},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.programs[name] = Program(process, log, kind=body["resources"].get("fails_as", "error"))
        self.starts[name] += 1
        return 200, {}

    def _get(self, name: str, part: str, body: Any) -> tuple[int, Any]:
        program = self.programs.get(name)
        if program is None or program.is_forgotten:
            return 404, {}
        if part.startswith("logs"):
            if self.has_lost_logs:
                return 404, {}
            lines = program.log.read_text(errors="replace").splitlines()
            begin = int(part.partition("=")[2] or 0)
            return 200, {"lines": lines[begin : begin + MAX_LOG_LINES]}
        return 200, program.state()

    def _delete(self, name: str, part: str, body: Any) -> tuple[int, Any]:
        program = self.programs.get(name)
        if program is not None and not self.ignores_stop:
            if program.process.poll() is None:
                program.is_stopped = True
                program.process.kill()
                program.process.wait()
            if part == "forget":
                program.is_forgotten = True
        return 200, {}


def install_entry_points(folder: Path, **executors: str) -> Path:
    """Make executors those of another package; return the folder that is to be on the path of a process."""
    package = folder / "site" / "fake_engine-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-engine\nVersion: 1\n")
    names = {"fake": "tests.support.fake_engine:FakeExecutor", **executors}
    lines = [f"{name} = {target}" for name, target in names.items()]
    (package / "entry_points.txt").write_text("\n".join(["[dataloader.executors]", *lines, ""]))
    return package.parent


class FakeExecutor:
    """Speaks with a FakeEngine."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"program"})
    survives: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.address = str(settings["address"])

    def _send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            address = f"{self.address}/programs/{path}"
            response = requests.request(method, address, json=body, timeout=_CLIENT_TIMEOUT_SEC)
        except requests.RequestException as error:
            raise EngineUnavailable(f"{type(error).__name__}") from error
        if response.status_code >= 500:
            raise EngineUnavailable(f"it answered {response.status_code}")
        return response.status_code, response.json()

    def submit(self, name: str, spec: OffloadSpec) -> None:
        code, answer = self._send(
            "POST", name, {"entrypoint": spec.entrypoint, "env": dict(spec.env), "resources": dict(spec.resources)}
        )
        if code == 400:
            raise EngineRefused(answer["error"])

    def status(self, name: str) -> RemoteStatus:
        code, answer = self._send("GET", name)
        if code == 404:
            return RemoteStatus(RemoteState.UNKNOWN)
        return RemoteStatus(
            RemoteState(answer["state"]), FailureKind(answer.get("kind", "error")), answer.get("detail", "")
        )

    def stop(self, name: str) -> None:
        self._send("DELETE", name)

    def result(self, name: str) -> Any:
        lines: list[str] = []
        position = ""
        if self._send("GET", f"{name}/logs=0")[0] != 200:
            raise OffloadFailed(f"the result of {name} is lost")
        while True:
            piece, position = self.logs(name, position)
            if not piece:
                return result_of_lines(lines)
            lines += piece

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        begin = int(after or 0)
        code, answer = self._send("GET", f"{name}/logs={begin}")
        lines = answer.get("lines", []) if code == 200 else []
        return lines, str(begin + len(lines))

    def delete(self, name: str) -> None:
        self._send("DELETE", f"{name}/forget")
