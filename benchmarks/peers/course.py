"""One round of one peer: a fresh store, an idle worker, then a full queue."""

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

from benchmarks.peers.homes import Home, NotToBeHad
from benchmarks.peers.known import Peer
from benchmarks.place import fresh_database

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0  # for a worker to begin, and a question to be answered
WARM_UPS = 5


@dataclass(frozen=True)
class Size:
    jobs: int
    singly: int  # of them enqueued one at a time
    picks: int
    concurrency: int
    limit: float  # seconds in which a queue is drained, as far as it comes


@dataclass(frozen=True)
class Taken:
    one: float  # jobs a second
    bulk: float
    drain: float
    drained: bool  # all of them, within the limit
    picks: tuple[float, ...]  # milliseconds


def run(peer: Peer, home: Home, server_dsn: str, size: Size) -> Taken:
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dl-bench-peer-")))
        url = ends.enter_context(store(peer, server_dsn, folder))
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
        driver.do("setup")
        with driver.sending() as sender:
            with driver.working() as worker:
                picks = pick_ups(sender, pipe, worker, size.picks)
            one = size.singly / sender.ask("one", size.singly)["seconds"]
            many = size.jobs - size.singly
            bulk = many / sender.ask("bulk", many)["seconds"]
            with driver.working() as worker:
                drain, drained = drain_all(driver, pipe, worker, size)
    return Taken(one, bulk, drain, drained, tuple(picks))


def pick_ups(sender: Sender, pipe: Pipe, worker: subprocess.Popen[str], number: int) -> list[float]:
    """From the answer to an enqueue, of which there is one at a time, to the job; in milliseconds."""
    taken = []
    for n in range(number + WARM_UPS):
        committed = sender.ask("one", 1)["at"]
        began = begun(sender.driver, pipe, worker)
        if n >= WARM_UPS:
            taken.append(max(0.0, began - committed) * 1000)  # it may begin before the answer has come
        time.sleep(random.uniform(0.01, 0.03))  # in step with nothing
    return taken


def drain_all(driver: Driver, pipe: Pipe, worker: subprocess.Popen[str], size: Size) -> tuple[float, bool]:
    """Jobs a second, from the first one's run to the last one's, and whether that was the last one."""
    first = begun(driver, pipe, worker)
    done, last = 1, first
    while done < size.jobs and last - first < size.limit:
        moment = pipe.next(first + size.limit - time.monotonic())
        if moment is None:
            break
        done, last = done + 1, moment
    return (done - 1) / max(last - first, 1e-6), done == size.jobs


def begun(driver: Driver, pipe: Pipe, worker: subprocess.Popen[str]) -> float:
    """When the next job ran; a worker that has died is not waited for."""
    until = time.monotonic() + PATIENCE
    while (moment := pipe.next(min(1.0, until - time.monotonic()))) is None:
        if worker.poll() is not None:
            raise NotToBeHad(f"its worker died: {driver.last_words()}")
        if time.monotonic() > until:
            raise NotToBeHad(f"its worker did not begin a job within {PATIENCE:.0f} s: {driver.last_words()}")
    return moment


# ── the pipe that jobs write to ─────────────────────────────────────────────────────────────────────────────────────


class Pipe:
    """Tells when each job ran: a byte each, by the monotonic clock, which all processes of a machine share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # to write, too: it must not end with its first writer
        self._at, self._waiting = 0.0, 0

    def next(self, timeout: float) -> float | None:
        if not self._waiting:
            if not select.select([self._end], [], [], max(0.0, timeout))[0]:
                return None
            self._waiting, self._at = len(os.read(self._end, 65_536)), time.monotonic()
        self._waiting -= 1
        return self._at

    def close(self) -> None:
        os.close(self._end)


@contextmanager
def closing_pipe(path: Path) -> Iterator[Pipe]:
    pipe = Pipe(path)
    try:
        yield pipe
    finally:
        pipe.close()


# ── the peer's own processes ────────────────────────────────────────────────────────────────────────────────────────


class Driver:
    """Runs a peer's driver, each time in a process group of its own, which is ended as a whole."""

    def __init__(self, peer: Peer, home: Home, environ: dict[str, str], folder: Path) -> None:
        self._peer, self._command = peer, [home.program, str(peer.path)]
        self._environ, self._folder = environ, folder
        self._log = folder / "said.log"

    def do(self, word: str) -> None:
        try:
            done = subprocess.run(
                [*self._command, word], env=self._environ, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotToBeHad(f"{word} took longer than {PATIENCE:.0f} s") from error
        if done.returncode != 0:
            raise NotToBeHad(f"{word} failed: {_last_line(done.stderr or done.stdout)}")

    @contextmanager
    def working(self) -> Iterator[subprocess.Popen[str]]:
        with self._started("work", stdin=subprocess.DEVNULL, stdout=None) as process:
            yield process

    @contextmanager
    def sending(self) -> Iterator[Sender]:
        with self._started("enqueue", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield Sender(self, process)

    def last_words(self) -> str:
        return _last_line(self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else "")

    @contextmanager
    def _started(self, word: str, *, stdin: int, stdout: int | None) -> Iterator[subprocess.Popen[str]]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*self._command, word],
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

    def ask(self, word: str, jobs: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # its last words tell more
            self._process.stdin.write(json.dumps({"do": word, "jobs": jobs}) + "\n")
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise NotToBeHad(f"enqueueing {jobs} ({word}) failed: {self.driver.last_words()}")
        told: dict[str, Any] = json.loads(line)
        return told


def _end(process: subprocess.Popen[str]) -> None:
    for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _last_line(told: str) -> str:
    return next((line.strip()[:300] for line in reversed(told.splitlines()) if line.strip()), "it said nothing")


# ── stores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def store(peer: Peer, server_dsn: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh one."""
    if peer.store == "redis":
        with redis(folder) as url:
            yield url
    else:
        with fresh_database(server_dsn, "peer", empty=True) as dsn:
            yield url_of(dsn)


def url_of(dsn: str) -> str:
    """As every language's client reads it: a socket's folder stands in the query."""
    told = parse_dsn(dsn)
    account = quote(told.get("user", "postgres"), safe="")
    if password := told.get("password"):
        account += f":{quote(password, safe='')}"
    host, port, name = told.get("host", "localhost"), told.get("port", "5432"), quote(told["dbname"], safe="")
    if host.startswith("/"):
        return f"postgresql://{account}@/{name}?host={quote(host, safe='/')}&port={port}"
    return f"postgresql://{account}@{host}:{port}/{name}"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """With its own defaults: snapshots now and then, no log of what was written."""
    program = shutil.which("redis-server")
    if program is None:
        raise NotToBeHad("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--logfile", "redis.log"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise NotToBeHad("redis-server did not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)
