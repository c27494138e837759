"""Finds jobs by an id or a part of one, however many jobs there are."""

from __future__ import annotations

import re
from uuid import UUID

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor
from dataloader.app.features.jobs.job_detail import RelatedJob

_MAX_FOUND = 10
_MAX_SCANNED = 20_000  # ids that begin alike, of which the last digits are compared
_ID_DIGITS = 32
_MIN_PREFIX_DIGITS = 8  # a minute of ids
_PREFIX_PATTERN = re.compile(rf"[0-9a-f]{{{_MIN_PREFIX_DIGITS},{_ID_DIGITS}}}")
_SHORT_PATTERN = re.compile(r"([0-9a-f]{4,8})(?:…|\.{2,3})([0-9a-f]{4,12})")


class JobLookup:
    """Looks jobs up along indexes."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def by_id(self, text: str) -> list[RelatedJob]:
        """Return jobs by a whole id, by its first eight or more digits, or by the short form of lists, `01a2…f554`."""
        lowered = text.strip().lower()
        short = _SHORT_PATTERN.fullmatch(lowered)
        prefix, suffix = short.groups() if short else (lowered.replace("-", ""), "")
        if not short and not _PREFIX_PATTERN.fullmatch(prefix):
            return []
        parameters = {
            "first": str(UUID(prefix.ljust(_ID_DIGITS, "0"))),
            "last": str(UUID(prefix.ljust(_ID_DIGITS, "f"))),
            "suffix": suffix,
            "max_scanned": _MAX_SCANNED if suffix else _MAX_FOUND,
            "limit": _MAX_FOUND,
        }
        return [from_row(RelatedJob, row) for row in self._execute("find_jobs_by_id", parameters)]
