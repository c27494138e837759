"""Hours of a queue's life in compressed time: what two worker processes, a producer, the maintenance leader and the
readers of a service send to the database, one statement after the other, without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.horizon.pages import Figure, MeasuredSession, Recorder, Statement
from benchmarks.horizon.process import HEARTBEAT_SEC, LEASE_SEC, LONG, SHORT, TASKS, SimulatedProcess
from benchmarks.place import query_value
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_search import Filter, JobSearch
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.overview.problems import ProblemReader
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.retention.duty import RetentionDuty
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.claims import ClaimMode, ClaimRequest, start_at_jobs
from dataloader.app.queue.job import SUCCEEDED, ClaimedJob, NewJob, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods
from dataloader.app.state.queues import Queues
from dataloader.app.state.statistics import Statistics
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.duties import Duty, DutyContext, MaintenanceOptions
from dataloader.workers.maintenance import duties, follower_duties
from dataloader.workers.pace import Pace

PROCESSES = 2
THREADS = 10  # of each process for short jobs
BURSTS = 4  # a second, of short jobs
WINDOW_SEC = 10  # before each checkpoint, in which statements are measured: each process beats once
MINUTE_SEC = 60  # between two vacuums, and two new plans of each session
KEEP_SEC = 14 * DAY_SEC

# What retention will delete, one second's jobs each second: finished before, with an event each.
_OLD_JOBS = """
WITH made AS (
    INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, wait_state,
                         created_at, started_at, finished_at)
    SELECT 'short', 'step', 'old ' || n, 'succeeded', 1, gen_random_uuid(), 'scheduled', at, at, at
      FROM generate_series(1, %s) n
           CROSS JOIN LATERAL (SELECT clock_timestamp() - make_interval(secs => %s - n / %s::float8) AS at) m
    RETURNING job_id, queue
)
INSERT INTO dl_job_events (job_id, queue, kind, payload)
SELECT job_id, queue, 'done', '{"status": "succeeded"}' FROM made
"""
# The tables that autovacuum would vacuum now; with compressed time it comes too late.
_VACUUM_DUE = """
SELECT format('VACUUM (ANALYZE) %I.%I', s.schemaname, s.relname)
  FROM pg_stat_user_tables s
       JOIN pg_class c ON c.oid = s.relid
       CROSS JOIN LATERAL (SELECT jsonb_object_agg(option_name, option_value::float8) AS of_table
                             FROM pg_options_to_table(c.reloptions) WHERE option_name LIKE 'autovacuum_vacuum_%') o
 WHERE s.relname LIKE 'dl\\_%'
   AND s.n_dead_tup > coalesce((o.of_table ->> 'autovacuum_vacuum_threshold')::float8, 50)
                      + coalesce((o.of_table ->> 'autovacuum_vacuum_scale_factor')::float8, 0.2)
                        * greatest(c.reltuples, 0)
