"""Hands the queues over from the worker processes of one release of the pipelines' code to those of another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dataloader.app.state.queues import Queues, WorkerStatus
from dataloader.app.wording import format_count, format_duration

_LOOK_INTERVAL_SEC = 1.0
_REPORT_INTERVAL_SEC = 30.0


@dataclass(frozen=True)
class DeployResult:
    """`missing`: how many worker processes of the release are not there; then nothing was changed."""

    release: str
    claiming: int
    drained: int
    running: int  # jobs of drained processes
    missing: int = 0

    @property
    def sentence(self) -> str:
        workers = ("worker process", "worker processes")
        if self.missing:
            return f"{format_count(self.missing, *workers)} of release {self.release} missing; nothing was changed."
        return (
            f"{format_count(self.claiming, *workers)} of release {self.release} claim jobs;"
            f" {format_count(self.drained, 'other', 'others')} drained, running {format_count(self.running, 'job')}."
        )


class Deploy:
    def __init__(self, queues: Queues, release: str, *, deadline: float, report: Callable[[str], None]) -> None:
        """`deadline` is by the monotonic clock; `report` is given a line whenever what is waited for has changed."""
        self._queues, self._release, self._deadline, self._report = queues, release, deadline, report
        self._reported, self._reported_at = "", 0.0

    def run(self, *, min_workers: int, wait: bool) -> DeployResult:
        """Wait for so many processes of the release, then drain all others; with `wait` until their jobs have ended."""
        while (missing := min_workers - len(self._of_release())) > 0:
            self._report_once(
                f"waiting for {format_count(missing, 'more worker process', 'more worker processes')} of release"
                f" {self._release}"
            )
            if not self._may_sleep():
                return DeployResult(self._release, min_workers - missing, 0, 0, missing)
        while True:
            claiming, others = self._of_release(), self._of_others()
            for worker in claiming:
                if worker.draining:  # by an earlier deploy, which this one takes back
                    self._queues.drain_worker(worker.worker_id, draining=False)
            for worker in others:
                if not worker.draining:
                    self._queues.drain_worker(worker.worker_id, draining=True)
            running = sum(worker.busy for worker in others)
            if not (wait and running):
                return DeployResult(self._release, len(claiming), len(others), running)
            self._report_once(describe_rest(others, datetime.now(UTC)))
            if not self._may_sleep():
                return DeployResult(self._release, len(claiming), len(others), running)

    def _live(self) -> list[WorkerStatus]:
        return [worker for worker in self._queues.workers() if worker.alive and not worker.stopping]

    def _of_release(self) -> list[WorkerStatus]:
        return [worker for worker in self._live() if worker.release == self._release]

    def _of_others(self) -> list[WorkerStatus]:
        """Also those that are being stopped: what they run is waited for."""
        return [worker for worker in self._queues.workers() if worker.alive and worker.release != self._release]

    def _may_sleep(self) -> bool:
        if time.monotonic() + _LOOK_INTERVAL_SEC > self._deadline:
            return False
        threading.Event().wait(_LOOK_INTERVAL_SEC)
        return True

    def _report_once(self, text: str) -> None:
        """When it has changed, or after a while."""
        now = time.monotonic()
        if (
            text.partition(";")[0] != self._reported.partition(";")[0]
            or now - self._reported_at >= _REPORT_INTERVAL_SEC
        ):
            self._reported, self._reported_at = text, now
            self._report(text)


def describe_rest(workers: Sequence[WorkerStatus], now: datetime) -> str:
    """Which releases still run how many jobs, and the one that has run for longest."""
    by_release = Counter({worker.release or "none": 0 for worker in workers})
    for worker in workers:
        by_release[worker.release or "none"] += worker.busy
    counts = ", ".join(f"{format_count(count, 'job')} of release {name}" for name, count in by_release.items() if count)
    runs = sorted((run for worker in workers for run in worker.running), key=lambda run: run.started_at)
    if not runs:
        return f"still running: {counts}"
    return f"still running: {counts}; the longest, {runs[0].task}, since {format_duration(now - runs[0].started_at)}"
