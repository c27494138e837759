"""Runs one round of one peer: an empty store, an idle worker, then a full queue."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg2.extensions import parse_dsn

from benchmarks.peers.homes import PeerEnvironment, PeerUnavailable
from benchmarks.peers.known import Peer
from benchmarks.place import fresh_database

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_SEC = 60.0  # for a worker to start, and for a request to its driver
WARM_UPS = 5


@dataclass(frozen=True)
class RoundSize:
    jobs: int
    single_jobs: int  # of them enqueued one at a time
    pickups: int
    concurrency: int
    drain_limit_sec: float  # then the drain is cut short


@dataclass(frozen=True)
class RoundResult:
    one: float  # jobs per second
    bulk: float
    drain: float
    drained: bool  # all of them, within the limit
    picks: tuple[float, ...]  # milliseconds


def run_round(peer: Peer, home: PeerEnvironment, server_dsn: str, size: RoundSize) -> RoundResult:
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dl-bench-peer-")))
        url = ends.enter_context(fresh_store(peer, server_dsn, folder))
        pipe = ends.enter_context(closing_pipe(folder / "jobs"))
        environ = os.environ | peer.environ | {
            "BENCH_URL": url,
            "BENCH_PIPE": str(pipe.path),
            "BENCH_CONCURRENCY": str(size.concurrency),
            "BENCH_HOME": str(home.folder or ""),
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        if home.folder is None:
            environ["PYTHONPATH"] = str(ROOT)
        driver = Driver(peer, home, environ, folder)
        driver.run_command("setup")
        with driver.running_sender() as sender:
            with driver.running_worker() as worker:
                picks = measure_pickups(sender, pipe, worker, size.pickups)
            one = size.single_jobs / sender.request("one", size.single_jobs)["seconds"]
            many = size.jobs - size.single_jobs
            bulk = many / sender.request("bulk", many)["seconds"]
            with driver.running_worker() as worker:
                drain, drained = drain_all(driver, pipe, worker, size)
    return RoundResult(one, bulk, drain, drained, tuple(picks))


def measure_pickups(sender: Sender, pipe: StartPipe, worker: subprocess.Popen[str], number: int) -> list[float]:
    """Return the milliseconds from the response to each enqueue to the start of its job, one at a time."""
    taken = []
    for n in range(number + WARM_UPS):
        committed = sender.request("one", 1)["at"]
        began = next_start(sender.driver, pipe, worker)
        if n >= WARM_UPS:
            taken.append(max(0.0, began - committed) * 1000)  # the job may start before the response arrives
        time.sleep(random.uniform(0.01, 0.03))  # random, to avoid resonance
    return taken


def drain_all(driver: Driver, pipe: StartPipe, worker: subprocess.Popen[str], size: RoundSize) -> tuple[float, bool]:
    """Return the jobs per second from the first start to the last, and whether all of them ran."""
    first = next_start(driver, pipe, worker)
    done, last = 1, first
    while done < size.jobs and last - first < size.drain_limit_sec:
        moment = pipe.next_start(first + size.drain_limit_sec - time.monotonic())
        if moment is None:
            break
        done, last = done + 1, moment
    return (done - 1) / max(last - first, 1e-6), done == size.jobs


def next_start(driver: Driver, pipe: StartPipe, worker: subprocess.Popen[str]) -> float:
    """Return when the next job started; fail at once if the worker has died."""
    until = time.monotonic() + TIMEOUT_SEC
    while (moment := pipe.next_start(min(1.0, until - time.monotonic()))) is None:
        if worker.poll() is not None:
            raise PeerUnavailable(f"its worker died: {driver.last_log_line()}")
        if time.monotonic() > until:
            raise PeerUnavailable(
                f"its worker did not start a job within {TIMEOUT_SEC:.0f} s: {driver.last_log_line()}"
            )
    return moment


# ── the pipe that jobs write to ─────────────────────────────────────────────────────────────────────────────────────


class StartPipe:
    """Records when jobs start: each writes a byte, timed by the monotonic clock that all processes share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(
            path, os.O_RDWR | os.O_NONBLOCK
        )  # open for writing too, or it would end with its first writer
        self._at, self._waiting = 0.0, 0

    def next_start(self, timeout: float) -> float | None:
        if not self._waiting:
            if not select.select([self._fd], [], [], max(0.0, timeout))[0]:
                return None
            self._waiting, self._at = len(os.read(self._fd, 65_536)), time.monotonic()
        self._waiting -= 1
        return self._at

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def closing_pipe(path: Path) -> Iterator[StartPipe]:
    pipe = StartPipe(path)
    try:
        yield pipe
    finally:
        pipe.close()


