"""The picture of a job's life, in percent of its time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from dataloader.app.features.jobs.job_detail import AttemptRecord
from dataloader.app.features.jobs.job_timeline import MAX_ATTEMPTS_DRAWN, build_timeline
from dataloader.app.queue.job import Status

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def attempt(number, start, end, outcome="requeue", reason="error", retry_in_sec=None):
    return AttemptRecord(
        attempt=number, run_id=None, worker="w", started_at=at(start), finished_at=None if end is None else at(end),
        outcome=outcome, reason=reason, error=None, traceback=None, error_fingerprint=None, retry_in_sec=retry_in_sec,
        event_fields={},
    )  # fmt: skip


def timeline(attempts, now, **fields):
    job: Any = SimpleNamespace(
        **{"created_at": START, "available_at": START, "finished_at": None, "status": Status.QUEUED,
           "wait_state": "ready", "attempts": attempts} | fields
    )  # fmt: skip
    return build_timeline(job, at(now), lambda moment, pattern: moment.strftime(pattern), lambda sec: f"{sec:g} s")


def test_parts_are_waits_runs_and_backoffs():
    drawn = timeline([attempt(1, 10, 50, retry_in_sec=20)], 100, wait_state="limited")

    parts = [(part.kind, part.style, part.x, part.width, part.sentence) for part in drawn.parts]
    assert parts == [
        ("waited", "", 0, 10, "queue time 10 s"),
        ("ran", "failed", 10, 40, "1 · failed 40 s"),
        ("backoff", "", 50, 20, "backoff 20 s"),
        ("waited", "limited", 70, 30, "limited 30 s"),
    ]
    assert (drawn.waited_sec, drawn.ran_sec) == (40, 40)
    assert drawn.sentence == "queue time 10 s, 1 · failed 40 s, backoff 20 s, limited 30 s"
    assert drawn.ticks[1] == (20, "12:00:20")
    assert drawn.end_label == "now"


def test_ended_job_ends_with_its_last_attempt():
    ended = attempt(1, 0, 3600, "done", None)

    drawn = timeline([ended], 9999, status=Status.SUCCEEDED, finished_at=at(3600))

    assert [(part.style, part.width) for part in drawn.parts] == [("succeeded", 100)]
    assert (drawn.ticks[1], drawn.end_label) == ((20, "12:12"), "13:00")


def test_repeated_label_of_the_axis_is_left_out():
    drawn = timeline([attempt(1, 0, None, None, None)], 2.5)

    assert [label for _, label in drawn.ticks] == ["12:00:00", "", "12:00:01", "", "12:00:02"]


def test_short_part_is_visible_and_has_no_text():
    drawn = timeline([attempt(1, 0, None, None)], 100_000)
    tiny = timeline(
        [attempt(1, 99_999, 100_000, "failed", None)], 100_000, status=Status.FAILED, finished_at=at(100_000)
    )

    assert drawn.parts[0].has_text
    assert (tiny.parts[1].width, tiny.parts[1].has_text) == (0.6, False)
    assert tiny.parts[1].x + tiny.parts[1].width <= 100
    assert drawn.ticks[0][1] == "22 Nov 12:00"


def test_only_last_attempts_are_drawn():
    attempts = [attempt(1, n * 10, n * 10 + 5) for n in range(MAX_ATTEMPTS_DRAWN + 5)]
    attempts[-1] = replace(attempts[-1], attempt=7)

    drawn = timeline(attempts, 250)

    runs = [part for part in drawn.parts if part.kind == "ran"]
    assert len(runs) == MAX_ATTEMPTS_DRAWN
    assert runs[0].anchor == "a1-6"
    assert runs[-1].anchor == "a7"
    assert drawn.parts[0] == runs[0]
    assert runs[0].x == 0
