"""No list reads a whole table: looked at in the plans that the server makes for what the service really asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg2
import pytest

from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.db.statements import statements
from dataloader.app.features.failures.rows import Failures
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_rows import JobRows
from dataloader.app.features.jobs.job_search import Cursor, Filter, JobSearch
from dataloader.app.features.jobs.log_search import JobLogSearch, LogFilter
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Status
from dataloader.app.state import statistics as module
from dataloader.app.state.queues import Queues
from dataloader.app.state.statistics import JobCounts, Statistics
from tests.support.queue_fixture import QueueFixture

ROWS = 10_000
EMPTY = 100  # rows of a part that is not in use yet: it may be read
LARGE = {"dl_jobs", "dl_job_events", "dl_job_logs", "dl_statistics", "dl_queue_depths", "dl_audit"}
QUEUED = frozenset({Status.QUEUED})
FAILED = frozenset({Status.FAILED})
MIDDLE = datetime(2026, 1, 1, 2, tzinfo=UTC)


class Planned:
    """A source that answers, and keeps what the plan of each question reads from end to end."""

    def __init__(self, dsn: str) -> None:
        self.schema = "public"
        self.scans: dict[str, set[str]] = {}
        self.rows: dict[str, float] = {}  # by statement, the most rows that one step of its plan saw
        self._connection = psycopg2.connect(dsn)

    def execute(self, name: str, parameters: dict[str, Any] | None = None, **_: Any) -> list[tuple[Any, ...]]:
        with self._connection, self._connection.cursor() as cursor:
            # With the server's own settings, as on a connection that someone hands in.
            for part in statements(self.schema)[name].parts:
                if part.text.startswith(("WITH", "SELECT")) and "set_config" not in part.text:
                    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT json, TIMING off) {part.text}", parameters or None)
                    result = cursor.fetchone()
                    assert result is not None
                    self._note(name, (json.loads(result[0]) if isinstance(result[0], str) else result[0])[0]["Plan"])
                cursor.execute(part.text, parameters or None)
            return cursor.fetchall()

    def _note(self, name: str, plan: dict[str, Any]) -> None:
        table = plan.get("Relation Name", "")
        seen = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
        ours = any(table == it or table.startswith(f"{it}_") for it in LARGE)
        if plan["Node Type"] == "Seq Scan" and ours and seen > EMPTY:
            self.scans.setdefault(name, set()).add(table)
        self.rows[name] = max(seen, self.rows.get(name, 0.0))
        for part in plan.get("Plans", ()):
            self._note(name, part)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def planned(own_queue_db: QueueFixture) -> Iterator[Planned]:
    own_queue_db.sql(
        "ALTER TABLE dl_jobs DISABLE TRIGGER USER;"
        "INSERT INTO dl_jobs (queue, task, lock_key, status, wait_state, created_at, finished_at, args, tags)"
        " SELECT 'q' || n % 4, 't' || n % 10, 'k' || n,"
        "        (CASE WHEN n > 9900 THEN 'queued' WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END)::dl_status,"
        "        (ARRAY['scheduled', 'ready', 'blocked'])[1 + n % 3]::dl_wait_state,"
        "        '2026-01-01Z'::timestamptz + n * interval '1 s', now(), jsonb_build_object('name', 'file ' || n),"
        "        (CASE WHEN n % 1000 = 0 THEN '{rare}' WHEN n % 2 = 0 THEN '{common}' END)::text[]"
        f"   FROM generate_series(1, {ROWS}) n;"
        "ALTER TABLE dl_jobs ENABLE TRIGGER USER;"
        "INSERT INTO dl_job_events (job_id, queue, kind) SELECT job_id, queue, 'queued' FROM dl_jobs;"
        "INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)"
        " SELECT j.job_id, 1, now(), 'INFO', 'log', 'line ' || n"
        "   FROM (SELECT job_id FROM dl_jobs ORDER BY created_at LIMIT 500) j, generate_series(1, 20) n;"
        "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
        " SELECT span, date_trunc('hour', now()) - i * interval '1 hour', 'q' || i % 4, 't' || t, 'succeeded', 0, 1"
        "   FROM (VALUES (60), (900), (3600)) s (span), generate_series(0, 400) i, generate_series(0, 9) t;"
        "INSERT INTO dl_queue_depths (at, queue, ready, scheduled, blocked, running)"
        " SELECT date_trunc('minute', now()) - i * interval '1 min', 'q', 1, 1, 1, 1 FROM generate_series(0, 11000) i;"
        "INSERT INTO dl_audit (action, actor, via, subject, subject_id)"
        f" SELECT 'trigger', 'somebody', 'key', 'job', n::text FROM generate_series(1, {ROWS}) n;"
        "ANALYZE"
    )
    source = Planned(own_queue_db.dsn)
    yield source
    source.close()


def questions(source: Planned, job: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    lists, rollups, audit, output = JobSearch(source), Statistics(source), AuditLog(source), JobLogSearch(source)  # type: ignore[arg-type]
    reader = JobReader(source)  # type: ignore[arg-type]
    middle = Cursor(MIDDLE, job, is_active=False)
    for wanted in (
        Filter(),
        Filter(status=FAILED),
        Filter(status=FAILED, task="t0"),
        Filter(status=FAILED, text="nothing"),
        Filter(status=QUEUED),
        Filter(status=QUEUED, queue="q1"),
        Filter(task="t3", queue="q1"),
        Filter(lock_key="k7"),
        Filter(producer="nobody"),
        Filter(text="file 19"),
        Filter(created_from=MIDDLE),
        Filter(finished_to=MIDDLE),
    ):
        for after in (None, middle):
            yield f"{wanted} after {after}", lambda w=wanted, a=after: lists.page(w, after=a, time_budget_sec=0)  # type: ignore[misc]
        yield f"{wanted} the oldest first", lambda w=wanted: lists.page(w, sort="created_at", time_budget_sec=0)  # type: ignore[misc]
    for wanted in (
        Filter(lock_key="k7"),
        Filter(idempotency_key="i"),
        Filter(job_id=frozenset({job})),
        Filter(tag="rare"),
    ):
        yield f"{wanted} at once", lambda w=wanted: lists.count(w)  # type: ignore[misc]
    rows = JobRows(source)  # type: ignore[arg-type]
    yield (
        "rows of a list",
        lambda: (rows.with_durations(lists.page(Filter()).jobs), rows.details(lists.page(Filter()).jobs)),
    )
    for wanted in (Filter(), Filter(queue="q1"), Filter(status=FAILED, text="nothing"), Filter(lock_key="k7")):
        yield f"states of {wanted}", lambda w=wanted: rows.count_states(w)  # type: ignore[misc]
    yield "keys", lambda: (reader.by_idempotency_key("i"), lists.has_lock_key("k9"))
    yield "by priority", lambda: lists.page(Filter(status=QUEUED), sort="priority")
    yield "one job", lambda: (reader.detail(job), reader.last_events(job, limit=50))
    yield "running jobs", lambda: lists.stalled(min_sec=60)
    yield "why", lambda: JobExplainer(source, FEATURES).explain(job)  # type: ignore[arg-type]
    yield (
        "a log",
        lambda: (
            output.page(job, LogFilter(text="line 7")),
            output.page(job, LogFilter(levels=("ERROR",)), after=0),
            output.summary(job),
        ),
    )
    yield "queues", lambda: Queues(source).statuses()  # type: ignore[arg-type]
    yield "tasks", lambda: (rollups.by_task("24h"), rollups.by_task("7d", task="t3"), rollups.recent_runs())
    for queue in (None, "q1"):
        yield f"charts of {queue}", lambda q=queue: [rollups.chart(period, queue=q) for period in ("1h", "24h", "7d")]  # type: ignore[misc]
    yield "counts", lambda: JobCounts(source).by_queue()  # type: ignore[arg-type]
    yield "the audit", lambda: (audit.entries(limit=100), audit.entries(subject_id="77", limit=100))
    yield "a search in the audit", lambda: audit.entries(actor="nobody", after=audit.newest_id() - 1000, limit=100)


def test_no_list_reads_a_large_table_from_end_to_end(planned, own_queue_db, monkeypatch):
    monkeypatch.setattr(module, "MAX_FULL_SCAN_PAGES", 0)
    monkeypatch.setattr(module, "SAMPLED_PAGES", 50)
    job = own_queue_db.fetch_row("SELECT job_id FROM dl_jobs ORDER BY created_at LIMIT 1")
    waiting = own_queue_db.fetch_row(
        "SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' LIMIT 1"
    )

    asked = 0
    for result, question in [
        *questions(planned, job),
        ("why it waits", lambda: JobExplainer(planned, FEATURES).explain(waiting)),
        ("groups of failures", Failures(planned).groups),
    ]:
        planned.scans.clear()
        question()
        asked += 1
        assert planned.scans == {}, result

    assert asked > 40
    of_lists = {
        name: rows
        for name, rows in planned.rows.items()
        if name.startswith(("jobs_", "active_", "indexed_", "log_lines_"))
    }
    assert max(of_lists.values()) < ROWS / 2, of_lists
