"""Many jobs with one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.client.answers import Request
from app.client.errors import Conflict
from app.client.transport import Transport, understood
from app.queue.job import Status


@dataclass(frozen=True)
class BatchItem:
    """What became of one request of many. `job_id` is that of the job that stands for it, or that is in its way."""

    outcome: str  # created, exists, conflict, invalid, left_out
    job_id: UUID | None
    status: Status | None
    problem: Mapping[str, Any] | None  # why nothing came of it: code, detail, errors

    @property
    def done(self) -> bool:
        return self.outcome in ("created", "exists")

    @property
    def why(self) -> str:
        return "" if self.problem is None else str(self.problem.get("detail") or self.problem.get("code"))


class Batches(Transport):
    def trigger_many(
        self,
        requests: Sequence[Request | Mapping[str, Any]],
        *,
        all_or_none: bool = False,
        on_warning: Callable[[str], None] = lambda _: None,
    ) -> list[BatchItem]:
        """Put up to 10,000 jobs into the queue with one request; an outcome for each, in their order.

        Sent again when its answer is lost if each has an idempotency key. With `all_or_none` nothing is done unless all
        can be, and the outcomes say which cannot. `on_warning` is called with each reason why some may never run.
        """
        bodies = [request.body() if isinstance(request, Request) else dict(request) for request in requests]
        if not bodies:
            return []
        keyed = all(body.get("idempotency_key") is not None for body in bodies)
        asked = {"jobs": bodies, "mode": "all_or_none" if all_or_none else "best_effort"}
        try:
            said = self._ask("POST", "/api/v1/jobs/batch", body=asked, repeatable=keyed)
        except Conflict as conflict:
            if conflict.code != "batch_refused":
                raise
            said = conflict.problem
        for text in said.get("warnings") or ():
            on_warning(str(text))
        with understood(self.url):
            return [_item(item) for item in said["items"]]


def _item(said: Mapping[str, Any]) -> BatchItem:
    return BatchItem(
        str(said["outcome"]),
        None if said["job_id"] is None else UUID(said["job_id"]),
        None if said["status"] is None else Status(said["status"]),
        said["problem"],
    )
