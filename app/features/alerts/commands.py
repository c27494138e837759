"""Commands about alerts and the rules that fire them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import DURATION, POSITIVE, SECONDS, without_none
from dataloader.app.cli.service_options import RemoteGroup, RemoteService
from dataloader.app.cli.tables import Table

KINDS = (
    "failure_rate", "no_success", "queue_age", "stalled", "dead_worker", "breaker_open", "limit_starved",
    "schedule_late", "schedule_behind", "check_failed", "stale_dataset",
)  # fmt: skip


def _alert_state(alert: text.Payload) -> str:
    if alert["resolved_at"]:
        return "resolved"
    return f"acknowledged by {alert['acknowledged_by']}" if alert["acknowledged_at"] else "firing"


def _rule_state(rule: text.Payload) -> str:
    if not rule["active"]:
        return "off"
    return f"muted until {text.format_time(rule['muted_until'])}" if _is_muted(rule) else "on"


def _is_muted(rule: text.Payload) -> bool:
    until = rule["muted_until"]
    return until is not None and datetime.fromisoformat(until) > datetime.now(UTC)


_ALERTS = Table(
    "alert=alert_id, since=started_at, state, rule=name, detail",
    {"state": _alert_state, "detail": lambda alert: text.format_message(alert["detail"])},
    uncut="alert, since, state",
    empty_message="No alerts fire.",
)
_RULES = Table(
    "rule=rule_id, name, kind, threshold, queue, task, state",
    {"threshold": lambda rule: text.format_number(rule["threshold"]), "state": _rule_state},
    uncut="rule",
    empty_message="No rules.",
)
alerts = RemoteGroup(
    "alerts",
    former={"add": "create", "remove": "delete"},
    help="Manage alerts and the rules that fire them.",
)
_RULES_PATH = "/api/v1/alerts/rules"
_THRESHOLD_HELP = "A share below 1 for failure_rate, a number for schedule_behind and check_failed, else seconds."
rule_argument = click.argument("rule_id", type=click.UUID)
window_option = click.option("--window", "window_sec", type=SECONDS, help="How far back the rule counts.")
min_runs_option = click.option("--min-runs", type=POSITIVE, help="How many runs the window must have.")


@alerts.command("list", short_help="List firing alerts.")
@click.option("--all", "everything", is_flag=True, help="List resolved alerts too.")
def alerts_list(service: RemoteService, *, everything: bool) -> None:
    """List the alerts that fire, newest first."""
    service.print_list(service.get("/api/v1/alerts", state="all" if everything else "firing"), "alerts", _ALERTS)


@alerts.command("rules", short_help="List the rules.")
def alerts_rules(service: RemoteService) -> None:
    """List the rules, by name."""
    service.print_list(service.get(_RULES_PATH), "rules", _RULES)


@alerts.command("create", short_help="Create a rule.")
@click.argument("name")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--threshold", type=float, required=True, help=_THRESHOLD_HELP)
@click.option("--queue", help="Only for this queue.")
@click.option("--task", help="Only for this task.")
@window_option
@min_runs_option
@click.option("--dataset", metavar="DATASET", help="The dataset of stale_dataset.")
@click.option("--by", "by_time", metavar="HH:MM", help="The time of day by which its update is due.")
@click.option("--zone", metavar="ZONE", help="The time zone of --by.  [default: UTC]")
def alerts_create(service: RemoteService, **options: Any) -> None:
    """Create a rule of a KIND; docs/alerts.md describes the kinds."""
    rule = service.post(_RULES_PATH, without_none(options))
    service.print_warnings(rule)
    service.print_payload(rule, f"rule {rule['rule_id']}")


@alerts.command("edit", short_help="Change a rule, switch it off or on.")
@rule_argument
@click.option("--threshold", type=float, help=_THRESHOLD_HELP)
@window_option
@min_runs_option
@click.option("--on/--off", "active", default=None, help="Switch the rule on or off.")
def alerts_edit(service: RemoteService, *, rule_id: UUID, **changes: Any) -> None:
    """Change the given options of a rule; the others stay."""
    rule = service.patch(f"{_RULES_PATH}/{rule_id}", changes)
    service.print_warnings(rule)
    service.print_payload(rule, f"rule {rule['name']} is {'on' if rule['active'] else 'off'}")


@alerts.command("mute", short_help="Deliver no new alert of a rule for a time.")
@rule_argument
@click.option("--for", "mute_sec", type=DURATION, required=True,
              help="How long: 30m, 8h, 2d.")  # fmt: skip
def alerts_mute(service: RemoteService, *, rule_id: UUID, mute_sec: float) -> None:
    """Deliver no new alert of a rule for a time. It is still checked, and `alerts list` shows its alerts."""
    rule = service.post(f"{_RULES_PATH}/{rule_id}/mute", {"mute_sec": mute_sec})
    service.print_payload(rule, f"rule {rule['name']} is {_rule_state(rule)}")


@alerts.command("unmute", short_help="End the mute of a rule.")
@rule_argument
def alerts_unmute(service: RemoteService, *, rule_id: UUID) -> None:
    """End the mute of a rule. Alerts that fire are delivered at the next check."""
    rule = service.post(f"{_RULES_PATH}/{rule_id}/mute", {"mute_sec": 0})
    service.print_payload(rule, f"rule {rule['name']} is {_rule_state(rule)}")


@alerts.command("acknowledge", short_help="Note that you take care of an alert.")
@click.argument("alert_id", type=click.UUID)
def alerts_acknowledge(service: RemoteService, *, alert_id: UUID) -> None:
    """Note that you take care of a firing alert; the lists show it."""
    alert = service.post(f"/api/v1/alerts/{alert_id}/acknowledge")
    service.print_payload(alert, f"alert {alert['alert_id']} is {_alert_state(alert)}")


@alerts.command("delete", short_help="Delete a rule.")
@rule_argument
def alerts_delete(service: RemoteService, *, rule_id: UUID) -> None:
    """Delete a rule; its alerts are resolved at the next check."""
    service.delete(f"{_RULES_PATH}/{rule_id}")
    service.print_payload({"deleted": True}, f"Rule {rule_id} is deleted.")
