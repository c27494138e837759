"""The attempts of a job as cards: how each ended, with its error, traceback and log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.app.features.jobs.job_detail import AttemptRecord, JobDetail
from dataloader.app.features.jobs.log_search import LogSummary
from dataloader.app.log.masking import mask_secret_fields

_LOST_REASONS = ("lease_expired", "process_died", "upgrade")
_FRAME_PREFIX = '  File "'
_RUNNER_FRAME = re.compile(r'  File "[^"]*/dataloader/(?:app|workers|pipelines)/')  # what calls the task


@dataclass(frozen=True)
class AttemptState:
    """How an attempt ended, as people read it: the class of its shape and colour, and the word."""

    style: str
    word: str


@dataclass(frozen=True)
class AttemptCard:
    """An attempt as its card shows it. `same_as`: an earlier attempt that ended with the same error."""

    record: AttemptRecord
    state: AttemptState
    anchor: str
    traceback: str | None
    log_lines: int
    first_line_id: int  # of its log
    same_as: str | None
    facts: dict[str, Any]

    @property
    def frame_count(self) -> int:
        return (self.traceback or "").count(_FRAME_PREFIX)

    @property
    def own_traceback(self) -> str | None:
        """The traceback from the first frame of the task's code on; None: it begins there, or has none."""
        text = self.traceback or ""
        begins = [match.start() for match in re.finditer(_FRAME_PREFIX, text)]
        first = next((begin for begin in begins if not _RUNNER_FRAME.match(text, begin)), None)
        return None if first is None or first == begins[0] else text[first:]


def attempt_state(attempt: AttemptRecord) -> AttemptState:
    match attempt.outcome, attempt.reason:
        case None, _:
            return AttemptState("running", "running")
        case "done", _:
            return AttemptState("succeeded", "succeeded")
        case "requeue", "error":
            return AttemptState("failed", "failed")
        case "requeue", reason if reason in _LOST_REASONS:
            return AttemptState("lost", "lost")
        case "requeue", _:
            return AttemptState("ready", "released")
        case outcome, _ if outcome in ("failed", "canceled", "lost"):
            return AttemptState(outcome, outcome)
        case outcome, _:
            return AttemptState("canceled", outcome or "")


def attempt_anchors(attempts: Sequence[AttemptRecord]) -> list[str]:
    """The ids of the attempts' cards: after a retry by hand their numbers begin again."""
    anchors: list[str] = []
    for attempt in attempts:
        anchor, n = f"a{attempt.attempt}", 1
        while anchor in anchors:
            n += 1
            anchor = f"a{attempt.attempt}-{n}"
        anchors.append(anchor)
    return anchors


def attempt_cards(job: JobDetail, log: LogSummary) -> list[AttemptCard]:
    """The cards, the last attempt first."""
    cards: list[AttemptCard] = []
    first_with: dict[str, str] = {}
    for n, (record, anchor) in enumerate(zip(job.attempts, attempt_anchors(job.attempts), strict=True), 1):
        is_last = n == len(job.attempts)
        traceback = record.traceback or (job.traceback if is_last and record.error == job.error else None)
        fingerprint = record.error_fingerprint
        same_as = None if fingerprint is None else first_with.setdefault(fingerprint, record.label)
        line_count, first_line_id = log.runs.get((record.attempt, record.run), (0, 1))
        cards.append(
            AttemptCard(
                record,
                attempt_state(record),
                anchor,
                traceback,
                line_count,
                first_line_id,
                None if same_as == record.label else same_as,
                mask_secret_fields(record.event_fields),
            )
        )
    return cards[::-1]
