"""Signals for autoscalers: how many threads the jobs of each queue ask for, and how long they wait."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dataloader.app.db.statements import Executor
from dataloader.app.queue.queues import MAX_QUEUES, QueueState
from dataloader.app.state.statistics import JobCounts, Statistics

DEFAULT_TARGET_WAIT_SEC = 60.0
DUE_SOON_SEC = 300.0
MAX_READY = 10_000  # counted in each queue
_MAX_SAMPLED = 1_000  # ready jobs of a queue whose keys and limits are read: it asks for no more threads at a time
_WAIT_PERIOD_MIN = 5


@dataclass(frozen=True, kw_only=True)
class QueueScaling:
    """What an autoscaler needs to know of a queue. `wanted_threads`: the running jobs, and the threads that start the
    ready ones within the target wait; jobs that are blocked, limited or wait for other jobs ask for none.
    `ready` is counted up to ten thousand. `due_soon`: scheduled jobs, and schedules that fire, within five minutes.
    `busy_threads` and `idle_threads` are of live processes, idle ones of those that claim; `draining` processes do not.
    """

    queue: str
    wanted_threads: int
    running: int
    ready: int
    oldest_ready_sec: float
    wait_p95_sec: float | None  # of the jobs that started in the last five minutes
    run_median_sec: float | None
    due_soon: int
    busy_threads: int
    idle_threads: int
    draining: int


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The sums over `queues`, and their longest waits."""

    target_wait_sec: float
    wanted_threads: int
    oldest_ready_sec: float
    wait_p95_sec: float | None
    due_soon: int
    busy_threads: int
    idle_threads: int
    queues: list[QueueScaling]


@dataclass(frozen=True)
class LimitRoom:
    """What a ready job takes of a limit, and what running jobs leave of it."""

    name: str
    weight: int
    room: int


@dataclass(frozen=True)
class ReadySample:
    """The number of jobs with the same limits that a claim could start, of those that it sees first."""

    jobs: int
    limits: tuple[LimitRoom, ...]


@dataclass(frozen=True, kw_only=True)
class QueueReading:
    """A queue as it was read."""

    queue: str
    state: QueueState
    concurrency: int | None
    running: int
    busy: int
    claiming: int  # running jobs of processes that claim
    threads: int  # of processes that claim
    draining: int
    ready: int
    due_soon: int
    samples: tuple[ReadySample, ...]
    run_median_sec: float | None
    wait_p95_sec: float | None
    oldest_ready_sec: float


class ScalingSignals:
    """Reads the signals. Every call queries the database; callers cache the result."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._counts, self._statistics = JobCounts(executor), Statistics(executor)

    def read(self) -> list[QueueReading]:
        """The queues by name."""
        parameters = {
            "max_queues": MAX_QUEUES,
            "max_exact": MAX_READY,
            "max_sampled": _MAX_SAMPLED,
            "soon_sec": DUE_SOON_SEC,
        }
        rows = self._execute("scaling", parameters)
        oldest, hour = self._counts.oldest_ready(), self._statistics.by_queue("1h")
        recent = self._statistics.last_minutes(_WAIT_PERIOD_MIN)
        readings = []
        for name, state, concurrency, running, busy, claiming, age_sec, threads, draining, ready, due, samples in rows:
            median_sec = hour[name].run_time.p50 if name in hour else None
            readings.append(
                QueueReading(
                    queue=name,
                    state=QueueState(state),
                    concurrency=concurrency,
                    running=running,
                    busy=busy,
                    claiming=claiming,
                    threads=threads,
                    draining=draining,
                    ready=ready,
                    due_soon=due,
                    samples=tuple(_parse_sample(sample) for sample in json.loads(samples or "[]")),
                    run_median_sec=age_sec if median_sec is None else median_sec,
                    wait_p95_sec=recent[name].wait_time.p95 if name in recent else None,
                    oldest_ready_sec=round(oldest.get(name, 0.0), 3),
                )
            )
        return readings


def _parse_sample(sample: Mapping[str, Any]) -> ReadySample:
    return ReadySample(sample["jobs"], tuple(LimitRoom(**limit) for limit in sample["limits"] or ()))


def summarize(readings: Iterable[QueueReading], target_wait_sec: float = DEFAULT_TARGET_WAIT_SEC) -> Scaling:
    """Compute the wanted threads; queues that share a limit share its room."""
    room: dict[str, int] = {}
    queues = [_queue_scaling(reading, target_wait_sec, room) for reading in readings]
    return Scaling(
        target_wait_sec=target_wait_sec,
        wanted_threads=sum(queue.wanted_threads for queue in queues),
        oldest_ready_sec=max((queue.oldest_ready_sec for queue in queues), default=0.0),
        wait_p95_sec=max((sec for queue in queues if (sec := queue.wait_p95_sec) is not None), default=None),
        due_soon=sum(queue.due_soon for queue in queues),
        busy_threads=sum(queue.busy_threads for queue in queues),
        idle_threads=sum(queue.idle_threads for queue in queues),
        queues=queues,
    )


def _queue_scaling(reading: QueueReading, target_wait_sec: float, room: dict[str, int]) -> QueueScaling:
    wanted = reading.running
    if reading.state is QueueState.OPEN:
        # Without a known run time each ready job asks for a thread.
        share = 1.0 if reading.run_median_sec is None else min(1.0, reading.run_median_sec / target_wait_sec)
        in_time = max(1, math.ceil(reading.ready * share))
        wanted += min(in_time, _startable(reading.samples, room))
        if reading.concurrency is not None:
            wanted = max(reading.running, min(wanted, reading.concurrency))
    return QueueScaling(
        queue=reading.queue,
        wanted_threads=wanted,
        running=reading.running,
        ready=reading.ready,
        oldest_ready_sec=reading.oldest_ready_sec,
        wait_p95_sec=reading.wait_p95_sec,
        run_median_sec=None if reading.run_median_sec is None else round(reading.run_median_sec, 3),
        due_soon=reading.due_soon,
        busy_threads=reading.busy,
        idle_threads=max(0, reading.threads - reading.claiming),
        draining=reading.draining,
    )


def _startable(samples: Iterable[ReadySample], room: dict[str, int]) -> int:
    """How many jobs the limits let start at once. Takes their part of `room`."""
    startable = 0
    for sample in samples:
        jobs = sample.jobs
        for limit in sample.limits:
            jobs = min(jobs, max(0, room.setdefault(limit.name, limit.room)) // limit.weight)
        for limit in sample.limits:
            room[limit.name] -= jobs * limit.weight
        startable += jobs
    return startable
