"""Queues, worker processes and charts over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.acts.known_names import NameCheck
from app.admin.api_keys import Scope
from app.admin.explain import JobExplainer, QueueExplanation
from app.admin.queues import FAIR_RULE, Queues, QueueSettings, QueueState, QueueStatus, WorkerStatus
from app.admin.statistics import Chart, Period, Statistics
from app.db.statements import Executor
from app.web.auth.guard import current_actor
from app.web.middleware import audit_action
from app.web.problems import DATABASE_PROBLEMS, ProblemCode
from app.web.routing import ANY_KEY, ApiBlueprint
from app.web.schemas import INT4_MAX, BodyModel, IndexedText, QueryModel, StrictQuery, parse_key, require_one_field
from pipelines.contract import Pipelines

REMOVABLE = ("concurrency", "per_worker", "fair", "share")

Limit = Annotated[int, Field(ge=1, le=INT4_MAX)]
TenantWeight = Annotated[int, Field(ge=1, le=1_000)]


class QueuesQuery(QueryModel):
    queue: Annotated[str | None, Field(min_length=1, description="Only this queue.")] = None


class QueueSettingsEdit(BodyModel):
    """Settings of a queue to change; those left out stay as they are. Null removes one."""

    model_config = ConfigDict(json_schema_extra=require_one_field(excluded=frozenset({"queue"}), null_is_change=True))

    queue: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(parse_key)] = Field(
        description="The queue; it need not have any job yet."
    )
    state: Annotated[QueueState, Field(strict=False)] | None = Field(
        None,
        description="open; paused: no job is claimed; draining: no job is claimed, and triggers over HTTP are "
        "rejected.",
    )
    concurrency: Limit | None = Field(
        None, description="Maximum number of running jobs in all worker processes together."
    )
    per_worker: Limit | None = Field(
        None, description="Maximum number of running jobs in each worker process; threads are added as needed."
    )
    fair: Annotated[str, Field(max_length=200, pattern=f"^({FAIR_RULE.pattern})$")] | None = Field(
        None,
        description="Serve tenants in turn instead of jobs by age; the tenant of a job is its `partition_key`, its "
        "`producer`, or a value of its args, such as `args.tenant`. It is noted when the job is triggered.",
    )
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="The part of the queue's threads that one tenant may have while others wait; null: half."
    )
    weights: Annotated[dict[IndexedText, TenantWeight | None], Field(max_length=1_000)] = Field(
        {},
        description="How many jobs a tenant may run for each job of another; null removes a weight.",
        examples=[{"acme": 3}],
    )
    note: Annotated[str, Field(max_length=500)] | None = Field(None, description="A reason, shown with the queue.")

    @model_validator(mode="after")
    def _require_change(self) -> Self:
        if self.model_fields_set <= {"queue"}:
            raise PydanticCustomError("change", "there is no change; send at least one field other than queue")
        return self


class ChartsQuery(QueryModel):
    period: Annotated[Period, Field(description="The period; its buckets are a minute, 15 minutes or an hour.")] = "1h"
    queue: Annotated[str | None, Field(description="Only jobs of this queue.")] = None
    task: Annotated[str | None, Field(description="Only jobs of this task.")] = None


@dataclass(frozen=True)
class ChangedQueue(QueueSettings):
    """The settings of a queue after a change. `warnings`: why its name may be misspelt."""

    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class QueueList:
    queues: list[QueueStatus]


@dataclass(frozen=True)
class WorkerList:
    workers: list[WorkerStatus]


def create_queues_blueprint(executor: Executor, pipelines: Pipelines) -> ApiBlueprint:
    blueprint = ApiBlueprint("queues", "/api/v1", problems=DATABASE_PROBLEMS)
    queues, statistics, names = Queues(executor), Statistics(executor), NameCheck(executor, pipelines)
    explainer = JobExplainer(executor)
    worker_problems = (ProblemCode.WORKER_NOT_FOUND,)

    @blueprint.get("/queues", query=QueuesQuery, response=QueueList, scope=ANY_KEY)
    def list_queues(query: QueuesQuery) -> QueueList:
        """List queues with their settings, the number of their jobs, and the statistics of the last hour.

        A key limited to certain queues sees only these.
        """
        caller = current_actor()
        statuses = queues.statuses(queue=query.queue)
        return QueueList([status for status in statuses if caller.can_see_queue(status.queue)])

    @blueprint.get(
        "/queues/<path:queue>/why", response=QueueExplanation, problems=(ProblemCode.NAME_NOT_FOUND,), scope=Scope.READ
    )
    def explain_queue(queue: str) -> QueueExplanation:
        """Explain what keeps jobs of a queue from starting: that it is paused, a limit, a breaker, or no worker."""
        names.warnings(queue=queue, strict=True)
        return explainer.explain_queue(queue)

    @blueprint.patch(
        "/queues",
        query=StrictQuery,
        body=QueueSettingsEdit,
        response=ChangedQueue,
        problems=(ProblemCode.NAME_NOT_FOUND,),
        scope=Scope.OPERATE,
    )
    def change_queue_settings(body: QueueSettingsEdit, query: StrictQuery) -> ChangedQueue:
        """Pause, drain or open a queue, limit how many of its jobs run at a time, or serve its tenants in turn.

        Settings hold from the next claim of any worker process; running jobs continue. `is_drained` of the list is true
        when none is left. A note is kept until the state changes. The queue need not exist yet: `warnings` says that
        nothing is known of its name.
        """
        warnings = names.warnings(queue=body.queue, strict=query.strict)
        removed = [name for name in REMOVABLE if name in body.model_fields_set and vars(body)[name] is None]
        settings = queues.change_settings(**vars(body), remove=removed, changed_by=current_actor().name)
        audit_action(
            "queue.settings_changed",
            queue=settings.queue,
            state=settings.state,
            concurrency=settings.concurrency,
            per_worker=settings.per_worker,
            fair=settings.fair,
        )
        return ChangedQueue(**vars(settings), warnings=warnings)

    @blueprint.get("/workers", response=WorkerList, scope=Scope.READ)
    def list_workers() -> WorkerList:
        """List worker processes and their running jobs, live processes first."""
        return WorkerList(queues.workers())

    @blueprint.post(
        "/workers/<uuid:worker_id>/drain", response=WorkerStatus, problems=worker_problems, scope=Scope.OPERATE
    )
    def drain_worker(worker_id: UUID) -> WorkerStatus:
        """Stop a worker process from claiming jobs.

        Its running jobs continue. Once `running` is empty, the process can be stopped without interrupting any job.
        """
        audit_action("worker.draining", worker_id=worker_id)
        return queues.drain_worker(worker_id, draining=True)

    @blueprint.post(
        "/workers/<uuid:worker_id>/undrain", response=WorkerStatus, problems=worker_problems, scope=Scope.OPERATE
    )
    def undrain_worker(worker_id: UUID) -> WorkerStatus:
        """Let a drained worker process claim jobs again."""
        audit_action("worker.resumed", worker_id=worker_id)
        return queues.drain_worker(worker_id, draining=False)

    @blueprint.get("/charts", query=ChartsQuery, response=Chart, scope=Scope.READ, standby=True)
    def get_charts(query: ChartsQuery) -> Chart:
        """Get statistics of an hour, a day or a week: job counts, wait times, run times, failures and queue depths."""
        return statistics.chart(query.period, queue=query.queue, task=query.task)

    return blueprint
