"""Measures what the sampler of a worker process costs while it looks at twenty running jobs.

Takes about 5 minutes.

A worker process has twenty jobs, which sleep, wait for statements, or are processes of their own. CPU time is counted
of the worker process, of its children, and of the server, with the sampler and without it, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.place import benchmark_server, cpu_sec_of, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser, median, run_rounds
from dataloader.app.features.where.sampler_options import SamplerOptions, WhereOptions
from dataloader.pipelines.contract import Context, Pipelines, register
from dataloader.workers.attempt import AttemptSettings
from dataloader.workers.duties import MaintenanceOptions
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

JOBS = 20
_SETTLE_SEC = 15.0  # until all jobs are looked at
_LOOK_AFTER_SEC = 2.0  # of an attempt, instead of ten
_SECONDS_PER_WAIT = 600
_ADD_JOBS = (
    "INSERT INTO dl_jobs (queue, task, lock_key, lease_ttl_sec, wait_state)"
    " SELECT 'q', %s, 'key ' || n, 3600, 'ready' FROM generate_series(1, %s) n"
)
TASKS = {"sleep in threads": "thread.sleep", "SQL in threads": "thread.query", "processes": "process.sleep"}


@dataclass(frozen=True)
class SamplerCost:
    """Percent of one CPU."""

    worker: float
    children: float
    server: float

    @property
    def total(self) -> float:
        return self.worker + self.children + self.server


def sleep_long(args: dict[str, Any]) -> None:
    time.sleep(_SECONDS_PER_WAIT)


def query_long(args: dict[str, Any], ctx: Context) -> None:
    with ctx.connect("default") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [_SECONDS_PER_WAIT])


register("process.sleep", isolation="process")(sleep_long)


def run_worker(dsn: str, interval_sec: float) -> None:
    """The worker process, until it is killed."""
    from dataloader.pipelines.contract import registry  # noqa: PLC0415 - of the worker alone

    tasks = Pipelines()
    tasks.register("thread.sleep")(sleep_long)
    tasks.register("thread.query")(query_long)
    isolated = registry.get("process.sleep")
    assert isolated is not None
    tasks.add(isolated)
    sampler = SamplerOptions(after_sec=_LOOK_AFTER_SEC, interval_sec=interval_sec)
    maintenance = MaintenanceOptions(features={"where": WhereOptions(sampler=sampler)})
    options = PoolOptions(
        dsn=dsn, queues={"q": JOBS}, attempts=AttemptSettings(packages=(__name__,)), maintenance=maintenance,
        heartbeat_sec=2.0,
    )  # fmt: skip
    WorkerPool(tasks, options).start()
    time.sleep(_SECONDS_PER_WAIT)


def measure(
    server_dsn: str, server: psutil.Process | None, task: str, interval_sec: float, seconds: float
) -> SamplerCost:
    with fresh_database(server_dsn, "where") as dsn:
        query_value(dsn, _ADD_JOBS, task, JOBS)
        command = [
            sys.executable,
            "-c",
            f"from benchmarks.where import run_worker; run_worker({dsn!r}, {interval_sec})",
        ]
        with subprocess.Popen(command) as worker:
            try:
                process = psutil.Process(worker.pid)
                while query_value(dsn, "SELECT count(*) FROM dl_jobs WHERE status = 'running'")[0][0] < JOBS:
                    time.sleep(0.5)
                time.sleep(_SETTLE_SEC)
                before, began = _cpu_sec(process, server), time.monotonic()
                time.sleep(seconds)
                after, taken = _cpu_sec(process, server), time.monotonic() - began
            finally:
                for child in psutil.Process(worker.pid).children(recursive=True):
                    child.kill()
                worker.kill()
        return SamplerCost(*(100 * (late - early) / taken for early, late in zip(before, after, strict=True)))


def _cpu_sec(worker: psutil.Process, server: psutil.Process | None) -> tuple[float, float, float]:
    children = 0.0
    for child in worker.children(recursive=True):
        times = child.cpu_times()
        children += times.user + times.system
    own = worker.cpu_times()
    return own.user + own.system, children, 0.0 if server is None else cpu_sec_of(server)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(argv)
    rows: list[list[Cell]] = []
    with benchmark_server() as (server_dsn, server):
        print(describe_environment(server_dsn))
        for label, task in TASKS.items():
            sides = {
                name: partial(measure, server_dsn, server, task, interval_sec, options.seconds)
                for name, interval_sec in (("on", 1.0), ("off", 0.0))
            }
            costs = run_rounds(sides, options.rounds, log=lambda _, cost: f"{cost.total:.2f} % of a CPU")
            on, off = (median([cost.total for cost in costs[side]]) for side in ("on", "off"))
            more = [
                median([getattr(cost, part) for cost in costs["on"]])
                - median([getattr(cost, part) for cost in costs["off"]])
                for part in ("worker", "children", "server")
            ]
            rows.append([f"{JOBS} {label}", off, on, on - off, *more])
    headings = ("jobs", "off, % of a CPU", "on, % of a CPU", "difference", "worker", "children", "server")
    print("\n" + format_table(headings, rows))
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
