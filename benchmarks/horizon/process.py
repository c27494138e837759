"""How a simulated worker process proves its life and saves the progress of its runs."""

from __future__ import annotations

from uuid import uuid4

from benchmarks.horizon.pages import MeasuredSession, Recorder
from dataloader.app.queue.job import ClaimedJob, RenewalRequest, RunRef, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueControl
from dataloader.app.queue.workers import HostFacts, NotifyStateTable, WorkerInfo, WorkerLiveness
from dataloader.workers.claim_cursor import ClaimCursor
from dataloader.workers.notify_state import NotifyState
from dataloader.workers.run_records import row_interval_sec

LONG, SHORT = "long", "short"  # the queues
TASKS = ("load", "step")
HEARTBEAT_SEC = 10.0
LEASE_SEC = 60  # of the long jobs


class SimulatedProcess:
    """The statements of one worker process, without its threads and its clock."""

    def __init__(self, dsn: str, recorder: Recorder, number: int) -> None:
        self.session = MeasuredSession(dsn, recorder, name=f"bench-heartbeat-{number}")
        self.claim_session = MeasuredSession(dsn, recorder, name=f"bench-claims-{number}")
        self.queue, self.claims = JobQueue(self.session), JobQueue(self.claim_session)
        self.info = WorkerInfo(uuid4(), f"bench-{number}", "bench", (LONG, SHORT), TASKS, 60, {LONG: 50, SHORT: 10})
        self._notify_state = NotifyState(NotifyStateTable(self.claim_session, self.info.id))
        self.control, self._liveness = QueueControl(self.session), WorkerLiveness(self.session)
        self.cursor = ClaimCursor()
        self.runs: list[ClaimedJob] = []  # the long jobs that it runs
        self._beat_count = 0
        self._next_row_at = LEASE_SEC / 2

    def claim_long(self, count: int) -> None:
        while len(self.runs) < count:
            run_ids = new_run_ids(count - len(self.runs))
            claimed, _ = self.claims.claim(LONG, TASKS, run_ids, self.info.name, worker_id=self.info.id, lock_keys=True)
            assert claimed, f"only {len(self.runs)} of {count} jobs could be claimed"
            self.runs += claimed

    def heartbeat(self, second: int) -> int:
        """All that a heartbeat does; returns how many runs are no longer the process's own."""
        lost = self.beat()
        self.renew_rows(second)
        self.record_heartbeat()
        return lost

    def beat(self) -> int:
        """Prove that the process lives; return how many of its runs are no longer its own."""
        runs = [RunRef(run.id_text, run.run_text) for run in self.runs]
        answers = self.queue.beat(self.info.id, runs, rss_bytes=80_000_000)
        return sum(not answer.is_owned for answer in answers)

    def record_heartbeat(self) -> None:
        """Ask what there is to do, after each heartbeat."""
        finds_others, self._beat_count = self._beat_count % 3 == 0, self._beat_count + 1
        self._liveness.send_heartbeat(
            self.info,
            HostFacts("boot", "1", "1", 1, 1),
            heartbeat_sec=HEARTBEAT_SEC,
            watched=3,
            idle_queues=[] if self.cursor.is_front_slow else [SHORT],
            finds_others=finds_others,
        )

    def scan_front(self, second: int) -> None:
        """Scan for the first ready job, when that is due."""
        if self.cursor.is_scan_due(second):
            self.queue.promote_overdue()
            priority = self.cursor.position[0] if self.cursor.position else None
            self.cursor.record_scan(*self.queue.find_first_ready(SHORT, TASKS, quiet_priority=priority), second)

    def renew_rows(self, second: int) -> None:
        """Renew the rows of the jobs, as seldom as a worker process does."""
        if second < self._next_row_at:
            return
        self._next_row_at = second + row_interval_sec(second, LEASE_SEC / 2)
        self.queue.renew(
            [
                # A simulated second may take longer than one: the row's lease must not end meanwhile.
                RenewalRequest(run.id_text, run.run_text, progress_at(second, n), next_sec=3600)
                for n, run in enumerate(self.runs)
            ]
        )

    def save_progress(self, second: int) -> int:
        """Save what the runs reported, each second in their first minute, then every five seconds; return how many of
        them are no longer the process's own."""
        if second > 60 and second % 5:
            return 0
        values = [(RunRef(run.id_text, run.run_text), progress_at(second, n)) for n, run in enumerate(self.runs)]
        return len(values) - len(self.queue.save_progress(values))

    def announce(self, *, jobs: int, is_busy: bool) -> None:
        """Suppress or request the notifications of the short jobs, as after claims that found enough, or not."""
        for is_full in (True, True, True) if is_busy else (False, False):
            self._notify_state.update_after_claim(SHORT, jobs=jobs if is_full else 0, is_full=is_full)

    def report(self) -> None:
        """What the process fetches with each heartbeat; it has nothing new to report."""
        threads = dict(self.info.queue_threads)
        self.control.report_and_fetch(self.info.id, threads, listener="listening", attempts=None)

    def close(self) -> None:
        self.session.close()
        self.claim_session.close()


def progress_at(second: int, number: int) -> dict[str, object]:
    return {"stage": "load", "done": second * 1_000 + number, "total": 10_800_000, "unit": "rows", "table": "orders"}
