"""Alerts and alert rules over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from dataloader.app.acts.act import acts_of
from dataloader.app.acts.web import add_routes
from dataloader.app.features.alerts import acts
from dataloader.app.features.alerts.rows import AlertRule, Alerts, FiredAlert
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import MAX_PAGE_SIZE, QueryModel
from dataloader.app.http.site import Site


class AlertsQuery(QueryModel):
    """Which alerts to list, the newest first."""

    state: Annotated[
        Literal["firing", "all"], Field(description="firing: only firing alerts; all: resolved ones too.")
    ] = "firing"
    before: Annotated[
        UUID | None, Field(description="Only alerts older than this one: the last of the previous page.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 100


@dataclass(frozen=True)
class AlertRuleList:
    rules: list[AlertRule]


@dataclass(frozen=True)
class AlertList:
    alerts: list[FiredAlert]


def create_alerts_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("alerts", "/api/v1/alerts", problems=DATABASE_PROBLEMS)
    alerts = Alerts(site.executor)

    @blueprint.get("", query=AlertsQuery, response=AlertList, scope=Scope.READ, standby=True)
    def list_alerts(query: AlertsQuery) -> AlertList:
        """List firing alerts, or all, newest first."""
        return AlertList(alerts.all(firing=query.state == "firing", before=query.before, limit=query.limit))

    @blueprint.get("/rules", response=AlertRuleList, scope=Scope.READ)
    def list_alert_rules() -> AlertRuleList:
        """List alert rules by name."""
        return AlertRuleList(alerts.rules())

    @blueprint.get(
        "/rules/<uuid:rule_id>", response=AlertRule, problems=(ProblemCode.RULE_NOT_FOUND,), scope=Scope.READ
    )
    def get_alert_rule(rule_id: UUID) -> AlertRule:
        """Get an alert rule."""
        return alerts.rule(rule_id)

    add_routes(blueprint, acts_of(acts), site.runner)
    return blueprint
