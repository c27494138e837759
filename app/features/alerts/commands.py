"""Commands about alerts and the rules that fire them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import DURATION, Parsed
from dataloader.app.cli.remote import RemoteGroup
from dataloader.app.wording import parse_duration


def _alert_state(alert: text.Payload) -> str:
    if alert["resolved_at"]:
        return "resolved"
    return f"acknowledged by {alert['acknowledged_by']}" if alert["acknowledged_at"] else "firing"


def _rule_state(rule: text.Payload) -> str:
    until = rule["muted_until"]
    is_muted = until is not None and datetime.fromisoformat(until) > datetime.now(UTC)
    return "off" if not rule["active"] else f"muted until {text.format_time(until)}" if is_muted else "on"


def _rule_line(rule: text.Payload) -> str:
    return f"rule {rule['name']} is {_rule_state(rule)}"


def _test_lines(sent: text.Payload) -> Iterator[str]:
    if not sent["delivery_ids"]:
        yield "No webhook gets alerts: dataloader webhooks create ADDRESS --event alert.firing --event alert.resolved"
    for delivery_id in sent["delivery_ids"]:
        yield f"sent; its result: dataloader webhooks delivery {delivery_id}"


_ALERTS = Table(
    "alerts", "alert=alert_id!, since=started_at!, state!, rule=name, detail", "No alerts fire.",
    cells={"state": _alert_state},
)  # fmt: skip
_RULES = Table(
    "rules", "rule=rule_id!, name, kind, threshold, queue, task, state", "No rules.", cells={"state": _rule_state}
)


def _parse_threshold(raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        return parse_duration(raw)


_THRESHOLD: Mapping[str, Any] = {
    "type": Parsed("number", _parse_threshold),
    "help": "A share below 1 for failure_rate, a number for schedule_behind and check_failed, else seconds.",
}

alerts = RemoteGroup(
    "alerts", former={"add": "create", "remove": "delete"}, help="Manage alerts and the rules that fire them."
)
alerts.add(
    "list", "list_alerts", _ALERTS, only="",
    options={"state": {"names": "--all", "flag_value": "all", "help": "List resolved alerts too."}},
)  # fmt: skip
alerts.add("rules", "list_alert_rules", _RULES)
alerts.add(
    "create", "create_alert_rule", "rule {rule_id}", arguments=("name", "kind"),
    options={"threshold": {"required": True, **_THRESHOLD}, "by_time": {"names": "--by", "metavar": "HH:MM"}},
)  # fmt: skip
alerts.add(
    "edit", "edit_alert_rule", lambda rule: f"rule {rule['name']} is {'on' if rule['active'] else 'off'}",
    options={"threshold": _THRESHOLD, "active": {"names": "--on/--off", "help": "Switch the rule on or off."}},
)  # fmt: skip
alerts.add(
    "mute", "mute_alert_rule", _rule_line,
    options={"mute_sec": {"names": "--for", "type": DURATION, "help": "How long: 30m, 8h, 2d."},
             "until": {"names": "--until", "help": "Until this time: 2030-01-31T08:00:00+03:00."}},
)  # fmt: skip
alerts.add(
    "unmute", "mute_alert_rule", _rule_line, only="", fixed={"mute_sec": 0},
    help="End the mute of a rule. Alerts that fire are delivered at the next check.",
)  # fmt: skip
alerts.add("acknowledge", "acknowledge_alert", lambda alert: f"alert {alert['alert_id']} is {_alert_state(alert)}")
alerts.add("test", "send_alert_test", _test_lines)
alerts.add("delete", "delete_alert_rule", "Rule {rule_id} is deleted.")

COMMANDS = {"Watch": (alerts,)}
