"""Measures what heartbeats cost: a thousand running jobs in one process, and a hundred in each of twenty.

Takes about 3 minutes.

Each line of the result is a database of its own with running jobs that were claimed through the queue. Every process
sends its heartbeats, or saves new progress of all its jobs, through the queue's own code, without pauses. `% of a core`
is the CPU time that this takes in a second of a service in which each process sends a heartbeat every ten seconds, or
saves progress as often as it does; the goal is at most 0.2 % of the server for a thousand jobs in one process. The
client is this program, all processes in one; the server is the sessions that send heartbeats. `pages` and `WAL` are of
one heartbeat of one process; pages do not depend on the load of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import psutil  # type: ignore[import-untyped]

from benchmarks.horizon.pages import Recorder
from benchmarks.horizon.process import HEARTBEAT_SEC, LONG, SimulatedProcess
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser, median, run_rounds

FILL = """
INSERT INTO dl_jobs (queue, task, lock_key, lease_ttl_sec, wait_state)
SELECT '{queue}', 'load', 'key ' || n, 3600, 'ready' FROM generate_series(1, %s) n
"""
PROGRESS_SEC = 1.0  # between two times that new progress is saved


@dataclass(frozen=True)
class HeartbeatVariant:
    name: str
    processes: int
    jobs: int  # of each process
    saves_progress: bool = False


@dataclass(frozen=True)
class HeartbeatCosts:
    """Of one heartbeat of one process."""

    server_ms: float
    client_ms: float
    pages: float
    wal_bytes: float


VARIANTS = (
    HeartbeatVariant("1,000 jobs in a process", 1, 10),
    HeartbeatVariant("100 jobs in each of 20 processes", 20, 1),
    HeartbeatVariant("1,000 jobs in a process, new progress", 1, 10, saves_progress=True),
    HeartbeatVariant("100 jobs in each of 20 processes, new progress", 20, 1, saves_progress=True),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument(
        "--jobs", type=int, default=100, help="running jobs of each of 20 processes; one alone has ten times as many"
    )
    parser.add_argument("--heartbeats", type=int, default=100, help="heartbeats per round, of all processes together")
    options = parser.parse_args(argv)
    with benchmark_server({"autovacuum": "off"}) as (server_dsn, _), ExitStack() as ends:
        print(describe_environment(server_dsn))
        sides: dict[str, Callable[[], HeartbeatCosts]] = {}
        empty = ends.enter_context(fresh_database(server_dsn, "heartbeat_empty"))
        for n, variant in enumerate(VARIANTS):
            dsn = ends.enter_context(fresh_database(server_dsn, f"heartbeat_{n}", like=empty))
            recorder = Recorder()
            processes = start_processes(dsn, recorder, variant, options.jobs)
            for process in processes:
                ends.callback(process.close)
            sides[variant.name] = partial(time_heartbeats, dsn, recorder, processes, variant, options.heartbeats)
        query_value(server_dsn, "CHECKPOINT")
        costs = run_rounds(sides, options.rounds, warm_up=1)
    print_results(costs, options.jobs, options.rounds)


def start_processes(dsn: str, recorder: Recorder, variant: HeartbeatVariant, jobs: int) -> list[SimulatedProcess]:
    query_value(dsn, FILL.format(queue=LONG), variant.processes * variant.jobs * jobs)
    processes = [SimulatedProcess(dsn, recorder, n) for n in range(variant.processes)]
    for process in processes:
        process.claim_long(variant.jobs * jobs)
        process.heartbeat(0)
    query_value(dsn, "VACUUM (ANALYZE)")
    return processes


def time_heartbeats(
    dsn: str, recorder: Recorder, processes: Sequence[SimulatedProcess], variant: HeartbeatVariant, count: int
) -> HeartbeatCosts:
    backends = [psutil.Process(process.session.execute_raw("SELECT pg_backend_pid()")[0][0]) for process in processes]
    rounds = max(1, count // len(processes))
    wal = wal_position(dsn)
    server, client = cpu_sec(backends), time.process_time()
    for n in range(rounds):
        for process in processes:
            lost = process.save_progress(n) if variant.saves_progress else process.heartbeat(n)
            assert not lost, f"{variant.name}: {lost} leases were lost"
    client, server = time.process_time() - client, cpu_sec(backends) - server
    sent = rounds * len(processes)
    wal = wal_position(dsn) - wal
    pages = pages_of(recorder, processes[0], variant)
    return HeartbeatCosts(server / sent * 1000, client / sent * 1000, pages, wal / sent)


def pages_of(recorder: Recorder, process: SimulatedProcess, variant: HeartbeatVariant) -> float:
    recorder.start(process.session)
    if variant.saves_progress:
        process.save_progress(-1)
    else:
        process.heartbeat(-1)
    return sum(figure.pages for figure in recorder.stop().values())


def cpu_sec(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def wal_position(dsn: str) -> int:
    return int(query_value(dsn, "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")[0][0])


def print_results(costs: dict[str, list[HeartbeatCosts]], jobs: int, rounds: int) -> None:
    lines: list[Sequence[Cell]] = []
    for variant in VARIANTS:
        server_ms, client_ms, pages, wal = (
            median([getattr(cost, name) for cost in costs[variant.name]])
            for name in ("server_ms", "client_ms", "pages", "wal_bytes")
        )
        every_sec = PROGRESS_SEC if variant.saves_progress else HEARTBEAT_SEC
        shares = (f"{ms * variant.processes / every_sec / 10:.2f} %" for ms in (server_ms, client_ms))
        lines.append((variant.name, server_ms, client_ms, *shares, round(pages), round(wal)))
    print(f"{10 * jobs:,} and {20 * jobs:,} running jobs, {rounds} rounds in turn, medians")
    headings = ["of a heartbeat", "server ms", "client ms", "server, of a core", "client, of a core", "pages", "WAL"]
    print(format_table(headings, lines))


if __name__ == "__main__":
    main()
