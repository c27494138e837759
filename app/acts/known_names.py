"""Notices misspelt names of queues and tasks in requests that take any name."""

from __future__ import annotations

from dataloader.app.db.statements import Executor
from dataloader.app.errors import NameNotFound
from dataloader.app.queue.queues import QueueControl
from dataloader.app.wording import suggestion
from dataloader.pipelines.contract import Pipelines

_MAX_LISTED = 10


class NameCheck:
    """Compares names with the queues and tasks of the database and of this process."""

    def __init__(self, executor: Executor, pipelines: Pipelines) -> None:
        self._queues, self._pipelines = QueueControl(executor), pipelines

    def unknown(self, *, queue: str | None = None, task: str | None = None) -> dict[str, str]:
        """Why the queue or task may be misspelt, by `queue` and `task`; empty if both are known."""
        if queue is None and task is None:
            return {}
        known = self._queues.known()
        queues = known.queues | {made.options.queue for made in self._pipelines if made.options.queue}
        tasks = known.tasks | {made.name for made in self._pipelines}
        named = (("queue", queue, queues), ("task", task, tasks))
        return {kind: _warning(kind, name, among) for kind, name, among in named if name and name not in among}

    def warnings(
        self, *, queue: str | None = None, task: str | None = None, strict: bool = False, field: str = ""
    ) -> list[str]:
        """Why the queue or task may be misspelt. Raises NameNotFound if `strict`, for the field or for each kind."""
        found = self.unknown(queue=queue, task=task)
        if strict and found:
            raise NameNotFound("; ".join(found.values()), {field or kind: text for kind, text in found.items()})
        return list(found.values())


def _warning(kind: str, name: str, known: frozenset[str]) -> str:
    listed = ", ".join(sorted(known)[:_MAX_LISTED]) or "none"
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"there is no {kind} {name!r}; known: {listed}{more}{suggestion(name, known)}"
