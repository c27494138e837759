"""Notes: what the overview shows that is no problem."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A sentence: `before`, the id of a job as a link, `after`. It begins in lower case, and has no full stop."""

    before: str
    job_id: str | None = None
    after: str = ""

    @property
    def text(self) -> str:
        return f"{self.before}{self.job_id or ''}{self.after}"