# ── the peer's processes ────────────────────────────────────────────────────────────────────────────────────────


class Driver:
    """Runs a peer's driver; each process has its own process group, which is ended as a whole."""

    def __init__(self, peer: Peer, home: PeerEnvironment, environ: dict[str, str], folder: Path) -> None:
        self._peer, self._command = peer, [home.program, str(peer.path)]
        self._environ, self._folder = environ, folder
        self._log = folder / "output.log"

    def run_command(self, command: str) -> None:
        try:
            done = subprocess.run(
                [*self._command, command],
                env=self._environ,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SEC,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerUnavailable(f"{command} took longer than {TIMEOUT_SEC:.0f} s") from error
        if done.returncode != 0:
            raise PeerUnavailable(f"{command} failed: {_last_line(done.stderr or done.stdout)}")

    @contextmanager
    def running_worker(self) -> Iterator[subprocess.Popen[str]]:
        with self._running("work", stdin=subprocess.DEVNULL, stdout=None) as process:
            yield process

    @contextmanager
    def running_sender(self) -> Iterator[Sender]:
        with self._running("enqueue", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield Sender(self, process)

    def last_log_line(self) -> str:
        return _last_line(self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else "")

    @contextmanager
    def _running(self, command: str, *, stdin: int, stdout: int | None) -> Iterator[subprocess.Popen[str]]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*self._command, command],
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env=self._environ,
                cwd=self._folder,
                start_new_session=True,
                text=True,
            )
        try:
            yield process
        finally:
            _end(process)


class Sender:
    """The process that enqueues."""

    def __init__(self, driver: Driver, process: subprocess.Popen[str]) -> None:
        self.driver, self._process = driver, process

    def request(self, command: str, jobs: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the log has the reason
            self._process.stdin.write(json.dumps({"do": command, "jobs": jobs}) + "\n")
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_SEC)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise PeerUnavailable(f"enqueueing {jobs} ({command}) failed: {self.driver.last_log_line()}")
        response: dict[str, Any] = json.loads(line)
        return response


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _last_line(text: str) -> str:
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "no output")


# ── stores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def fresh_store(peer: Peer, server_dsn: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh one."""
    if peer.store == "redis":
        with redis(folder) as url:
            yield url
    else:
        with fresh_database(server_dsn, "peer", empty=True) as dsn:
            yield url_of(dsn)


def url_of(dsn: str) -> str:
    """Return the DSN as a URL for clients in any language; the folder of a socket goes into the query."""
    parameters = parse_dsn(dsn)
    account = quote(parameters.get("user", "postgres"), safe="")
    if password := parameters.get("password"):
        account += f":{quote(password, safe='')}"
    host, port, name = (
        parameters.get("host", "localhost"),
        parameters.get("port", "5432"),
        quote(parameters["dbname"], safe=""),
    )
    if host.startswith("/"):
        return f"postgresql://{account}@/{name}?host={quote(host, safe='/')}&port={port}"
    return f"postgresql://{account}@{host}:{port}/{name}"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Start Redis with its defaults: occasional snapshots, no append-only file."""
    program = shutil.which("redis-server")
    if program is None:
        raise PeerUnavailable("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--logfile", "redis.log"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + TIMEOUT_SEC
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise PeerUnavailable("redis-server did not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)
