"""Data checks of tasks, and datasets: who updates them, and who reads them."""

from __future__ import annotations

from app.db.statements import Executor


class DataQuality:
    """Reads what runs recorded with their settlement, and deletes what is old."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def prune(self, *, keep_sec: float, limit: int) -> int:
        """Delete old checks and dataset events, but none that is the last of its dataset, kind and task. Return the
        larger of the two numbers."""
        parameters = {"keep_sec": keep_sec, "limit": limit}
        return max(int(self._execute(f"prune_{table}", parameters)[0][0]) for table in ("checks", "dataset_events"))
