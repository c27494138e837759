"""Each act of a backfill by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataloader.pipelines.contract import Daily, Pipelines
from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

ID, JOB = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
OPEN = (
    "INSERT INTO dl_backfills (backfill_id, task, queue, slices, mode, newest_first, concurrency, template, total)"
    f" VALUES ('{ID}', 'visits', 'etl', '{{\"list\": [\"2026-01-01\"]}}', 'all', false, 2, '{{}}', 1);"
)
PAUSED = OPEN + "UPDATE dl_backfills SET state = 'paused';"
ENDED = OPEN + "UPDATE dl_backfills SET state = 'canceled', ended_at = now();"
QUEUED = (
    "INSERT INTO dl_jobs (job_id, queue, task, lock_key, partition_key, live_key, backfill_id)"
    f" VALUES ('{JOB}', 'etl', 'visits', 'k', '2026-01-01', 'slice:visits:2026-01-01', '{ID}');"
)
RUNNING = QUEUED + "UPDATE dl_jobs SET status = 'running', attempt = 1, run_id = dl_new_id();"
PATH, ACT = f"/backfills/{ID}", f"/backfills/{ID}/act"
JANUARY = {"from": "2026-01-01", "to": "2026-01-31"}
OPTIONS = {
    "mode": "all", "newest_first": True, "concurrency": 3, "priority": 150, "queue": "slow",
    "lock_key": "v:{partition}", "stop_after_failures": 5, "note": "again", "args": {"day": "{partition}"},
}  # fmt: skip
OPTION_TEXTS = {
    "mode": "all", "newest_first": "yes", "concurrency": "3", "priority": "150", "queue": "slow",
    "lock_key": "v:{partition}", "stop_after_failures": "5", "note": "again", "args": '{"day": "{partition}"}',
}  # fmt: skip
OPTION_WORDS = [
    "--mode", "all", "--newest-first", "--concurrency", "3", "--priority", "150", "--queue", "slow", "--lock-key",
    "v:{partition}", "--stop-after", "5", "--note", "again", "--arg", "day={partition}",
]  # fmt: skip
RANGE_WORDS = ["backfill", "visits", "--from", "2026-01-01", "--to", "2026-01-31"]
CASES = {
    "created": Case(
        "backfill.created", ("POST", "/backfills", {"task": "visits", "slices": JANUARY, **OPTIONS}),
        ("/backfills", {"task": "visits", "first": "2026-01-01", "last": "2026-01-31", **OPTION_TEXTS}),
        [*RANGE_WORDS, *OPTION_WORDS], "dl_backfills", audit={"task": "visits", "slices": 31},
    ),
    "created of single slices": Case(
        "backfill.created",
        ("POST", "/backfills", {"task": "visits", "slices": {"list": ["2026-01-01", "2026-02-01"]}}),
        ("/backfills", {"task": "visits", "keys": "2026-01-01\n2026-02-01"}),
        ["backfill", "visits", "--partition-key", "2026-01-01", "--partition-key", "2026-02-01"], "dl_backfills",
        audit={"task": "visits", "slices": 2},
    ),
    "created of slices that are none": Case(
        "backfill.created",
        ("POST", "/backfills", {"task": "visits", "slices": {"from": "2026-02-30", "to": "2026-03-01"}}),
        ("/backfills", {"task": "visits", "first": "2026-02-30", "last": "2026-03-01"}),
        ["backfill", "visits", "--from", "2026-02-30", "--to", "2026-03-01"], "dl_backfills", refused="2026-02-30",
    ),
    "only planned": Case(
        "backfill.created", ("POST", "/backfills", {"task": "visits", "slices": JANUARY, "dry_run": True}), None,
        [*RANGE_WORDS, "--dry-run"], "dl_backfills", audit=None,
    ),
    "changed": Case(
        "backfill.changed", ("PATCH", PATH, {"concurrency": 7, "note": "faster"}),
        (ACT, {"action": "change", "concurrency": "7", "note": "faster"}),
        ["backfills", "edit", ID, "--concurrency", "7", "--note", "faster"], "dl_backfills", before=OPEN,
        audit={"backfill_id": ID, "fields": ["concurrency", "note"]},
    ),
    "one that has ended changed": Case(
        "backfill.changed", ("PATCH", PATH, {"concurrency": 7}), (ACT, {"action": "change", "concurrency": "7"}),
        ["backfills", "edit", ID, "--concurrency", "7"], "dl_backfills", before=ENDED, refused="has ended",
    ),
    "none changed": Case(
        "backfill.changed", ("PATCH", PATH, {"concurrency": 7}), (ACT, {"action": "change", "concurrency": "7"}),
        ["backfills", "edit", ID, "--concurrency", "7"], "dl_backfills", refused="backfill",
    ),
    "paused": Case(
        "backfill.paused", ("POST", f"{PATH}/pause", None), (ACT, {"action": "pause"}), ["backfills", "pause", ID],
        "dl_backfills", before=OPEN, audit={"backfill_id": ID},
    ),
    "one that has ended paused": Case(
        "backfill.paused", ("POST", f"{PATH}/pause", None), (ACT, {"action": "pause"}), ["backfills", "pause", ID],
        "dl_backfills", before=ENDED, refused="has ended",
    ),
    "resumed": Case(
        "backfill.resumed", ("POST", f"{PATH}/resume", None), (ACT, {"action": "resume"}), ["backfills", "resume", ID],
        "dl_backfills", before=PAUSED, audit={"backfill_id": ID},
    ),
    "canceled": Case(
        "backfill.canceled", ("POST", f"{PATH}/cancel", None), (ACT, {"action": "cancel"}), ["backfills", "cancel", ID],
        "dl_jobs", before=OPEN + QUEUED, audit={"backfill_id": ID},
    ),
    "canceled with the jobs that run": Case(
        "backfill.canceled", ("POST", f"{PATH}/cancel?running=true", None),
        (ACT, {"action": "cancel", "running": "yes"}),
        ["backfills", "cancel", ID, "--running"], "dl_jobs", before=OPEN + RUNNING, audit={"backfill_id": ID},
    ),
    "retried": Case(
        "backfill.retried", ("POST", f"{PATH}/retry", None), (ACT, {"action": "retry"}), ["backfills", "retry", ID],
        "dl_backfills", before=ENDED, audit={"backfill_id": ID},
    ),
    "slices run": Case(
        "backfill.created", ("POST", "/tasks/visits/slices/run", {"keys": ["2026-01-01"], "concurrency": 1}),
        ("/slices/visits", {"action": "run", "slices": "2026-01-01", "concurrency": "1"}), None, "dl_backfills",
        audit={"task": "visits", "slices": 1},
    ),
    "slices canceled": Case(
        "slices.canceled", None, ("/slices/visits", {"action": "cancel", "slices": "2026-01-01"}), None, "dl_jobs",
        before=OPEN + QUEUED, audit={"task": "visits", "slices": 1},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    pipelines = Pipelines()

    @pipelines.register("visits", queue="etl", partitions=Daily("2024-01-01", zone="UTC"))
    def visits(args): ...

    with serving(shared_dsn, pipelines) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
