"""The number of worker processes follows the threads that jobs ask for, as an autoscaler makes it follow.

With `-s` the curve of the load is printed.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.features.scaling.rows import ScalingSignals, summarize
from tests.support import eventually
from tests.support.real_service import RunningService, ServiceJobs, ServiceStarter, query_rows

THREADS = 3  # of a process
MAX_PROCESSES = 3
TARGET_WAIT_SEC = 2.0
MIN_COOLDOWN_SEC = 3.0  # or twice as long as a process takes to start
INTERVAL_SEC = 0.5
GRACE_SEC = 30
MEASURED_SEC = 3.0  # of a wave, after one cool-down
JOBS_PER_SEC = 9  # of a wave: between four and five threads, far from what another number of processes has
RUN_SEC, LONG_RUN_SEC = 0.5, 7.0


@dataclass(frozen=True)
class Point:
    """What the autoscaler saw, and what it decided."""

    sec: float
    wanted_threads: int
    processes: int
    running: int
    waiting: int
    wait_p95_sec: float  # of the jobs that started since the last cool-down


class Autoscaler:
    """Adds processes at once, and removes one when fewer would have been enough during the whole cool-down."""

    def __init__(self, run: ServiceStarter, signals: ScalingSignals, dsn: str) -> None:
        self.cooldown_sec = MIN_COOLDOWN_SEC
        self._run, self._signals, self._dsn = run, signals, dsn
        self._wanted: deque[tuple[float, int]] = deque()
        self._began_at = time.monotonic()
        self._next_at = 0.0
        self.processes: list[RunningService] = []
        self.stopped: list[RunningService] = []
        self.curve: list[Point] = []

    def step(self) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + INTERVAL_SEC
        scaling = summarize(self._signals.read(), TARGET_WAIT_SEC)
        count = min(MAX_PROCESSES, max(1, math.ceil(scaling.wanted_threads / THREADS)))
        self._wanted.append((now, count))
        while self._wanted[0][0] < now - self.cooldown_sec:
            self._wanted.popleft()
        while len(self.processes) < count:
            workers = f'[{{"queue": "q", "concurrency": {THREADS}}}]'
            self.processes.append(self._run("worker", WORKERS_JSON=workers, DL_SHUTDOWN_GRACE_SEC=str(GRACE_SEC)))
        if len(self.processes) > max(wanted for _, wanted in self._wanted):
            process = self.processes.pop()
            process.process.signal(signal.SIGTERM)
            self.stopped.append(process)
        running, waiting, p95 = query_rows(
            self._dsn,
            "SELECT count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'queued'),"
            "       coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at))"
            "                FILTER (WHERE started_at > clock_timestamp() - make_interval(secs => %s)), 0)::float8"
            "  FROM dl_jobs WHERE lock_key NOT LIKE 'one-%%'",
            self.cooldown_sec,
        )[0]
        sec = round(now - self._began_at, 1)
        self.curve.append(Point(sec, scaling.wanted_threads, len(self.processes), running, waiting, round(p95, 2)))


def direction_changes(curve: list[Point]) -> int:
    counts = [point.processes for point in curve]
    steps = [after - before for before, after in pairwise(counts) if after != before]
    return sum(before * after < 0 for before, after in pairwise(steps))


def format_curve(curve: list[Point]) -> str:
    lines = [f"{'sec':>6} {'wanted':>6} {'processes':>9} {'running':>7} {'waiting':>7} {'p95 wait':>8}"]
    lines += [
        f"{p.sec:6.1f} {p.wanted_threads:6} {p.processes:9} {p.running:7} {p.waiting:7} {p.wait_p95_sec:8.2f}"
        for p in curve
    ]
    return "\n".join(lines)


def wait_p95_sec(dsn: str, jobs: list[str]) -> float:
    ((p95,),) = query_rows(
        dsn,
        "SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at))::float8"
        "  FROM dl_jobs WHERE job_id = ANY (%s::uuid[])",
        jobs,
    )
    return float(p95)


class Wave:
    """A step of load, with jobs of one key that ask for one thread; at its end long jobs, which scaling in meets."""

    def __init__(self, scaler: Autoscaler, jobs: ServiceJobs) -> None:
        self._scaler, self._jobs = scaler, jobs
        self._began_at = time.monotonic()
        self._ready_at: float | None = None  # when the processes that were added are
        self.steady: list[str] = []
        self.measured: list[str] = []  # those made one cool-down after that
        self.others: list[str] = []

    def play(self) -> list[str]:
        """Return all jobs, once the last are made."""
        self.others += self._jobs.insert(count=5, key=f"one-{self._began_at}", seconds=0.1)
        eventually(self._is_over, 120, lambda: f"{self._scaler.curve[-1]}", interval_sec=0.05)
        eventually(self._has_ended, 60, interval_sec=0.05)  # or the long ones would be a second rise of the load
        self.others += self._jobs.insert(count=3, seconds=LONG_RUN_SEC)
        return [*self.steady, *self.others]

    def _has_ended(self) -> bool:
        self._scaler.step()
        return self._jobs.status_counts().keys() == {"succeeded"}

    def _is_over(self) -> bool:
        self._scaler.step()
        now, processes = time.monotonic(), self._scaler.processes
        if self._ready_at is None and len(processes) > 1 and all(p.log_lines("listener.connected") for p in processes):
            self._ready_at = now
        steady_at = None if self._ready_at is None else self._ready_at + self._scaler.cooldown_sec
        due = int((now - self._began_at) * JOBS_PER_SEC) - len(self.steady)
        if due > 0:
            made = self._jobs.insert(count=due, seconds=RUN_SEC)
            self.steady += made
            self.measured += [] if steady_at is None or now < steady_at else made
        return steady_at is not None and now > steady_at + MEASURED_SEC


@pytest.mark.full
def test_processes_follow_the_load_without_restarting_jobs(run: ServiceStarter, jobs: ServiceJobs):
    waves: list[tuple[list[Point], float]] = []
    made: list[str] = []
    with closing(Pool(jobs.dsn, size=1, overflow=1)) as pool:
        scaler = Autoscaler(run, ScalingSignals(pool), jobs.dsn)
        scaler.step()
        started_at = time.monotonic()
        scaler.processes[0].wait_until_ready()
        scaler.cooldown_sec = max(MIN_COOLDOWN_SEC, 2 * (time.monotonic() - started_at))
        for _ in range(2):
            first = len(scaler.curve) - 1
            wave = Wave(scaler, jobs)
            made += wave.play()

            def is_idle(count: int = len(made)) -> bool:
                scaler.step()
                return jobs.status_counts().get("succeeded") == count and len(scaler.processes) == 1

            eventually(is_idle, 120, lambda: f"{jobs.status_counts()} {scaler.curve[-1]}", interval_sec=0.1)
            waves.append((scaler.curve[first:], wait_p95_sec(jobs.dsn, wave.measured)))
        exits = [process.process.wait(60) for process in scaler.stopped]
    sys.stdout.write(f"\n{format_curve(scaler.curve)}\n")

    for curve, p95 in waves:
        sys.stdout.write(
            f"p95 wait one cool-down after the start: {p95:.2f} s; changes of direction: {direction_changes(curve)}\n"
        )
        assert p95 <= TARGET_WAIT_SEC
        assert max(point.processes for point in curve) > 1
        assert direction_changes(curve) <= 1, [point.processes for point in curve]
    assert set(exits) == {0}
    assert all(process.check_clean_exit() for process in scaler.stopped)
    # No attempt was used up by scaling, and no job was restarted: all had less than the grace to go.
    assert {jobs.row(job) for job in made} == {("succeeded", 1)}
    starts = query_rows(jobs.dsn, "SELECT job_id FROM dl_job_events WHERE kind = 'picked'")
    assert len(starts) == len(set(starts)) == len(made)
    jobs.check_invariants()
