"""Measures what idle worker processes cost the server and themselves, and which statements they send.

Takes about 2 minutes for each count, of which a minute is measured.

All processes are on one host and have one queue of 8 threads. They are started ten at a time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from psycopg2.extensions import make_dsn

from benchmarks.hosts import running_hosts
from benchmarks.place import cpu_sec_of, describe_environment, own_cpu_sec, query_value
from benchmarks.rounds import Cell, format_table, make_parser
from dataloader.app.db.schema import migrate
from dataloader.workers.listener import ListenMode
from tests.chaos.servers import Server

_SETTINGS = {"fsync": "on", "max_connections": "800", "shared_buffers": "256MB", "max_wal_size": "1GB",
             "shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top",
             "pg_stat_statements.track_planning": "on"}  # fmt: skip
_SETTLE_SEC = 45.0  # what processes do at their start, and the first partitions, are not measured
_PREPARE = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"
_STATEMENTS = (
    "SELECT calls, total_plan_time, total_exec_time, left(regexp_replace(query, '\\s+', ' ', 'g'), 90)"
    " FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)"
    " ORDER BY total_plan_time + total_exec_time DESC LIMIT %s"
)
_TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"


@dataclass(frozen=True)
class IdleCost:
    """Of a second."""

    server_cpu_sec: float
    own_cpu_sec: float  # of all worker processes together
    transactions: float
    load: float
    statements: Sequence[tuple[float, float, float, str]]  # calls, ms of planning, ms of running, text


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 20, 50, 100])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--listen", choices=[mode.value for mode in ListenMode], default=ListenMode.PROCESS.value)
    parser.add_argument("--statements", type=int, default=0, help="how many of the statements to list for each count")
    parser.add_argument("--max-load", type=float, default=20.0, help="of the machine, above which no count is tried")
    options = parser.parse_args(argv)
    rows: list[list[Cell]] = []
    with idle_server() as server:
        print(describe_environment(server.dsn))
        for count in options.processes:
            if os.getloadavg()[0] > options.max_load:
                print(f"  {count} processes are not tried: the load is {os.getloadavg()[0]:.0f}")
                break
            cost = measure(server, count, ListenMode(options.listen), options.seconds, options.statements)
            rows.append([f"{count}", f"{cost.server_cpu_sec * 100:.2f} %", cost.transactions,
                         cost.own_cpu_sec / count * 100, cost.load])  # fmt: skip
            print(f"  {count}: {cost.server_cpu_sec * 100:.2f} % of a core", flush=True)
            for calls, plan, run, text in cost.statements:
                print(f"    {calls:8.2f}/s  planned {plan:7.3f}, run {run:7.3f} ms/s  {text}")
    headings = ("idle processes", "server, of a core", "transactions/s", "a process itself, % of a core", "load")
    print("\n" + format_table(headings, rows) + "\n")


@contextmanager
def idle_server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-idle-"))
    folder.chmod(0o755)
    server = Server(folder / "server", binaries="auto", settings=_SETTINGS)
    try:
        server.create()
        query_value(server.dsn, _PREPARE)
        yield server
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def measure(server: Server, count: int, mode: ListenMode, seconds: float, listed: int) -> IdleCost:
    name = f"idle_{count}"
    dsn = str(make_dsn(server.dsn, dbname=name))
    query_value(server.dsn, f'CREATE DATABASE "{name}"')
    migrate(dsn)
    process = psutil.Process(server.pid)
    with running_hosts(None, dsn, [dsn] * count, mode) as pids:
        time.sleep(_SETTLE_SEC)
        workers = [psutil.Process(pid) for pid in pids]
        query_value(server.dsn, "SELECT pg_stat_statements_reset()")
        began, before = time.monotonic(), (cpu_sec_of(process), own_cpu_sec(workers), _transactions(server, name))
        time.sleep(seconds)
        taken = time.monotonic() - began
        after = cpu_sec_of(process), own_cpu_sec(workers), _transactions(server, name)
        statements = query_value(server.dsn, _STATEMENTS, name, listed)
    query_value(server.dsn, f'DROP DATABASE "{name}" WITH (FORCE)')
    return IdleCost(
        server_cpu_sec=(after[0] - before[0]) / taken,
        own_cpu_sec=(after[1] - before[1]) / taken,
        transactions=(after[2] - before[2]) / taken,
        load=os.getloadavg()[0],
        statements=[(calls / taken, plan / taken, run / taken, text) for calls, plan, run, text in statements],
    )


def _transactions(server: Server, database: str) -> float:
    return float(query_value(server.dsn, _TRANSACTIONS, database)[0][0])


if __name__ == "__main__":
    main()
