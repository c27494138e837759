"""Measures the cost of running a job in a process instead of a thread: start, total time, CPU, memory.

python -m benchmarks.isolation [--runs 30]

Takes half a minute.

Runs a function that returns at once in three ways: in a worker thread; as a `call` of DL_TASKS, whose process loads
only its own module; and as a registered task with isolation="process", whose process loads all packages. The CPU time
is that of the process and its watchdog; it does not depend on other load.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from uuid import uuid4

from dataloader.app.queue.job import ClaimedJob, Settlement
from dataloader.pipelines.contract import Pipelines, load_tasks, register
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.run import run_isolated

_CALL = {"call": "benchmarks.isolation:first_line"}
_KB_PER_MB = 1024


def first_line() -> dict[str, float]:
    """Return when the job's first line ran, with the memory of its process."""
    began = clock()
    sizes = memory(os.getpid())
    return {"began": began, **sizes}


if __name__ != "__main__":  # in the process of the job, which loads this module as a package of pipelines
    register("bench.of_code", isolation="process")(first_line)


def memory(pid: int) -> dict[str, float]:
    """Return the resident, proportional and private size in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"rss": sizes["Rss"] / _KB_PER_MB, "pss": sizes["Pss"] / _KB_PER_MB, "private": private / _KB_PER_MB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    before = os.getloadavg()[0]
    pipelines = Pipelines()
    pipelines.register("bench.of_code", isolation="process")(first_line)
    assert not load_tasks(
        ["pipelines"], {"thread": {**_CALL, "isolation": "thread"}, "call": _CALL}, known_tasks=pipelines
    )
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load before {before:.2f}, {runs} runs of each\n")
    print(
        "| | first line ms p50 | p95 | whole attempt ms p50 | p95 | CPU ms | RSS MB | PSS MB | private MB |\n"
        + "|---" * 9
        + "|"
    )
    for kind in ("thread", "call", "bench.of_code"):
        tools = AttemptSettings(
            packages=("pipelines", "benchmarks.isolation"),
            tasks={"call": _CALL} if kind == "call" else {},
            run_isolated=run_isolated,
        )
        runs_measured = [_run(pipelines, kind, tools) for _ in range(runs)]
        cells = [
            *_format_quantiles([f["first"] for f in runs_measured]),
            *_format_quantiles([f["whole"] for f in runs_measured]),
        ]
        cells += [
            f"{statistics.median(f[name] for f in runs_measured):.1f}" for name in ("cpu", "rss", "pss", "private")
        ]
        print(f"| {kind} | {' | '.join(cells)} |")


def _run(pipelines: Pipelines, name: str, settings: AttemptSettings) -> dict[str, float]:
    job = ClaimedJob(
        id_text=str(uuid4()), run_text=str(uuid4()), queue="bench", task=name, args_text="{}", lock_key=name,
        key_hash=0, priority=100, attempt=1, max_attempts=1, lease_ttl_sec=3600, producer="bench", progress_text="{}",
        checkpoint_text=None, time_limit_sec=None, retry_text=None, crashes=0,
    )  # fmt: skip
    started, wall, cpu = clock(), time.perf_counter(), _cpu_of_children()
    end = Attempt(job, claimed_at=started, settings=settings).run(pipelines.get(name))
    whole = time.perf_counter() - wall
    assert isinstance(end, Settlement), end
    assert isinstance(end.result, dict), end.error
    return {
        **end.result,
        "first": (end.result["began"] - started) * 1000,
        "whole": whole * 1000,
        "cpu": (_cpu_of_children() - cpu) * 1000,
    }


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _format_quantiles(values: list[float]) -> list[str]:
    ordered = sorted(values)
    return [f"{statistics.median(ordered):.1f}", f"{ordered[int(0.95 * (len(ordered) - 1))]:.1f}"]


if __name__ == "__main__":
    main()
