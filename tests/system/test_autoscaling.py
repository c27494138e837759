"""The number of worker processes follows the threads that jobs ask for, as an autoscaler makes it follow."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from contextlib import closing
from itertools import pairwise

import pytest

from app.admin.scaling import ScalingSignals, summarize
from app.db.pool import Pool
from tests.support import eventually
from tests.support.real_service import RunningService, ServiceJobs, ServiceStarter

THREADS = 2  # of a process
MAX_PROCESSES = 3
TARGET_WAIT_SEC = 1.0
COOLDOWN_SEC = 3.0
INTERVAL_SEC = 0.5


class Autoscaler:
    """Adds processes at once, and removes one when fewer would have been enough during the whole cool-down."""

    def __init__(self, run: ServiceStarter, signals: ScalingSignals) -> None:
        self._run, self._signals = run, signals
        self._wanted: deque[tuple[float, int]] = deque()
        self._next_at = 0.0
        self.processes: list[RunningService] = []
        self.stopped: list[RunningService] = []
        self.counts: list[int] = []  # of processes, each different from the one before

    def step(self) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + INTERVAL_SEC
        wanted = math.ceil(summarize(self._signals.read(), TARGET_WAIT_SEC).wanted_threads / THREADS)
        self._wanted.append((now, min(MAX_PROCESSES, max(1, wanted))))
        while self._wanted[0][0] < now - COOLDOWN_SEC:
            self._wanted.popleft()
        least = max(count for _, count in self._wanted)
        while len(self.processes) < self._wanted[-1][1]:
            workers = f'[{{"queue": "q", "concurrency": {THREADS}}}]'
            self.processes.append(self._run("worker", WORKERS_JSON=workers, DL_SHUTDOWN_GRACE_SEC="30"))
        if len(self.processes) > least:
            process = self.processes.pop()
            process.process.signal(signal.SIGTERM)
            self.stopped.append(process)
        if self.counts[-1:] != [len(self.processes)]:
            self.counts.append(len(self.processes))

    def direction_changes(self) -> int:
        steps = [after - before for before, after in pairwise(self.counts)]
        return sum(before * after < 0 for before, after in pairwise(steps))


@pytest.mark.full
def test_processes_follow_the_load_without_restarting_jobs(run: ServiceStarter, jobs: ServiceJobs):
    with closing(Pool(jobs.dsn, size=1, overflow=1)) as pool:
        scaler = Autoscaler(run, ScalingSignals(pool))
        scaler.step()
        scaler.processes[0].wait_until_ready()
        for wave in (1, 2):
            scaler.counts = scaler.counts[-1:]
            made = jobs.insert(count=16, seconds=0.5) + jobs.insert(count=4, seconds=2.5)
            blocked = jobs.insert(count=3, key=f"one-{wave}", seconds=0.1)

            def is_over(wanted: int = wave * (len(made) + len(blocked))) -> bool:
                scaler.step()
                return jobs.status_counts().get("succeeded") == wanted and len(scaler.processes) == 1

            eventually(is_over, 60, lambda: f"{jobs.status_counts()} {scaler.counts}", interval_sec=0.1)
            assert max(scaler.counts) == MAX_PROCESSES
            assert scaler.direction_changes() <= 1, scaler.counts
        exits = [process.process.wait(60) for process in scaler.stopped]

    assert set(exits) == {0}
    assert all(process.check_clean_exit() for process in scaler.stopped)
    outcomes = {jobs.row(job) for job in (*made, *blocked)}
    assert outcomes == {("succeeded", 1)}
    assert not [kind for job in made for kind in jobs.event_kinds(job) if kind[0] in ("requeue", "lost")]
    jobs.check_invariants()
