"""Limits over HTTP: how many jobs may run at a time, and how many may start in a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.admin.api_keys import Scope
from app.admin.limits import LimitHolder, Limits, LimitStatus
from app.db.statements import Executor
from app.web.auth.guard import current_actor
from app.web.json_io import FieldError
from app.web.known_names import NameCheck
from app.web.middleware import audit_action
from app.web.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import INT4_MAX, BodyModel, Deleted
from pipelines.contract import Pipelines
from pipelines.limits import check_limit_name

_MAX_PERIOD_SEC = 31 * 86_400


class LimitSetting(BodyModel):
    """What a limit allows. The request replaces the whole setting; null, or a field left out, allows any number."""

    concurrency: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(
        None, description="Maximum weight of the jobs that run at a time; 0: none may start."
    )
    rate: Annotated[int, Field(ge=1, le=INT4_MAX)] | None = Field(
        None, description="Maximum weight of the jobs that start in `per_sec`."
    )
    per_sec: Annotated[float, Field(gt=0, le=_MAX_PERIOD_SEC)] | None = Field(
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


@dataclass(frozen=True)
class LimitList:
    limits: list[LimitStatus]


@dataclass(frozen=True, kw_only=True)
class LimitDetail(LimitStatus):
    """A limit with the running jobs that count in it, longest first; at most 200."""

    holders: list[LimitHolder]


def limit_name_problem(name: str) -> str | None:
    """Why no limit can have this name, or None."""
    try:
        check_limit_name(name)
    except ValueError as error:
        return str(error)
    if name.endswith("*") and (not name.endswith(":*") or name == ":*"):
        return "ends in *, which only a prefix may precede, as in tenant:*"
    return None


def names_in_limit(limit: str) -> tuple[str | None, str | None]:
    """The queue and the task that a limit such as `queue:etl` is for."""
    kind, _, name = limit.partition(":")
    return (name if kind == "queue" and name != "*" else None, name if kind == "task" and name != "*" else None)


def create_limits_blueprint(executor: Executor, pipelines: Pipelines) -> ApiBlueprint:
    blueprint = ApiBlueprint("limits", "/api/v1", problems=DATABASE_PROBLEMS)
    limits, names = Limits(executor), NameCheck(executor, pipelines)
    unknown = (ProblemCode.LIMIT_NOT_FOUND,)

    @blueprint.get("/limits", response=LimitList, scope=Scope.READ, standby=True)
    def list_limits() -> LimitList:
        """List limits: what each allows, what is used, and how many jobs wait since when.

        Names without a setting are listed while jobs wait for them or count in a default such as `tenant:*`.
        """
        return LimitList(limits.statuses())

    @blueprint.get("/limits/<path:name>", response=LimitDetail, problems=unknown, scope=Scope.READ)
    def get_limit(name: str) -> LimitDetail:
        """Get a limit with the jobs that hold it."""
        return LimitDetail(**vars(limits.status(name)), holders=limits.holders(name))

    @blueprint.put("/limits/<path:name>", body=LimitSetting, response=ChangedLimit, scope=Scope.OPERATE)
    def set_limit(body: LimitSetting, name: str) -> ChangedLimit:
        """Create or replace a limit.

        It holds from the next claim of any worker process; running jobs continue. A name that ends in `:*` is the
        default of all names that begin so. `queue:NAME` and `task:NAME` apply to all jobs of the queue or task.
        """
        if problem := limit_name_problem(name):
            raise InvalidRequest([FieldError("name", problem)])
        per_sec = 1.0 if body.rate is not None and body.per_sec is None else body.per_sec
        values = {**vars(body), "per_sec": per_sec, "changed_by": current_actor().name}
        status = limits.set(name, **values)
        audit_action("limit.set", name=name, **body.model_dump(exclude={"note"}, exclude_none=True))
        queue, task = names_in_limit(name)
        return ChangedLimit(**vars(status), warnings=names.warnings(queue=queue, task=task))

    @blueprint.delete(
        "/limits/<path:name>",
        response=Deleted,
        problems=(*unknown, ProblemCode.LIMIT_IN_USE),
        scope=Scope.OPERATE,
    )
    def delete_limit(name: str) -> Deleted:
        """Delete a limit. Jobs that wait for it may start."""
        limits.delete(name)
        audit_action("limit.deleted", name=name)
        return Deleted()

    return blueprint
