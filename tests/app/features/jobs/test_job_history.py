"""The events of a job in words."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode
from dataloader.app.features.jobs.job_history import Change, describe_event, link_job_ids, reason_links
from dataloader.app.queue.job_records import JobEvent
from dataloader.app.ui.formatter import Formatter

JOB = UUID("01a203c7-2f01-7d54-b34b-0044f8554f3a")


def described(kind, **payload):
    return describe_event(JobEvent(1, JOB, "q", datetime(2026, 1, 1, tzinfo=UTC), kind, payload), Formatter("UTC"))


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("queued", {"producer": "cron"}, ("created", "", "by cron")),
        ("queued", {}, ("created", "", "")),
        ("picked", {"attempt": 2, "worker": "etl-01:4"}, ("attempt 2 started", "running", "on etl-01:4")),
        ("done", {"attempt": 2}, ("attempt 2 succeeded", "succeeded", "")),
        (
            "requeue",
            {"attempt": 1, "reason": "error", "pause_sec": 60},
            ("attempt 1 failed", "failed", "retried in 1\u00a0min"),
        ),
        ("requeue", {"attempt": 1, "reason": "lock_busy"}, ("queued again", "ready", "lock busy")),
        ("canceled", {"reason": "expired"}, ("canceled", "canceled", "expired")),
        ("limited", {"waits_on": "erp"}, ("limited", "limited", "by the limit erp")),
        ("of_others", {"reason": "x"}, ("of others", "", "x")),
    ],
)
def test_event_is_described(kind, payload, expected):
    row = described(kind, **payload)

    assert (row.word, row.style, row.details) == expected


def test_edit_shows_each_change_and_masks_secrets():
    row = described(
        "edited",
        before={"priority": 100, "args": {"a": 1, "token": "old", "b": 2}, "available_at": "2026-01-01T00:00Z", "x": 1},
        after={"priority": 50, "args": {"a": 3, "token": "new"}, "available_at": "2026-01-02T03:00Z", "x": 2},
    )

    assert row.changes == [
        Change("priority", "100", "50"),
        Change("scheduled for", "2026-01-01 00:00:00", "2026-01-02 03:00:00"),
        Change("args.a", "1", "3"),
        Change("args.b", "2", "none"),
    ]


def test_ids_in_a_sentence_become_short_links():
    text = link_job_ids(f"held by job {JOB} <b>")

    assert text == f'held by job <a class="mono" href="/jobs/{JOB}">01a2…4f3a</a> &lt;b&gt;'


def test_reason_leads_to_what_the_job_waits_for():
    reason = ExplanationReason(ReasonCode.LIMIT_FULL, "", {"limit": "erp api", "graph_id": JOB})

    assert [link.url for link in reason_links(reason)] == ["/limits#limit-erp%20api", f"/graphs/{JOB}"]
