"""Circuit breakers of tasks over HTTP, and pausing a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.admin.api_keys import Scope
from app.admin.breakers import Breakers, BreakerState, BreakerStatus
from app.db.statements import Executor
from app.web.auth.guard import current_actor
from app.web.json_io import FieldError
from app.web.known_names import NameCheck, StrictQuery
from app.web.middleware import audit_action
from app.web.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import INT4_MAX, BodyModel, Deleted, require_change, require_one_field
from pipelines.contract import Pipelines

_MAX_TASK_BYTES = 1_000
_MAX_SEC = 31 * 86_400


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


@dataclass(frozen=True)
class BreakerList:
    breakers: list[BreakerStatus]


def create_breakers_blueprint(executor: Executor, pipelines: Pipelines) -> ApiBlueprint:
    blueprint = ApiBlueprint("breakers", "/api/v1", problems=DATABASE_PROBLEMS)
    breakers, names = Breakers(executor), NameCheck(executor, pipelines)
    unknown = (ProblemCode.BREAKER_NOT_FOUND,)

    @blueprint.get("/breakers", response=BreakerList, scope=Scope.READ, standby=True)
    def list_breakers() -> BreakerList:
        """List the circuit breakers of tasks, those that are open or half-open first."""
        return BreakerList(breakers.statuses())

    @blueprint.get("/tasks/<path:task>/breaker", response=BreakerStatus, problems=unknown, scope=Scope.READ)
    def get_breaker(task: str) -> BreakerStatus:
        """Get the circuit breaker of a task."""
        return breakers.status(task)

    @blueprint.put(
        "/tasks/<path:task>/breaker",
        query=StrictQuery,
        body=BreakerSetting,
        response=ChangedBreaker,
        problems=(ProblemCode.NAME_NOT_FOUND,),
        scope=Scope.OPERATE,
    )
    def set_breaker(body: BreakerSetting, query: StrictQuery, task: str) -> ChangedBreaker:
        """Create or change the circuit breaker of a task, or pause or resume the task.

        While the breaker is open no job of the task starts; running jobs continue. Jobs wait as limited and cost
        nothing. The task need not exist yet: `warnings` says that nothing is known of its name.
        """
        if not task.strip() or len(task.encode()) > _MAX_TASK_BYTES:
            raise InvalidRequest([FieldError("task", f"must have 1 to {_MAX_TASK_BYTES} bytes in UTF-8")])
        warnings = names.warnings(task=task, strict=query.strict)
        values = body.model_dump(exclude={"state"})
        state = None if body.state is None else BreakerState(body.state)
        status = breakers.set(task, **values, state=state, changed_by=current_actor().name)
        audit_action("breaker.set", task=task, **body.model_dump(exclude={"reason"}, exclude_none=True))
        return ChangedBreaker(**vars(status), warnings=warnings)

    @blueprint.delete("/tasks/<path:task>/breaker", response=Deleted, problems=unknown, scope=Scope.OPERATE)
    def delete_breaker(task: str) -> Deleted:
        """Delete the circuit breaker of a task. A worker that starts creates it again if the task declares one."""
        breakers.delete(task)
        audit_action("breaker.deleted", task=task)
        return Deleted()

    return blueprint
