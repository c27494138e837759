"""What an operator changes of limits and circuit breakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.features.limits.breakers import Breakers, BreakerState, BreakerStatus
from dataloader.app.features.limits.rows import Limits, LimitStatus
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import INT4_MAX, BodyModel, Deleted, require_change, require_one_field
from dataloader.pipelines.limits import check_limit_name

_MAX_SEC = 31 * 86_400
_MAX_TASK_BYTES = 1_000
_DEFAULT_PERIOD_SEC = 1.0


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class LimitSetting(BodyModel):
    """What a limit allows. The request replaces the whole setting; null, or a field left out, allows any number."""

    concurrency: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(
        None, description="Maximum weight of the jobs that run at a time; 0: none may start."
    )
    rate: Annotated[int, Field(ge=1, le=INT4_MAX)] | None = Field(
        None, description="Maximum weight of the jobs that start in `per_sec`."
    )
    per_sec: Annotated[float, Field(gt=0, le=_MAX_SEC)] | None = Field(
        None, description="The period of the rate in seconds; by default 1."
    )
    burst: Annotated[int, Field(ge=1, le=INT4_MAX)] | None = Field(
        None,
        description="How many of the rate may start at once; by default 1, so starts are evenly spaced. With more, "
        "up to rate + burst - 1 may start in one period.",
    )
    note: Annotated[str, Field(max_length=500)] | None = Field(None, description="A reason, shown with the limit.")

    @model_validator(mode="after")
    def _require_allowance(self) -> Self:
        if self.concurrency is None and self.rate is None:
            raise PydanticCustomError("limit", "limits nothing; send concurrency or rate, or delete the limit")
        for name in ("per_sec", "burst"):
            if self.rate is None and vars(self)[name] is not None:
                raise PydanticCustomError("limit", "belongs to a rate; send rate too", {"field": name})
        return self


@dataclass(frozen=True, kw_only=True)
class ChangedLimit(LimitStatus):
    """A limit after a change. `warnings`: why the name of a queue or task in it may be misspelt."""

    warnings: list[str]


class LimitUndo(Undo):
    subject, fields = "limit", frozenset({"concurrency", "rate", "per_sec", "burst", "note"})

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        return not name.startswith("backfill:")

    def current(self) -> LimitStatus | None:
        statuses = Limits(self.call.executor).statuses()
        return next((limit for limit in statuses if limit.setting == limit.name == self.name), None)

    def restore(self) -> None:
        limits, current = Limits(self.call.executor), self.current()
        if self.before is None:
            limits.delete(self.name)
            return
        values = {field: self.before.get(field, getattr(current, field, None)) for field in self.fields}
        limits.set(self.name, **values, changed_by=self.call.actor)


@undone_by(LimitUndo)
@act("limit.set", "PUT", "/limits/<path:name>", may_name_unknown=True, unaudited={"note"})
def set_limit(call: Call, name: str, body: LimitSetting) -> ChangedLimit:
    """Create or replace a limit.

    It holds from the next claim of any worker process; running jobs continue. A name that ends in `:*` is the
    default of all names that begin so. `queue:NAME` and `task:NAME` apply to all jobs of the queue or task.
    """
    if problem := _limit_name_problem(name):
        raise InvalidRequest([FieldError("name", problem)])
    kind, _, of = name.partition(":")
    named = {kind: of} if kind in ("queue", "task") and of != "*" else {}
    warnings = call.check_names(field="name", **named)
    values = dict(vars(body))
    if body.rate is not None and body.per_sec is None:
        values["per_sec"] = _DEFAULT_PERIOD_SEC
    status = Limits(call.executor).set(name, **values, changed_by=call.actor)
    return ChangedLimit(**vars(status), warnings=warnings)


@undone_by(LimitUndo)
@act("limit.deleted", "DELETE", "/limits/<path:name>", problems=(ProblemCode.LIMIT_NOT_FOUND, ProblemCode.LIMIT_IN_USE))
def delete_limit(call: Call, name: str) -> Deleted:
    """Delete a limit. Jobs that wait for it may start."""
    Limits(call.executor).delete(name)
    return Deleted()


def _limit_name_problem(name: str) -> str | None:
    """Why no limit can have this name, or None."""
    try:
        check_limit_name(name)
    except ValueError as error:
        return str(error)
    if name.endswith("*") and (not name.endswith(":*") or name == ":*"):
        return "ends in *, which only a prefix may precede, as in tenant:*"
    return None


# ── circuit breakers ────────────────────────────────────────────────────────────────────────────────────────────────


class BreakerSetting(BodyModel):
    """What to change of a breaker; null, or a field left out, stays as it is."""

    model_config = ConfigDict(json_schema_extra=require_one_field(null_is_change=False))

    failures: Annotated[int, Field(ge=1, le=INT4_MAX)] | None = Field(
        None, description="It opens after so many attempts in a row that ended with an error."
    )
    window_sec: Annotated[int, Field(ge=1, le=_MAX_SEC)] | None = Field(
        None, description="A row of failures ends so long after its last one; sent with `failures`."
    )
    resume_sec: Annotated[int, Field(ge=1, le=_MAX_SEC)] | None = Field(
        None, description="How long after opening one job may start, whose outcome decides; by default 300."
    )
    state: Literal["open", "closed"] | None = Field(
        None, description="open: pause the task until a person closes the breaker; closed: jobs start again."
    )
    reason: Annotated[str, Field(max_length=500)] | None = Field(None, description="Why, shown with the task.")

    _require_change = model_validator(mode="after")(require_change)

    @model_validator(mode="after")
    def _check_fields_fit(self) -> Self:
        if self.window_sec is not None and self.failures is None:
            raise PydanticCustomError("breaker", "belongs to failures; send failures too", {"field": "window_sec"})
        if self.reason is not None and self.state is None:
            raise PydanticCustomError("breaker", "belongs to a state; send state too", {"field": "reason"})
        return self


@dataclass(frozen=True, kw_only=True)
class ChangedBreaker(BreakerStatus):
    """A breaker after a change. `warnings`: why the name of the task may be misspelt."""

    warnings: list[str]


class BreakerUndo(Undo):
    numbers = frozenset({"failures", "window_sec", "resume_sec"})
    subject, fields = "breaker", numbers | {"state", "reason"}

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        return before is None or all(before[field] is not None for field in cls.numbers & before.keys())

    def lock(self) -> None:
        super().lock()
        if self.after is None:
            self.call.executor.execute("lock_missing_breaker")

    def current(self) -> BreakerStatus | None:
        return next((status for status in Breakers(self.call.executor).statuses() if status.task == self.name), None)

    def written(self) -> Mapping[str, Any]:
        """Without what follows from what was set."""
        derived = {"failed_in_row", "opened_at", "probe_at", "is_declared"}
        return {name: value for name, value in super().written().items() if name not in derived}

    def restore(self) -> None:
        breakers, old, current = Breakers(self.call.executor), self.before, self.current()
        if old is None:
            breakers.delete(self.name)
            return
        values: dict[str, Any] = {}
        if self.numbers & old.keys():
            values = {field: old.get(field, getattr(current, field, None)) for field in self.numbers}
        if {"state", "reason", "probe_at"} & old.keys():
            state, reason = (old.get(field, getattr(current, field, None)) for field in ("state", "reason"))
            # A breaker that attempts opened is tried again: its act has changed `probe_at`, or it was half-open.
            values |= {"state": BreakerState(str(state)), "reason": reason, "probe_at": old.get("probe_at")}
        breakers.set(self.name, **values, changed_by=self.call.actor)


@undone_by(BreakerUndo)
@act("breaker.set", "PUT", "/tasks/<path:task>/breaker", may_name_unknown=True, unaudited={"reason"})
def set_breaker(call: Call, task: str, body: BreakerSetting) -> ChangedBreaker:
    """Create or change the circuit breaker of a task, or pause or resume the task.

    While the breaker is open no job of the task starts; running jobs continue. Jobs wait as limited and cost
    nothing. The task need not exist yet: `warnings` says that nothing is known of its name.
    """
    if not task.strip() or len(task.encode()) > _MAX_TASK_BYTES:
        raise InvalidRequest([FieldError("task", f"must have 1 to {_MAX_TASK_BYTES} bytes in UTF-8")])
    warnings = call.check_names(task=task)
    state = None if body.state is None else BreakerState(body.state)
    values = body.model_dump(exclude={"state"})
    status = Breakers(call.executor).set(task, **values, state=state, changed_by=call.actor)
    return ChangedBreaker(**vars(status), warnings=warnings)


@undone_by(BreakerUndo)
@act("breaker.deleted", "DELETE", "/tasks/<path:task>/breaker", problems=(ProblemCode.BREAKER_NOT_FOUND,))
def delete_breaker(call: Call, task: str) -> Deleted:
    """Delete the circuit breaker of a task. A worker that starts creates it again if the task declares one."""
    Breakers(call.executor).delete(task)
    return Deleted()
