"""Limits and circuit breakers over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from dataloader.app.acts.web import add_routes
from dataloader.app.features.limits.acts import delete_breaker, delete_limit, set_breaker, set_limit
from dataloader.app.features.limits.breakers import Breakers, BreakerStatus
from dataloader.app.features.limits.rows import LimitHolder, Limits, LimitStatus
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site


@dataclass(frozen=True)
class LimitList:
    limits: list[LimitStatus]


@dataclass(frozen=True, kw_only=True)
class LimitDetail(LimitStatus):
    """A limit with the running jobs that count in it, longest first; at most 200."""

    holders: list[LimitHolder]


@dataclass(frozen=True)
class BreakerList:
    breakers: list[BreakerStatus]


def create_limits_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("limits", "/api/v1", problems=DATABASE_PROBLEMS)
    limits = Limits(site.executor)

    @blueprint.get("/limits", response=LimitList, scope=Scope.READ, standby=True)
    def list_limits() -> LimitList:
        """List limits: what each allows, what is used, and how many jobs wait since when.

        Names without a setting are listed while jobs wait for them or count in a default such as `tenant:*`.
        """
        return LimitList(limits.statuses())

    @blueprint.get(
        "/limits/<path:name>", response=LimitDetail, problems=(ProblemCode.LIMIT_NOT_FOUND,), scope=Scope.READ
    )
    def get_limit(name: str) -> LimitDetail:
        """Get a limit with the jobs that hold it."""
        return LimitDetail(**vars(limits.status(name)), holders=limits.holders(name))

    add_routes(blueprint, (set_limit, delete_limit), site.runner)
    return blueprint


def create_breakers_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("breakers", "/api/v1", problems=DATABASE_PROBLEMS)
    breakers = Breakers(site.executor)

    @blueprint.get("/breakers", response=BreakerList, scope=Scope.READ, standby=True)
    def list_breakers() -> BreakerList:
        """List the circuit breakers of tasks, those that are open or half-open first."""
        return BreakerList(breakers.statuses())

    @blueprint.get(
        "/tasks/<path:task>/breaker",
        response=BreakerStatus,
        problems=(ProblemCode.BREAKER_NOT_FOUND,),
        scope=Scope.READ,
    )
    def get_breaker(task: str) -> BreakerStatus:
        """Get the circuit breaker of a task."""
        return breakers.status(task)

    add_routes(blueprint, (set_breaker, delete_breaker), site.runner)
    return blueprint
