"""How long things are kept: jobs that have ended by status and task, the journal and the logs by the part."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from app.queue.audit import Audit
from app.queue.job import Status
from app.queue.jobqueue import Source, as_uuid
from app.queue.values import array

DAY = 86_400.0
JOURNAL, LOGS = "dl_job_events", "dl_job_logs"
_PARTS = 5  # in which the time that something is kept is divided
_LONGEST_PART = 7 * DAY


@dataclass(frozen=True, kw_only=True)
class Ages:
    """How many seconds things are kept. A task's own ages, where it has any, go before those of its jobs' status."""

    succeeded: float = 14 * DAY
    canceled: float = 14 * DAY
    failed: float = 30 * DAY
    lost: float = 30 * DAY
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # task → status → seconds
    journal: float = 30 * DAY
    logs: float = 14 * DAY
    keys: float | None = None  # of deleted jobs; None: for ever
    audit: float = 365 * DAY

    def of_all(self) -> dict[str, float]:
        return {status.value: float(getattr(self, status.value)) for status in Status if status.final}


@dataclass(frozen=True)
class Pruned:
    """What one batch deleted, or would delete."""

    jobs: Mapping[tuple[str, str], int]  # (status, task) → how many
    keys: int
    full: bool  # there may be more


class Retention:
    """Deletes what is older than its age. Any number of processes may: nobody waits for another."""

    def __init__(self, source: Source, ages: Ages) -> None:
        self._source, self._ask, self._ages = source, source.ask, ages

    @property
    def is_held(self) -> bool:
        """Whether the tables were upgraded from version 0, whose jobs nothing was ever to delete."""
        return bool(self._ask("retention_held", {})[0][0])

    def prune(self, *, most: int = 500, dry: bool = False) -> Pruned:
        """Delete the next batch of jobs, with their journal; `dry`: only say which."""
        asked = {
            "of_all": json.dumps(self._ages.of_all()),
            "of_tasks": json.dumps({task: dict(ages) for task, ages in self._ages.tasks.items()}),
            "most": most,
            "dry": dry,
        }
        old = self._ask("retire_keys", asked)
        jobs = Counter((row[1], row[2]) for row in old)
        keys = old[0][3] if old else 0
        if not old or dry:
            return Pruned(jobs, keys, len(old) >= most)
        ids = [as_uuid(row[0]) for row in old]
        gone = self._ask("delete_ended", {"job_ids": array(ids)})
        self._keep_keys_of_the_kept(ids, {as_uuid(row[0]) for row in gone}, keys)
        return Pruned(Counter((row[1], row[2]) for row in gone), keys, len(gone) >= most // 2 and len(old) >= most)

    def _keep_keys_of_the_kept(self, asked: list[UUID], gone: set[UUID], keys: int) -> None:
        kept = [job_id for job_id in asked if job_id not in gone]
        if kept and keys:
            self._ask("unretire_keys", {"job_ids": array(kept)})

    def forget_keys(self, *, most: int = 5_000) -> int:
        if self._ages.keys is None:
            return 0
        return len(self._ask("forget_keys", {"keep_sec": self._ages.keys, "most": most}))

    def forget_acts(self, *, most: int = 5_000) -> int:
        """Old lines of the audit, by the one function that may take any."""
        return Audit(self._source).prune(keep_sec=self._ages.audit, most=most)

    def keep_parts(self) -> list[str]:
        """Make the parts of the time to come, and write to the one that is due; returns those that were made."""
        made: list[str] = []
        for parent, keep in self._parents():
            span = part_span(keep)
            made += [row[0] for row in self._ask("make_parts", {"parent": parent, "span_sec": span, "ahead_sec": span})]
            self._ask("move_on", {"parent": parent})
        return made

    def drop_parts(self, *, dry: bool = False) -> list[str]:
        """Drop a part of the journal and one of the logs in which everything is too old; `dry`: only say which ones."""
        dropped: list[str] = []
        for parent, keep in self._parents():
            dropped += [row[0] for row in self._ask("drop_parts", {"parent": parent, "keep_sec": keep, "dry": dry})]
        return dropped

    def _parents(self) -> list[tuple[str, float]]:
        return [(JOURNAL, self._ages.journal), (LOGS, self._ages.logs)]


def part_span(keep_sec: float) -> float:
    """How long a part is: a fifth of the time things are kept, in whole days where that is more than one."""
    span = min(_LONGEST_PART, keep_sec / _PARTS)
    return span // DAY * DAY if span >= DAY else max(1.0, span // 1)
