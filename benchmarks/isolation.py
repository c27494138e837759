"""What a process of its own costs a job, against a thread: time to its first line, time in all, memory.

python -m benchmarks.isolation [--runs 30]

Runs a function that returns at once, by each kind of task: in a thread of the worker; as a `call` of DL_TASKS,
which loads its own module alone; as a task of code with isolation="process", which loads all packages. The CPU time is
that of the process and its watchdog, and does not depend on what else the machine does.

Takes half a minute.
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

from app.queue.job import Claimed, Settlement
from pipelines.contract import Pipelines, load, register
from workers.attempt import Attempt, Tools
from workers.threads import clock

_CALL = {"call": "benchmarks.isolation:first_line"}
_MB = 1024


def first_line() -> dict[str, float]:
    """When the job's first line ran, and the memory of its process then."""
    began = clock()
    sizes = memory(os.getpid())
    return {"began": began, **sizes}


if __name__ != "__main__":  # in the process of the job, which loads this module as a package of pipelines
    register("bench.of_code", isolation="process")(first_line)


def memory(pid: int) -> dict[str, float]:
    """Resident, proportional and private size in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"rss": sizes["Rss"] / _MB, "pss": sizes["Pss"] / _MB, "private": private / _MB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    before = os.getloadavg()[0]
    known = Pipelines()
    known.register("bench.of_code", isolation="process")(first_line)
    assert not load(["pipelines"], {"thread": {**_CALL, "isolation": "thread"}, "call": _CALL}, into=known).failures
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load before {before:.2f}, {runs} runs of each\n")
    print(
        "| | first line ms p50 | p95 | whole attempt ms p50 | p95 | CPU ms | RSS MB | PSS MB | private MB |\n"
        + "|---" * 9
        + "|"
    )
    for kind in ("thread", "call", "bench.of_code"):
        tools = Tools(packages=("pipelines", "benchmarks.isolation"), tasks={"call": _CALL} if kind == "call" else {})
        found = [_run(known, kind, tools) for _ in range(runs)]
        cells = [*_spread([f["first"] for f in found]), *_spread([f["whole"] for f in found])]
        cells += [f"{statistics.median(f[name] for f in found):.1f}" for name in ("cpu", "rss", "pss", "private")]
        print(f"| {kind} | {' | '.join(cells)} |")


def _run(known: Pipelines, name: str, tools: Tools) -> dict[str, float]:
    job = Claimed(
        id_text=str(uuid4()), run_text=str(uuid4()), queue="bench", task=name, args_text="{}", lock_key=name,
        key_hash=0, priority=100, attempt=1, max_attempts=1, lease_ttl_sec=3600, producer="bench", progress_text="{}",
        checkpoint_text=None, time_limit_sec=None, retry_text=None, crashes=0,
    )  # fmt: skip
    started, wall, cpu = clock(), time.perf_counter(), _cpu_of_children()
    end = Attempt(job, claimed_at=started, tools=tools).run(known.get(name))
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


def _spread(values: list[float]) -> list[str]:
    ordered = sorted(values)
    return [f"{statistics.median(ordered):.1f}", f"{ordered[int(0.95 * (len(ordered) - 1))]:.1f}"]


if __name__ == "__main__":
    main()
