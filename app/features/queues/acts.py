"""What an operator changes of queues and worker processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.schemas import INT4_MAX, BodyModel, IndexedText, parse_key, require_one_field
from dataloader.app.queue.queues import QueueSettings, QueueState
from dataloader.app.state.queues import FAIR_RULE, Queues, WorkerStatus

REMOVABLE = ("concurrency", "per_worker", "fair", "share")

Limit = Annotated[int, Field(ge=1, le=INT4_MAX)]
TenantWeight = Annotated[int, Field(ge=1, le=1_000)]


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


@dataclass(frozen=True)
class ChangedQueue(QueueSettings):
    """The settings of a queue after a change. `warnings`: why its name may be misspelt."""

    warnings: list[str] = field(default_factory=list)


class SettingsUndo(Undo):
    subject, fields = "queue", frozenset({"state", "note", *REMOVABLE})

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        return after is not None and not {"fair_key", "weight"} & {*(before or ()), *after}

    def current(self) -> QueueSettings | None:
        return Queues(self.call.executor).settings().get(self.name)

    def restore(self) -> None:
        old = {"state": "open", **dict.fromkeys(self.written())} if self.before is None else self.before
        values: dict[str, Any] = {field: old[field] for field in self.fields & old.keys() if old[field] is not None}
        if "state" in old:
            current = self.current()
            values["state"] = QueueState(old["state"] or "open")
            values["note"] = old.get("note", current and current.note)  # a state has its own note
        remove = [field for field in REMOVABLE if field in old and old[field] is None]
        Queues(self.call.executor).change_settings(self.name, **values, remove=remove, changed_by=self.call.actor)


@undone_by(SettingsUndo)
@act("queue.settings_changed", "PATCH", "/queues", may_name_unknown=True, unaudited={"share", "weights", "note"})
def change_queue_settings(call: Call, body: QueueSettingsEdit) -> ChangedQueue:
    """Pause, drain or open a queue, limit how many of its jobs run at a time, or serve its tenants in turn.

    Settings hold from the next claim of any worker process; running jobs continue. `is_drained` of the list is true
    when none is left. A note is kept until the state changes. The queue need not exist yet: `warnings` says that
    nothing is known of its name.
    """
    warnings = call.check_names(queue=body.queue)
    removed = [name for name in REMOVABLE if name in body.model_fields_set and vars(body)[name] is None]
    settings = Queues(call.executor).change_settings(**vars(body), remove=removed, changed_by=call.actor)
    call.audit(**{name: getattr(settings, name) for name in ("state", "concurrency", "per_worker", "fair")})
    return ChangedQueue(**vars(settings), warnings=warnings)


class DrainUndo(Undo):
    subject, fields = "worker", frozenset({"draining"})

    def current(self) -> WorkerStatus:
        return Queues(self.call.executor).worker(UUID(self.name))

    def restore(self) -> None:
        is_draining = not self.written()["draining"]
        Queues(self.call.executor).drain_worker(UUID(self.name), draining=is_draining)


@undone_by(DrainUndo)
@act("worker.draining", "POST", "/workers/<uuid:worker_id>/drain", problems=(ProblemCode.WORKER_NOT_FOUND,))
def drain_worker(call: Call, worker_id: UUID) -> WorkerStatus:
    """Stop a worker process from claiming jobs.

    Its running jobs continue. Once `running` is empty, the process can be stopped without interrupting any job.
    """
    return Queues(call.executor).drain_worker(worker_id, draining=True)


@undone_by(DrainUndo)
@act("worker.resumed", "POST", "/workers/<uuid:worker_id>/undrain", problems=(ProblemCode.WORKER_NOT_FOUND,))
def undrain_worker(call: Call, worker_id: UUID) -> WorkerStatus:
    """Let a drained worker process claim jobs again."""
    return Queues(call.executor).drain_worker(worker_id, draining=False)


@dataclass(frozen=True)
class HostWorkers:
    """The live worker processes of a host."""

    host: str
    workers: list[WorkerStatus]


@undone_by(DrainUndo)
@act("host.draining", "POST", "/hosts/<path:host>/drain", problems=(ProblemCode.WORKER_NOT_FOUND,))
def drain_host(call: Call, host: str) -> HostWorkers:
    """Stop all worker processes of a host from claiming jobs.

    Their running jobs continue. A process that starts there later claims.
    """
    return HostWorkers(host, Queues(call.executor).drain_host(host, draining=True))


@undone_by(DrainUndo)
@act("host.resumed", "POST", "/hosts/<path:host>/undrain", problems=(ProblemCode.WORKER_NOT_FOUND,))
def undrain_host(call: Call, host: str) -> HostWorkers:
    """Let the drained worker processes of a host claim jobs again."""
    return HostWorkers(host, Queues(call.executor).drain_host(host, draining=False))
