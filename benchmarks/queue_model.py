"""A model of one PostgreSQL and its workers: cores, the flush of the WAL, claimers, settlers and vacuum.

What each statement costs is measured (`benchmarks.simulate --measure`); the model has the queues in between.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import simpy

from benchmarks.rounds import quantile

_SLICE_SEC = 0.004  # then another process may have the core
_VACUUM_EVERY_JOBS = 2_000
_WARM_UP_SHARE = 0.2
_MIN_KEPT_UP = 0.97  # fewer jobs done than offered: saturated

Process = Generator[Any, Any, None]


@dataclass(frozen=True)
class StatementCost:
    """CPU of the server for a statement: of the statement, and of each job in it."""

    fixed_us: float
    per_job_us: float

    def cpu_sec(self, jobs: int) -> float:
        return (self.fixed_us + self.per_job_us * jobs) / 1e6

    @classmethod
    def from_two_sizes(cls, small: tuple[int, float], large: tuple[int, float]) -> StatementCost:
        """Each is a number of jobs, and the microseconds of a statement with that many."""
        per_job_us = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - per_job_us * small[0]), per_job_us)


@dataclass(frozen=True)
class Constants:
    """What a machine needs for each part of a job's life, and when that was measured."""

    measured_at: str
    cores: int
    enqueue: StatementCost
    claim: StatementCost
    settle: StatementCost
    flush_sec: float  # one flush of the WAL
    vacuum_us: float  # of a job
    python_us: float  # of a job, in the worker

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Constants:
        values = json.loads(path.read_text(encoding="utf-8"))
        for name in ("enqueue", "claim", "settle"):
            values[name] = StatementCost(**values[name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Jobs that arrive in groups at random times, and who does them."""

    jobs_per_sec: float
    group: int  # jobs of a statement that enqueues
    cores: int  # of the server
    seconds: float = 20.0
    workers: int = 1  # processes
    max_claim: int = 400
    shares_cores: bool = False  # workers run on the server's cores
    seed: int = 1


@dataclass(frozen=True)
class Result:
    done_per_sec: float
    p50_ms: float
    p99_ms: float
    core_share: float  # of the server's cores that was busy
    is_saturated: bool


class _Model:
    def __init__(self, constants: Constants, load: Load) -> None:
        self.env = simpy.Environment()
        self.constants, self.load = constants, load
        self.cores = simpy.Resource(self.env, load.cores)
        self.ready: deque[float] = deque()  # when each job was created
        self.idle_workers: deque[simpy.Event] = deque()
        self.unflushed: list[simpy.Event] = []
        self.is_flushing = False
        self.busy_sec = 0.0
        self.arrived_count = 0
        self.done: list[tuple[float, float]] = []  # when each job was created, and when it ended
        self.to_vacuum = 0

    def compute(self, cpu_sec: float) -> Process:
        """Use a core of the server, which others may get in between."""
        while cpu_sec > 0:
            with self.cores.request() as request:
                yield request
                used_sec = min(cpu_sec, _SLICE_SEC)
                yield self.env.timeout(used_sec)
            self.busy_sec += used_sec
            cpu_sec -= used_sec

    def commit(self) -> Process:
        """Wait for a flush of the WAL that begins from now on; one flush is for all that wait."""
        flushed = self.env.event()
        self.unflushed.append(flushed)
        if not self.is_flushing:
            self.is_flushing = True
            self.env.process(self._flush())
        yield flushed

    def _flush(self) -> Process:
        while self.unflushed:
            batch, self.unflushed = self.unflushed, []
            yield self.env.timeout(self.constants.flush_sec)
            for flushed in batch:
                flushed.succeed()
        self.is_flushing = False

    def arrive(self) -> Process:
        rng, load = random.Random(self.load.seed), self.load
        while True:
            yield self.env.timeout(rng.expovariate(load.jobs_per_sec / load.group))
            self.arrived_count += load.group
            self.env.process(self._enqueue())

    def _enqueue(self) -> Process:
        created_at = self.env.now
        yield from self.compute(self.constants.enqueue.cpu_sec(self.load.group))
        yield from self.commit()
        self.ready.extend([created_at] * self.load.group)
        while self.idle_workers:
            self.idle_workers.popleft().succeed()

    def work(self) -> Process:
        """A worker process: it claims and runs jobs, while its settler writes their ends."""
        settling = simpy.Store(self.env)
        self.env.process(self._settle(settling))
        while True:
            if not self.ready:
                woken = self.env.event()
                self.idle_workers.append(woken)
                yield woken
                continue
            claimed = [self.ready.popleft() for _ in range(min(len(self.ready), self.load.max_claim))]
            yield from self.compute(self.constants.claim.cpu_sec(len(claimed)))
            yield from self.commit()
            python_sec = self.constants.python_us * len(claimed) / 1e6
            if self.load.shares_cores:
                yield from self.compute(python_sec)
            else:
                yield self.env.timeout(python_sec)
            settling.put(claimed)

    def _settle(self, settling: simpy.Store) -> Process:
        while True:
            jobs = list((yield settling.get()))
            while settling.items:
                jobs += yield settling.get()
            yield from self.compute(self.constants.settle.cpu_sec(len(jobs)))
            self.done += [(created_at, self.env.now) for created_at in jobs]
            self.to_vacuum += len(jobs)
            if self.to_vacuum >= _VACUUM_EVERY_JOBS:
                self.env.process(self.compute(self.constants.vacuum_us * self.to_vacuum / 1e6))
                self.to_vacuum = 0
            yield from self.commit()


def simulate(constants: Constants, load: Load) -> Result:
    """Run the load for its seconds. The first fifth is left out of the times; the same seed gives the same result."""
    model = _Model(constants, load)
    model.env.process(model.arrive())
    for _ in range(load.workers):
        model.env.process(model.work())
    model.env.run(until=load.seconds)
    warm_up_sec = load.seconds * _WARM_UP_SHARE
    times_ms = [(ended - created) * 1e3 for created, ended in model.done if created >= warm_up_sec] or [float("inf")]
    done_count = sum(ended >= warm_up_sec for _, ended in model.done)
    return Result(
        done_per_sec=done_count / (load.seconds - warm_up_sec),
        p50_ms=quantile(times_ms, 50),
        p99_ms=quantile(times_ms, 99),
        core_share=model.busy_sec / (load.cores * load.seconds),
        is_saturated=len(model.done) < _MIN_KEPT_UP * (model.arrived_count - load.group),
    )
