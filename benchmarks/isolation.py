"""Measures the cost of running a job in a process instead of a thread: start, total time, CPU, memory.

Takes about 2 minutes.

A function that returns at once runs in a worker thread; in a fresh interpreter; and in a process forked by the fork
server. As a `call` of DL_TASKS its process loads only its own module, as a registered task that of its function. The
ways take turns. CPU is that of the worker, the fork server, the watchdog and the process, for the whole attempt, so
that of the first line is less; it depends little on other load. Then a pool of ten threads drains a queue of such jobs,
which settles them and ends their sessions too. Then so many jobs at once wait in processes of their own, and the memory
of all these processes is counted: shared pages in parts (PSS).
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import psutil  # type: ignore[import-untyped]

from benchmarks.first_line import first_line
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, quantile, run_rounds
from dataloader.app.queue.job import ClaimedJob, Settlement
from dataloader.pipelines.contract import Pipelines, load_tasks
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

_MODULE = "benchmarks.first_line"
_TASKS = {"call": f"{_MODULE}:first_line", "wait": f"{_MODULE}:wait_for_file"}
_SETTINGS = AttemptSettings(packages=("dataloader.pipelines", _MODULE), tasks=_TASKS, run_isolated=run_isolated)
_WAYS = {
    "in a thread": ("thread", None),
    "a `call`, fresh interpreter": ("call", False),
    "a `call`, forked": ("call", True),
    "a registered task, fresh interpreter": ("bench.of_code", False),
    "a registered task, forked": ("bench.of_code", True),
}
_FILL = "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', %s, 'key ' || n FROM generate_series(1, %s) n"
_HAS_OPEN_JOBS = "SELECT 1 FROM dl_jobs WHERE status IN ('queued', 'running') LIMIT 1"
_MIB = 2**20
_TIMEOUT_SEC = 300.0


@dataclass(frozen=True)
class Run:
    first_ms: float  # from the start of the attempt to its first line
    whole_ms: float
    cpu_ms: float


class Way:
    """One way to run the task, with a fork server of its own if it needs one."""

    def __init__(self, pipelines: Pipelines, task: str, server: ForkServer) -> None:
        self._pipelines, self._task, self._server = pipelines, task, server
        self._settings = replace(_SETTINGS, fork_server=server)

    def run(self) -> Run:
        cpu, wall = cpu_sec(self._server), time.perf_counter()
        attempt, started = make_attempt(self._task, self._settings), clock()
        end = attempt.run(self._pipelines.get(self._task))
        whole = time.perf_counter() - wall
        assert isinstance(end, Settlement), end
        assert isinstance(end.result, float), end.error
        return Run((end.result - started) * 1000, whole * 1000, (cpu_sec(self._server) - cpu) * 1000)


def cpu_sec(server: ForkServer) -> float:
    """Of this process, the fork server, and the processes that both have waited for."""
    pids = [None] if server.pid is None else [None, server.pid]
    return float(sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in pids))


def make_attempt(task: str, settings: AttemptSettings, **args: str) -> Attempt:
    job = ClaimedJob(
        id_text=str(uuid4()), run_text=str(uuid4()), queue="bench", task=task, args_text=json.dumps(args),
        lock_key=task, key_hash=0, priority=100, attempt=1, max_attempts=1, lease_ttl_sec=3600, producer="bench",
        progress_text="{}", checkpoint_text=None, time_limit_sec=None, retry_text=None, crashes=0,
    )  # fmt: skip
    return Attempt(job, claimed_at=clock(), settings=settings)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=30)
    parser.add_argument("--jobs", type=int, default=200, help="jobs of the queue that is drained (default 200)")
    parser.add_argument("--children", type=int, nargs="*", default=[0, 1, 10, 100], help="processes at once")
    options = parser.parse_args(argv)
    pipelines = make_pipelines()
    with benchmark_server() as (server_dsn, _):
        print(describe_environment(server_dsn))
        headings = ["", "first line p50 ms", "p95 ms", "ratio", "whole p50 ms", "CPU ms", "ratio"]
        print(format_table(headings, measure_starts(pipelines, options.rounds)))
        headings = ["a pool of 10 threads", "jobs/s", "ratio", "CPU ms a job", "ratio"]
        print(f"\n{format_table(headings, measure_drains(pipelines, server_dsn, options.jobs))}")
    headings = ["processes at once", "fork server MiB", "each MiB", "forked MiB", "fresh MiB", "ratio"]
    print(f"\n{format_table(headings, [memory_row(pipelines, count) for count in options.children])}")


def make_pipelines() -> Pipelines:
    pipelines = Pipelines()
    in_thread = {"thread": {"call": _TASKS["call"], "isolation": "thread"}}
    failures = load_tasks([], {**_TASKS, **in_thread}, known_tasks=pipelines)
    assert not failures, failures
    pipelines.register("bench.of_code", isolation="process")(first_line)
    return pipelines


def measure_starts(pipelines: Pipelines, rounds: int) -> list[list[Cell]]:
    with ExitStack() as stack:
        ways = {}
        for name, (task, is_forked) in _WAYS.items():
            server = ForkServer() if is_forked else NO_FORK_SERVER
            stack.callback(server.close)
            ways[name] = Way(pipelines, task, server)
        results = run_rounds({name: way.run for name, way in ways.items()}, rounds, warm_up=1)
    fresh = {task: results[name] for name, (task, is_forked) in _WAYS.items() if is_forked is False}
    return [
        [
            name,
            median([run.first_ms for run in runs]),
            quantile([run.first_ms for run in runs], 95),
            _ratio([run.first_ms for run in runs], [run.first_ms for run in fresh[task]]) if is_forked else None,
            median([run.whole_ms for run in runs]),
            _mean([run.cpu_ms for run in runs]),  # its clock has steps of 10 ms
            format_ratio(_mean([run.cpu_ms for run in runs]) / _mean([run.cpu_ms for run in fresh[task]]))
            if is_forked
            else None,
        ]
        for (name, runs), (task, is_forked) in zip(results.items(), _WAYS.values(), strict=True)
    ]


def _ratio(values: Sequence[float], others: Sequence[float]) -> str:
    """The median of the rounds' ratios."""
    return format_ratio(median([value / other for value, other in zip(values, others, strict=True)]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ── a pool ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_drains(pipelines: Pipelines, server_dsn: str, count: int) -> list[list[Cell]]:
    """The thread gets twenty times as many jobs."""
    results = {}
    for name, (task, is_forked) in _WAYS.items():
        with fresh_database(server_dsn) as dsn:
            server = ForkServer() if is_forked else NO_FORK_SERVER
            results[name] = drain(pipelines, dsn, task, server, count * (20 if is_forked is None else 1))
    rate, cpu_ms = results["in a thread"]
    return [
        [name, jobs, format_ratio(jobs / rate), cpu, format_ratio(cpu / cpu_ms)]
        for name, (jobs, cpu) in results.items()
    ]


def drain(pipelines: Pipelines, dsn: str, task: str, server: ForkServer, count: int) -> tuple[float, float]:
    """Return jobs per second and the CPU milliseconds of a job, without the database's."""
    options = PoolOptions(dsn=dsn, queues={"bench": 10}, attempts=replace(_SETTINGS, fork_server=server))
    pool = WorkerPool(pipelines, options)
    pool.start()
    try:
        _run_jobs(dsn, task, 10)
        cpu, started = cpu_sec(server), clock()
        _run_jobs(dsn, task, count)
        return count / (clock() - started), (cpu_sec(server) - cpu) * 1000 / count
    finally:
        pool.stop(0.0)


def _run_jobs(dsn: str, task: str, count: int) -> None:
    query_value(dsn, _FILL, task, count)
    deadline = clock() + _TIMEOUT_SEC
    while query_value(dsn, _HAS_OPEN_JOBS):
        assert clock() < deadline, "the jobs do not end"
        time.sleep(0.02)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory_row(pipelines: Pipelines, count: int) -> list[Cell]:
    server = ForkServer()
    try:
        Way(pipelines, "call", server).run()
        with waiting_processes(pipelines, count, server) as pids:
            assert server.pid is not None
            in_server, in_children = memory([server.pid]), memory(pids)
    finally:
        server.close()
    with waiting_processes(pipelines, count, NO_FORK_SERVER) as pids:
        fresh = memory(pids)
    forked = in_server + in_children
    if not count:
        return ["0", in_server, None, forked, None, None]
    return [str(count), in_server, in_children / count, forked, fresh, format_ratio(forked / fresh)]


@contextmanager
def waiting_processes(pipelines: Pipelines, count: int, server: ForkServer) -> Iterator[list[int]]:
    """The watchdogs and the processes of so many attempts that run at once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "go"
        settings = replace(_SETTINGS, fork_server=server)
        attempts = [make_attempt("wait", settings, file=str(file)) for _ in range(count)]
        task = pipelines.get("wait")
        threads = [threading.Thread(target=attempt.run, args=(task,)) for attempt in attempts]
        for thread in threads:
            thread.start()
        deadline = clock() + _TIMEOUT_SEC
        while not all((attempt.reported.progress or {}).get("pid") for attempt in attempts):
            assert clock() < deadline, "the processes do not start"
            time.sleep(0.1)
        progress = [attempt.reported.progress or {} for attempt in attempts]
        try:
            yield [values[name] for values in progress for name in ("pid", "watchdog")]
        finally:
            file.touch()
            for thread in threads:
                thread.join()


def memory(pids: Sequence[int]) -> float:
    """The proportional size of processes in MiB: a page that n processes share counts 1/n in each."""
    return float(sum(psutil.Process(pid).memory_full_info().pss for pid in pids)) / _MIB


if __name__ == "__main__":
    main()
