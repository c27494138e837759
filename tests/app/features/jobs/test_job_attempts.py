"""The attempts of a job as cards."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from dataloader.app.features.jobs.job_attempts import attempt_anchors, attempt_cards, attempt_state
from dataloader.app.features.jobs.job_detail import AttemptRecord
from dataloader.app.features.jobs.log_search import LogSummary


def attempt(number=1, outcome="failed", **fields):
    return AttemptRecord(
        **{"attempt": number, "run_id": None, "worker": None, "started_at": datetime(2026, 1, 1, tzinfo=UTC),
           "finished_at": None, "outcome": outcome, "reason": None, "error": "E", "traceback": None,
           "error_fingerprint": None, "retry_in_sec": None, "event_fields": {}} | fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "reason", "word"),
    [
        (None, None, "running"),
        ("done", None, "succeeded"),
        ("requeue", "error", "failed"),
        ("requeue", "process_died", "lost"),
        ("requeue", "shutdown", "released"),
        ("lost", None, "lost"),
        ("of others", None, "of others"),
    ],
)
def test_state_of_attempt(outcome, reason, word):
    assert attempt_state(attempt(outcome=outcome, reason=reason)).word == word


def test_anchors_differ_after_a_retry_by_hand():
    assert attempt_anchors([attempt(1), attempt(2), attempt(1)]) == ["a1", "a2", "a1-2"]


def test_traceback_begins_with_the_code_of_the_task():
    runner = '  File "/venv/dataloader/workers/attempt.py", line 1, in run\n    call()\n'
    library = '  File "/venv/dataloader/workers/context.py", line 2, in sleep\nE: no'
    own = f'  File "/srv/sales/load.py", line 88, in load\n    fetch()\n{library}'
    first = attempt(1, traceback=f"Traceback (most recent call last):\n{runner}{runner}{own}")
    job: Any = SimpleNamespace(attempts=[first, attempt(2, traceback=own)], traceback=None, error="E")

    latest, card = attempt_cards(job, LogSummary({}, {}, True, {}))

    assert (card.own_traceback, card.frame_count, latest.own_traceback) == (own, 4, None)


def test_cards_have_traceback_log_and_repeated_error():
    first = attempt(1, error_fingerprint="f", traceback='Traceback\n  File "x"\nE', event_fields={"password": "x"})
    last = attempt(2, error_fingerprint="f")  # its event is from before tracebacks were kept in it
    job: Any = SimpleNamespace(attempts=[first, last], traceback="of the job", error="E")

    newest, oldest = attempt_cards(job, LogSummary({1: 4}, {}, True, {(1, 1): (4, 7)}))

    assert (newest.traceback, newest.same_as, newest.log_lines) == ("of the job", "1", 0)
    assert (oldest.frame_count, oldest.same_as, oldest.log_lines, oldest.first_line_id) == (1, None, 4, 7)
    assert oldest.facts == {"password": "***"}
