"""A model of one PostgreSQL and its workers: cores, the flush of the WAL, a generator, claimers, settlers and vacuum.

What each part costs is measured (`benchmarks.simulate --measure`); the model has the queues in between.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import simpy

from workers.maintenance import rest_sec

VACUUM_INTERVAL_SEC = 5.0
_SLICE_SEC = 0.004  # then another process may have the core, at a tick of a kernel with 250 a second
_GIL_SLICE_SEC = 0.005  # then another thread of the worker may have the interpreter
_MAX_BATCH = 500  # outcomes that are settled at once
_STATISTICS_BATCH, _STATISTICS_IDLE_SEC = 10_000, 2.0  # events; and without so many
_PREFETCH_PER_THREAD, _MAX_PREFETCH = 40, 400
_MIN_KEPT_UP = 0.98  # fewer jobs done than were due: saturated
_SLOWEST, _FASTEST, _MAX_RATIO = 500.0, 64_000.0, 1.04  # jobs a second: where saturation is looked for

Process = Generator[Any, Any, None]
Jobs = list[tuple[float, int]]  # when jobs were due, and how many were due then


@dataclass(frozen=True)
class StatementCost:
    """CPU for a group of jobs, or time where noted: of the group, and of each job in it."""

    fixed_us: float
    per_job_us: float

    def total_sec(self, jobs: int) -> float:
        return (self.fixed_us + self.per_job_us * jobs) / 1e6

    @classmethod
    def from_two_sizes(cls, small: tuple[float, float], large: tuple[float, float]) -> StatementCost:
        """Each is a number of jobs, and the microseconds of a group with that many."""
        per_job_us = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - per_job_us * small[0]), per_job_us)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a machine needs for each part of a job's life, and when that was measured."""

    measured_at: str
    cores: int
    saturation: float  # jobs a second in groups of 20 that a worker process on the same cores keeps up with
    enqueue: StatementCost  # with its notification
    claim: StatementCost  # with the statement that unlocks the keys
    settle: StatementCost
    listen_us: float  # of a notification, for each worker process
    python: StatementCost  # of a worker process: for a claim or a settlement, and for each job
    generator: StatementCost  # of the program that enqueues
    flush: StatementCost  # of the WAL: the time, not the CPU, with the wait for a core at its end
    vacuum_us: float  # of a job
    statistics_us: float  # of an event
    events: float  # of a job
    others: float  # the share of the machine that other programs used meanwhile

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Constants:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        costs = {name: StatementCost(**cost) for name, cost in values.items() if isinstance(cost, dict)}
        return cls(**{**values, **costs})


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What differs for some seconds. `flush_sec`: None leaves it. `vacuum_jobs`: how many are vacuumed at its begin."""

    begin_sec: float
    end_sec: float
    rate_factor: float = 1.0
    flush_sec: float | None = None
    vacuum_jobs: int = 0

    def includes(self, at: float) -> bool:
        return self.begin_sec <= at < self.end_sec


@dataclass(frozen=True, kw_only=True)
class Load:
    """Jobs that arrive in groups at random times, and who does them."""

    jobs_per_sec: float
    group: int  # jobs of a statement that enqueues
    cores: int  # of the server
    seconds: float = 20.0
    warm_up_share: float = 0.2  # of the seconds: what was due then is left out of the times
    generators: int = 4  # connections that enqueue
    workers: int = 1  # processes
    threads: int = 8  # of each
    shares_cores: bool = False  # workers and generators run on the server's cores
    has_vacuum: bool = True
    disturbance: Disturbance | None = None
    seed: int = 1

    def rate_at(self, at: float) -> float:
        is_disturbed = self.disturbance is not None and self.disturbance.includes(at)
        return self.jobs_per_sec * (self.disturbance.rate_factor if is_disturbed and self.disturbance else 1.0)


@dataclass(frozen=True)
class Times:
    """When jobs were due, when they ended, and how many: one entry for those of a group that ended together."""

    entries: list[tuple[float, float, int]]

    def due_in(self, begin_sec: float, end_sec: float) -> Times:
        return Times([entry for entry in self.entries if begin_sec <= entry[0] < end_sec])

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.entries)

    @property
    def mean_ms(self) -> float:
        return sum((ended - due) * count for due, ended, count in self.entries) / self.count * 1e3

    def quantile_ms(self, percent: float) -> float:
        """Infinite if there is no job."""
        rank, seen = self.count * percent / 100, 0
        for sec, count in sorted((ended - due, count) for due, ended, count in self.entries):
            seen += count
            if seen >= rank:
                return sec * 1e3
        return float("inf")


@dataclass(frozen=True)
class Result:
    """`core_share`: of the server's cores that was busy. `claims` that got jobs, `settlements`: of a job."""

    times: Times = field(repr=False)
    done_per_sec: float
    core_share: float
    claims: float
    settlements: float
    is_saturated: bool

    @property
    def p99_ms(self) -> float:
        return self.times.quantile_ms(99)