"""


@dataclass
class LaneResult:
    """What one lane cost. `figures` by the second of the checkpoint."""

    figures: dict[int, dict[Statement, Figure]] = field(default_factory=dict)
    claim_ms: list[tuple[int, float]] = field(default_factory=list)  # each claim outside the measured windows
    second_ms: list[tuple[int, float]] = field(default_factory=list)  # all of a second, likewise
    waiting_jobs: int = 0  # short ones at the end; each second's jobs are to be claimed in that second
    leases_lost: int = 0
    deadlocks: int = 0
    bytes_before: dict[str, int] = field(default_factory=dict)  # by table
    bytes_after: dict[str, int] = field(default_factory=dict)
    took_sec: float = 0.0
    seconds: int = 0

    def grown_bytes(self, table: str) -> int:
        return self.bytes_after.get(table, 0) - self.bytes_before.get(table, 0)


class Simulation:
    def __init__(self, dsn: str, *, jobs: int, rate: int, seconds: int, plain: bool = False) -> None:
        self._dsn, self._rate, self._seconds, self._jobs, self._plain = dsn, rate, seconds, jobs, plain
        self._recorder = Recorder()
        self._sessions = {
            name: MeasuredSession(dsn, self._recorder, name=f"bench-{name}") for name in ("producer", "leader", "pages")
        }
        self._producer = JobQueue(self._sessions["producer"])
        self._processes = [SimulatedProcess(dsn, self._recorder, n) for n in range(PROCESSES)]
        leader = self._sessions["leader"]
        context = DutyContext(executor=leader, options=MaintenanceOptions(), tasks=Pipelines())
        self._duties = duties(context)
        self._follower_duties = follower_duties(replace(context, executor=self._processes[-1].session))
        self._paces = {duty.name: Pace() for duty in self._duties if duty.is_paced}
        self._ask_pace, self._next_run_at = Pace(), dict[str, float]()  # of paced duties
        self._last_short: ClaimedJob | None = None
        self._filled_at = time.monotonic()
        self.result = LaneResult()

    def fill(self) -> None:
        """Start the long jobs, and make what retention deletes meanwhile."""
        self._filled_at = time.monotonic()
        query_value(self._dsn, _OLD_JOBS, self._rate * self._seconds, KEEP_SEC + self._seconds, self._rate)
        Limits(self._sessions["producer"]).set("narrow", concurrency=1)
        for n in range(self._jobs):
            self._producer.enqueue(NewJob(queue=LONG, task="load", lock_key=f"long {n}", lease_ttl_sec=LEASE_SEC))
        for process in self._processes:
            process.claim_long(self._jobs // PROCESSES)
            process.heartbeat(0)
            process.report()
        query_value(self._dsn, "VACUUM (ANALYZE)")
        self.result.bytes_before = table_sizes(self._dsn)

    def run(self, checkpoints: Sequence[int], log: Callable[[str], None], *, max_sec: float) -> LaneResult:
        """Simulate all seconds, or as many as `max_sec` of time allows."""
        began, result, second, last = time.monotonic(), self.result, 0, self._seconds
        ends = set(checkpoints)
        while second < last:
            if second and time.monotonic() - began > max_sec and not self._recorder.is_recording:
                last = min(last, second + WINDOW_SEC)
                ends.add(last)
            second += 1
            if second + WINDOW_SEC - 1 in ends:
                self._read_pages()  # makes the plans
                self._recorder.start(self._sessions["pages"])
            started_at = time.perf_counter()
            self._step(second)
            if not self._recorder.is_recording:
                result.second_ms.append((second, (time.perf_counter() - started_at) * 1000))
            if second in ends:
                self._measure_rest(second)
                age = f"the oldest transaction is {self._horizon_age():,} transactions old"
                waiting = f"{self._waiting_jobs():,} short jobs wait"
                log(f"second {second:,} after {time.monotonic() - began:.0f} s; {age}; {waiting}")
            if second % MINUTE_SEC == MINUTE_SEC // 4:
                self._end_minute()
        result.seconds = second
        result.bytes_after = table_sizes(self._dsn)
        counted = query_value(self._dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        result.deadlocks, result.took_sec = counted[0][0], time.monotonic() - began
        result.waiting_jobs = self._waiting_jobs()
        return result

    def _measure_rest(self, second: int) -> None:
        for duty in self._duties:
            self._run_duty(duty, second)
        self._read_pages()
        self.result.figures[second] = self._recorder.stop()

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        for process in self._processes:
            process.close()

    def _waiting_jobs(self) -> int:
        sql = "SELECT count(*) FROM dl_jobs WHERE status = 'queued' AND queue = %s"
        return int(query_value(self._dsn, sql, SHORT)[0][0])

    def _horizon_age(self) -> int:
        """How many transactions ago the oldest one began whose view of the tables is kept."""
        ((age,),) = query_value(
            self._dsn,
            "SELECT greatest((SELECT max(greatest(age(backend_xid), age(backend_xmin))) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend'), (SELECT max(age(xmin)) FROM pg_replication_slots),"
            " (SELECT max(age(backend_xmin)) FROM pg_stat_replication))",
        )
        return int(age)

    # ── a second ────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, second: int) -> None:
        beat_sec = int(HEARTBEAT_SEC)
        for n, process in enumerate(self._processes):
            if second % beat_sec == n * beat_sec // PROCESSES:
                with self._recorder.activity("beat"):
                    self.result.leases_lost += process.beat()
                with self._recorder.activity("renewal of rows"):
                    process.renew_rows(second)
                with self._recorder.activity("what there is to do"):
                    process.record_heartbeat()
                with self._recorder.activity("report"):
                    process.report()
            with self._recorder.activity("scan from the front"):
                process.scan_front(second)
            with self._recorder.activity("save progress"):
                self.result.leases_lost += process.save_progress(second)
            if second % 30 == n:
                with self._recorder.activity("reaper"):
                    self.result.leases_lost += len(process.queue.expired_runs().runs)
        for burst in range(BURSTS):
            self._short_jobs(second, burst)
        self._lead(second)
        with self._recorder.activity("status read"):
            self._producer.get(self._processes[0].runs[second % len(self._processes[0].runs)].id)

    def _short_jobs(self, second: int, burst: int) -> None:
        """Enqueue a part of a second's jobs, and let a process claim and settle all that are ready."""
        process, now = self._processes[(second + burst) % PROCESSES], second + burst / BURSTS
        if burst in (0, BURSTS // 2):
            with self._recorder.activity("notify state"):
                for each in self._processes:
                    each.announce(jobs=self._rate // PROCESSES // 3, is_busy=burst == 0)
        with self._recorder.activity("enqueue"):
            for n in range(self._rate * burst // BURSTS, self._rate * (burst + 1) // BURSTS):
                self._producer.enqueue(self._short_job(second, burst, n))
        for _ in range(8):
            if not self._claim_and_settle(process, now, promotes=burst == 0, is_retried=burst == 1):
                break
        if burst == 3 and second % (30 if process.cursor.is_front_slow else 10) == 0:
            with self._recorder.activity("unknown tasks"):
                process.claims.defer_unknown_tasks(SHORT, TASKS)

    def _short_job(self, second: int, burst: int, n: int) -> NewJob:
        job = NewJob(queue=SHORT, task="step", lock_key=f"{second} {n}", args={"n": n})
        if self._plain:
            return job
        if burst == 0 and n < 2:
            job.lock_key = f"shared {second % 7}"
        elif burst == 1:
            job.limits = {"narrow": 1}
        elif burst == 2 and n % 2 == 0:
            job.available_at = datetime.now(UTC) + timedelta(milliseconds=5)
        elif burst == 3 and n % 2 == 0:
            job.expires_at, job.tags, job.live_key = datetime.now(UTC) + timedelta(days=1), ["bench"], f"live {n}"
        return job

    def _claim_and_settle(self, process: SimulatedProcess, now: float, *, promotes: bool, is_retried: bool) -> bool:
        """Claim as a dispatcher does. Returns whether more may be ready."""
        request = self._claim_request(process, now, promotes=promotes)
        if request is None:
            return False
        started_at = time.perf_counter()
        with self._recorder.activity("claim"):
            claimed, hint = process.claims.claim(
                SHORT,
                TASKS,
                new_run_ids(THREADS),
                process.info.name,
                request,
                lock_keys=True,
                worker_id=process.info.id,
            )
        if not self._recorder.is_recording:
            took_sec = time.perf_counter() - started_at
            self.result.claim_ms.append((int(now), took_sec * 1000))
            hint = replace(hint, delay_sec=took_sec)
        if request.mode is not ClaimMode.LISTED:
            is_full = len(claimed) == THREADS
            process.cursor.advance(hint, is_full=is_full, from_front=request.is_from_front, began=now, now=now)
        if claimed:
            self._settle(process, claimed, is_retried=is_retried)
        return bool(claimed or not (request.is_from_front or process.cursor.is_front_slow))

    @staticmethod
    def _claim_request(process: SimulatedProcess, now: float, *, promotes: bool) -> ClaimRequest | None:
        if job_ids := process.cursor.take_offered(THREADS):
            return ClaimRequest(ClaimMode.LISTED, start_at_jobs(job_ids), promote_due=False)
        start = process.cursor.start(now, promoted=promotes)
        return None if start is None else ClaimRequest(ClaimMode.PLAIN, start, process.cursor.scan_limit, promotes)

    def _settle(self, process: SimulatedProcess, claimed: list[ClaimedJob], *, is_retried: bool) -> None:
        settlements = [(job, SUCCEEDED) for job in claimed]
        if is_retried and claimed[0].attempt == 1 and not self._plain:
            settlements[0] = (claimed[0], Settlement(Status.QUEUED, error="bench", retry_in_sec=0.001))
        with self._recorder.activity("settle"):
            results = process.queue.settle(settlements, on_ready=process.cursor.offer)
            process.claims.unlock_keys([job.key_hash for job in claimed])
        self.result.leases_lost += sum(result.outcome != "applied" for result in results)
        self._last_short = claimed[-1]

    # ── the maintenance leader ──────────────────────────────────────────────────────────────────────────────────

    def _lead(self, second: int) -> None:
        awake = [duty for duty in self._duties if second >= self._next_run_at.get(duty.name, 0.0)]
        due = [duty for duty in awake if second % max(1, round(duty.interval_sec)) == 0]
        asked = [duty for duty in awake if duty.has_work is not None]
        with self._recorder.activity("has_work of the duties"), self._paced(asked, self._ask_pace, second):
            answers = self._sessions["leader"].ask(duty.has_work or "" for duty in asked)
        has_work = dict(zip((duty.name for duty in asked), answers, strict=True))
        for duty in due:
            if has_work.get(duty.name, True):
                with self._paced([duty], self._paces.get(duty.name), second):
                    self._run_duty(duty, second)
        if second % 30 == 0:
            for duty in self._follower_duties:
                with self._recorder.activity(f"follower duty {duty.name}"):
                    duty.run()

    @contextmanager
    def _paced(self, duties: Sequence[Duty], pace: Pace | None, second: int) -> Iterator[None]:
        """Postpone these duties as the maintenance leader does, if they take long."""
        started_at = time.monotonic()
        yield
        if pace is not None and not self._recorder.is_recording:
            pace.record(time.monotonic() - started_at)
            self._next_run_at.update({duty.name: second + pace.interval_sec for duty in duties if duty.is_paced})

    def _run_duty(self, duty: Duty, second: int) -> None:
        with self._recorder.activity(f"duty {duty.name}"):
            if duty.name != "retention":
                duty.run()
                return
            # The cutoff moves with the simulated time, not with the clock.
            keep_sec = KEEP_SEC + (self._seconds - second) + (time.monotonic() - self._filled_at)
            options = MaintenanceOptions(periods=RetentionPeriods(succeeded=keep_sec))
            for _ in range(4):
                if RetentionDuty(self._sessions["leader"], options).run() is None:
                    break

    def _end_minute(self) -> None:
        """Do what autovacuum does in a minute, and make new plans as sessions do."""
        for (statement,) in query_value(self._dsn, _VACUUM_DUE):
            query_value(self._dsn, statement)
        for session in (*self._sessions.values(), *(s for p in self._processes for s in (p.session, p.claim_session))):
            session.execute_raw("DISCARD PLANS")

    # ── what people read ────────────────────────────────────────────────────────────────────────────────────────

    def _read_pages(self) -> None:
        session, run = self._sessions["pages"], self._processes[0].runs[0]
        running = Filter(status=frozenset({Status.RUNNING}))
        short = self._last_short or run
        reads: dict[str, Callable[[], Any]] = {
            "list of running jobs": partial(JobSearch(session).page, running, sort="started_at", limit=50),
            "list of all jobs": partial(JobSearch(session).page, Filter(), limit=50),
            "queues": Queues(session).statuses,
            "worker processes": Queues(session).workers,
            "overview": partial(ProblemReader(FEATURES).read, SharedReads(session)),
            "page of a running job": partial(JobReader(session).detail, run.id),
            "page of a finished job": partial(JobReader(session).detail, short.id),
            "why a running job": partial(JobExplainer(session, FEATURES).explain, run.id),
            "limits": Limits(session).statuses,
            "metrics of the database": Statistics(session).database_metrics,
            "next jobs of a queue": partial(Queues(session).next_jobs, SHORT),
            "fence": partial(session.execute, "assert_owned", {"job_id": str(run.id), "run_id": run.run_text}),
        }
        for name, read in reads.items():
            with self._recorder.activity(name):
                read()


def table_sizes(dsn: str) -> dict[str, int]:
    """Bytes of each of our tables with its indexes and TOAST; partitions count as their table."""
    return dict(
        query_value(
            dsn,
            "SELECT coalesce(p.relname, c.relname), sum(pg_total_relation_size(c.oid))::bigint"
            "  FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
            "       LEFT JOIN pg_class p ON p.oid = i.inhparent"
            " WHERE c.relkind IN ('r', 'p') AND c.relname LIKE 'dl\\_%' GROUP BY 1",
        )
    )
