"""The server that all parts of the benchmark of a cluster share, and the worker processes that are its hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from psycopg2.extensions import make_dsn

from benchmarks.place import query_value
from dataloader.app.db.schema import migrate
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.listener import ListenMode
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions
from tests.chaos.servers import Server
from tests.cluster.cluster import tcp_dsn
from tests.cluster.network import DATABASE, Network

THREADS = 8
NAP_SEC = 0.02
TIMEOUT_SEC = 120.0
_STARTED_AT_ONCE = 10
_PORT = 5432
_READY = "SELECT count(*) FROM dl_workers WHERE listener IN ('listening', 'off') AND dead_at IS NULL"


@dataclass(frozen=True)
class Place:
    """The server, which all parts share, and its network."""

    network: Network
    server: Server
    folder: Path

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.server.pid)

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Yield the name of a fresh database."""
        query_value(self.server.dsn, f'CREATE DATABASE "{name}"')
        try:
            migrate(make_dsn(self.server.dsn, dbname=name))
            query_value(make_dsn(self.server.dsn, dbname=name), "CREATE EXTENSION pg_stat_statements")
            yield name
        finally:
            query_value(self.server.dsn, f'DROP DATABASE "{name}" WITH (FORCE)')

    def dsn(self, database: str) -> str:
        """By the Unix socket, which no cut reaches."""
        return str(make_dsn(self.server.dsn, dbname=database))

    def network_dsn(self, database: str) -> str:
        return str(make_dsn(tcp_dsn(self.network.address(DATABASE), _PORT), dbname=database))


def bench_tasks() -> Pipelines:
    tasks = Pipelines()
    tasks.register("noop")(lambda args: None)
    tasks.register("pick")(lambda args: None)
    tasks.register("warm")(lambda args: None)
    tasks.register("nap")(lambda args: time.sleep(NAP_SEC))
    return tasks


def start_host(
    network: Network | None, name: str, dsn: str, listen: ListenMode = ListenMode.PROCESS
) -> tuple[int, int]:
    """Fork a worker process into the namespace; return its pid and the descriptor whose end stops it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_end)
        return pid, write_end
    code = 1
    try:
        os.close(write_end)
        if network is not None:
            network.enter(name)
        options = PoolOptions(dsn=dsn, queues={"bench": THREADS}, listen=listen)
        pool = WorkerPool(bench_tasks(), options, on_crash=lambda thread: os._exit(70))
        pool.start()
        os.read(read_end, 1)  # until the benchmark closes its end, or is gone
        pool.stop(5.0)
        code = 0
    finally:
        os._exit(code)


@contextmanager
def running_hosts(
    network: Network | None, control_dsn: str, dsns: Sequence[str], listen: ListenMode = ListenMode.PROCESS
) -> Iterator[list[int]]:
    """Yield the pids of hosts that are ready, one for each DSN; without a network all of them are on this host.

    A few are started at a time: many interpreters that begin at once would wait for each other."""
    started: list[tuple[int, int]] = []
    try:
        for n, dsn in enumerate(dsns):
            started.append(start_host(network, f"h{n}", dsn, listen))
            if len(started) % _STARTED_AT_ONCE == 0 or len(started) == len(dsns):
                wait_for(lambda: query_value(control_dsn, _READY)[0][0] >= len(started))
        yield [pid for pid, _ in started]
    finally:
        for _, descriptor in started:
            os.close(descriptor)
        for pid, _ in started:
            os.waitpid(pid, 0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SEC
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not get there in time")
        time.sleep(0.05)


def add_hosts(network: Network, count: int) -> None:
    for n in range(count):
        if not network.has(f"h{n}"):
            network.add(f"h{n}")