def arrival_times(load: Load) -> Iterator[float]:
    """Yield the times of the groups, in seconds from the beginning: the same for a real load and the model."""
    rng, at = random.Random(load.seed), 0.0
    while (at := at + rng.expovariate(load.rate_at(at) / load.group)) < load.seconds:
        yield at


def keeps_up(load: Load, done_per_sec: float) -> bool:
    """Whether so many jobs ended in the measured time as were due in it: else the queue grew."""
    begin_sec = load.seconds * load.warm_up_share
    due = load.group * sum(at >= begin_sec for at in arrival_times(load))
    return done_per_sec * (load.seconds - begin_sec) >= _MIN_KEPT_UP * due


def find_saturation(load: Load, run: Callable[[Load], float]) -> float:
    """Return the highest rate of arrivals at random times that is kept up with, to 4 %: seven runs.

    `run` returns how many jobs of a load are done in a second.
    """
    low, high = _SLOWEST, _FASTEST
    while high / low > _MAX_RATIO:
        rate = math.sqrt(low * high)
        tried = replace(load, jobs_per_sec=rate)
        low, high = (rate, high) if keeps_up(tried, run(tried)) else (low, rate)
    return low


class JobBuffer:
    """Jobs in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[float, int]] = deque()
        self.count = 0

    def put(self, jobs: Jobs) -> None:
        self._jobs.extend(jobs)
        self.count += sum(size for _, size in jobs)

    def take(self, max_count: int) -> tuple[Jobs, int]:
        """Return the first jobs and their number."""
        taken, left = [], max_count
        while left and self._jobs:
            due_at, size = self._jobs.popleft()
            if size > left:
                self._jobs.appendleft((due_at, size - left))
                size = left
            taken.append((due_at, size))
            left -= size
        self.count -= max_count - left
        return taken, max_count - left


class _Cores:
    """The cores of a machine, which processes use in slices."""

    def __init__(self, env: simpy.Environment, count: int) -> None:
        self._env, self._resource = env, simpy.Resource(env, count)
        self.count, self.busy_sec = count, 0.0

    def compute(self, cpu_sec: float) -> Process:
        while cpu_sec > 0:
            with self._resource.request() as request:
                yield request
                used_sec = min(cpu_sec, _SLICE_SEC)
                yield self._env.timeout(used_sec)
            self.busy_sec += used_sec
            cpu_sec -= used_sec

    def resume(self) -> Process:
        """Wait for a core, as a process does that was woken up."""
        with self._resource.request() as request:
            yield request


class _Disk:
    """The WAL: one flush at a time, for all that wait when it begins. The others need a core to continue."""

    def __init__(
        self, env: simpy.Environment, cores: _Cores, flush: StatementCost, disturbance: Disturbance | None
    ) -> None:
        self._env, self._cores, self._cost, self._disturbance = env, cores, flush, disturbance
        self._waiting: list[tuple[simpy.Event, int]] = []
        self._is_flushing = False

    def commit(self, jobs: int) -> Process:
        flushed = self._env.event()
        self._waiting.append((flushed, jobs))
        if self._is_flushing:
            yield flushed
            yield from self._cores.resume()
        else:
            self._is_flushing = True
            self._env.process(self._flush())
            yield flushed

    def _flush(self) -> Process:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            other, flush_sec = self._disturbance, self._cost.total_sec(sum(jobs for _, jobs in batch))
            if other is not None and other.flush_sec is not None and other.includes(self._env.now):
                flush_sec = other.flush_sec
            yield self._env.timeout(flush_sec)
            for flushed, _ in batch:
                flushed.succeed()
        self._is_flushing = False


class _Model:
    def __init__(self, constants: Constants, load: Load) -> None:
        self.env = simpy.Environment()
        self.constants, self.load = constants, load
        self.server = _Cores(self.env, load.cores)
        self.clients = self.server if load.shares_cores else None
        self.disk = _Disk(self.env, self.server, constants.flush, load.disturbance)
        self.generators = simpy.Resource(self.env, load.generators)
        self.notifying = simpy.Resource(self.env, 1)
        self.ready = JobBuffer()
        self.workers = [_Worker(self) for _ in range(load.workers)]
        self.arrived_count = self.ended_count = self.to_vacuum = self.claim_count = self.settlement_count = 0
        self.aggregated_count = 0.0  # events
        self.done: list[tuple[float, float, int]] = []

    def run(self) -> None:
        self.env.process(self.arrive())
        if self.load.has_vacuum:
            self.env.process(self.vacuum())
        self.env.process(self.aggregate())
        if self.load.disturbance is not None and self.load.disturbance.vacuum_jobs:
            self.env.process(self.catch_up(self.load.disturbance))
        self.env.run(until=self.load.seconds)

    def use_client(self, cpu_sec: float) -> Process:
        """Compute in a program that is not the server."""
        if self.clients is None:
            yield self.env.timeout(cpu_sec)
        else:
            yield from self.clients.compute(cpu_sec)

    def arrive(self) -> Process:
        for at in arrival_times(self.load):
            yield self.env.timeout(at - self.env.now)
            self.env.process(self.enqueue())

    def enqueue(self) -> Process:
        due_at, group = self.env.now, self.load.group
        self.arrived_count += group
        with self.generators.request() as request:
            yield request
            yield from self.use_client(self.constants.generator.total_sec(group))
            yield from self.server.compute(self.constants.enqueue.total_sec(group))
            yield from self.notify_and_commit()
        self.ready.put([(due_at, group)])
        for worker in self.workers:
            self.env.process(worker.listen())

    def notify_and_commit(self) -> Process:
        """Commits that notify hold a lock of the database until they are flushed."""
        with self.notifying.request() as request:
            if not request.triggered:
                yield request
                yield from self.server.resume()
            yield from self.disk.commit(self.load.group)

    def end(self, jobs: Jobs, ended_at: float, count: int) -> None:
        self.done += [(due_at, ended_at, size) for due_at, size in jobs]
        self.ended_count += count
        self.to_vacuum += count

    def vacuum(self) -> Process:
        while True:
            yield self.env.timeout(VACUUM_INTERVAL_SEC)
            jobs, self.to_vacuum = self.to_vacuum, 0
            yield from self.server.compute(self.constants.vacuum_us * jobs / 1e6)

    def aggregate(self) -> Process:
        """Make statistics of events in batches, with rests of nine times as long, less the later they are."""
        while True:
            events = min(_STATISTICS_BATCH, self.ended_count * self.constants.events - self.aggregated_count)
            began = self.env.now
            yield from self.server.compute(self.constants.statistics_us * events / 1e6)
            self.aggregated_count += events
            late_jobs = self.ended_count - self.aggregated_count / max(1e-9, self.constants.events)
            lag_sec = late_jobs / max(1.0, self.ended_count) * self.env.now
            pause_sec = rest_sec(self.env.now - began, lag_sec) if events >= _STATISTICS_BATCH else _STATISTICS_IDLE_SEC
            yield self.env.timeout(max(0.001, pause_sec))

    def catch_up(self, disturbance: Disturbance) -> Process:
        yield self.env.timeout(disturbance.begin_sec)
        yield from self.server.compute(self.constants.vacuum_us * disturbance.vacuum_jobs / 1e6)


class _Worker:
    """A worker process: one claim at a time, threads that share an interpreter, and a settler."""

    def __init__(self, model: _Model) -> None:
        self.model, self.env, self.costs = model, model.env, model.constants
        self.interpreter = simpy.PriorityResource(self.env, 1)
        self.claim_session = simpy.Resource(self.env, 1)  # it has the key locks too
        self.prefetch = min(_MAX_PREFETCH, _PREFETCH_PER_THREAD * model.load.threads)
        self.buffer, self.ended = JobBuffer(), JobBuffer()
        self.may_have_work = self.is_notified = False
        self.signals = {name: self.env.event() for name in ("notified", "claimed", "started", "ended")}
        for process in (self.claim(), self.run_jobs(), self.settle()):
            self.env.process(process)

    def signal(self, name: str) -> None:
        event, self.signals[name] = self.signals[name], self.env.event()
        event.succeed()

    def interpret(self, cpu_sec: float, *, is_next: bool = False) -> Process:
        """Compute in Python: one thread at a time. `is_next`: in the thread that has just ended a job."""
        while cpu_sec > 0:
            with self.interpreter.request(0 if is_next else 1) as request:
                yield request
                used_sec = min(cpu_sec, _GIL_SLICE_SEC)
                yield from self.model.use_client(used_sec)
            cpu_sec -= used_sec

    def listen(self) -> Process:
        yield from self.model.server.compute(self.costs.listen_us / 1e6)
        self.is_notified = True
        self.signal("notified")

    def claim(self) -> Process:
        """Claim after a full claim, when less than half of the prefetched jobs are left, or after a notification.

        A thread without a job reads notifications: all that were prefetched have started.
        """
        ready = self.model.ready
        while True:
            if self.may_have_work:
                while self.buffer.count > self.prefetch // 2:
                    yield self.signals["started"]
            else:
                while self.buffer.count:
                    yield self.signals["started"]
                if not self.is_notified:
                    yield self.signals["notified"]
                self.is_notified = False
            yield from self.interpret(self.costs.python.fixed_us / 2e6, is_next=True)
            with self.claim_session.request() as request:
                yield request
                size = self.model.load.threads + self.prefetch - self.buffer.count
                claimed, count = ready.take(size)
                yield from self.model.server.compute(self.costs.claim.total_sec(count))
                if count:
                    self.model.claim_count += 1
                    yield from self.model.disk.commit(count)
            yield from self.interpret((self.costs.python.fixed_us + self.costs.python.per_job_us * count) / 2e6)
            self.may_have_work = count == size
            self.buffer.put(claimed)
            self.signal("claimed")

    def run_jobs(self) -> Process:
        """All threads together: the one that computes continues until no job is left, or another may compute."""
        job_sec = self.costs.python.per_job_us / 2e6  # the other half was for its claim
        while True:
            if not self.buffer.count:
                yield self.signals["claimed"]
                continue
            with self.interpreter.request(1) as request:
                yield request
                until = self.env.now + _GIL_SLICE_SEC
                while self.buffer.count and self.env.now < until:
                    jobs, count = self.buffer.take(self.model.load.threads)
                    self.signal("started")
                    yield from self.model.use_client(job_sec * count)
                    self.ended.put(jobs)
                    self.signal("ended")

    def settle(self) -> Process:
        """Settle all that have ended. Their keys are unlocked before, while no claim is in progress."""
        python_sec = self.costs.python.fixed_us / 3e6  # before and after either statement
        while True:
            if not self.ended.count:
                yield self.signals["ended"]
                continue
            yield from self.interpret(python_sec)
            jobs, count = self.ended.take(_MAX_BATCH)
            with self.claim_session.request() as request:
                yield request
                yield from self.model.server.resume()
            yield from self.interpret(python_sec)
            cpu_sec = self.costs.settle.total_sec(count)
            yield from self.model.server.compute(cpu_sec / 2)
            ended_at = self.env.now  # each row has the time at which it was reached
            yield from self.model.server.compute(cpu_sec / 2)
            self.model.settlement_count += 1
            self.model.end(jobs, ended_at, count)
            yield from self.model.disk.commit(count)
            yield from self.interpret(python_sec)


def simulate(constants: Constants, load: Load) -> Result:
    """Run the load for its seconds. The warm-up is left out of the times; the same seed gives the same result."""
    model = _Model(constants, load)
    model.run()
    warm_up_sec = load.seconds * load.warm_up_share
    times = Times(model.done)
    return Result(
        times=times.due_in(warm_up_sec, load.seconds),
        done_per_sec=sum(n for _, ended, n in model.done if ended >= warm_up_sec) / (load.seconds - warm_up_sec),
        core_share=model.server.busy_sec / (load.cores * load.seconds),
        claims=model.claim_count / max(1, times.count),
        settlements=model.settlement_count / max(1, times.count),
        is_saturated=times.count < _MIN_KEPT_UP * (model.arrived_count - load.group),
    )
