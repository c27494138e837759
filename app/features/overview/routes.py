"""A snapshot of this service's figures, such as for a page over several services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from dataloader.app.db.schema import SCHEMA_VERSION
from dataloader.app.db.statements import Executor
from dataloader.app.features.queues.rows import Queues
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Sums over the queues that the key may see. `at`: the clock of the process that answers. `problems`: as in the
    header of the dashboard; null: they could not be counted in time. `succeeded` and `failed`, lost ones included: in
    the last hour."""

    version: str
    schema_version: int
    environment: str
    at: datetime
    problems: int | None
    running: int
    ready: int
    waiting: int
    oldest_ready_sec: float | None
    succeeded: int
    failed: int
    workers: int
    threads: int


def create_overview_blueprint(
    executor: Executor, options: WebOptions, count_problems: Callable[[], int | None]
) -> ApiBlueprint:
    blueprint = ApiBlueprint("overview", "/api/v1", problems=DATABASE_PROBLEMS)
    queues = Queues(executor)

    @blueprint.get("/overview", response=Overview, scope=Scope.READ)
    def get_overview() -> Overview:
        """Get a snapshot of this service's figures: jobs, workers, problems, version.

        `waiting` has the queued jobs that are not ready. Numbers of jobs may be estimates above a thousand for each
        queue.
        """
        caller = current_actor()
        statuses = [status for status in queues.statuses() if caller.can_see_queue(status.queue)]
        waits = [status.oldest_ready_sec for status in statuses if status.oldest_ready_sec is not None]
        live = [worker for worker in queues.workers() if worker.alive]
        return Overview(
            version=options.version,
            schema_version=SCHEMA_VERSION,
            environment=options.environment,
            at=datetime.now(UTC),
            problems=count_problems(),
            running=sum(status.running for status in statuses),
            ready=sum(status.ready for status in statuses),
            waiting=sum(status.scheduled + status.blocked + status.limited + status.waiting for status in statuses),
            oldest_ready_sec=max(waits, default=None),
            succeeded=sum(status.last_hour.succeeded for status in statuses),
            failed=sum(status.last_hour.failed + status.last_hour.lost for status in statuses),
            workers=len(live),
            threads=sum(worker.threads for worker in live),
        )

    return blueprint
