"""webhooks, alerts: who is told of what, and what there is to tell. They ask a running service."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click

from app.cli import text
from app.cli.service import Service, asks_service

EVENTS = ("job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.over")
KINDS = ("failure_rate", "no_success", "queue_age", "stalled", "dead_worker")
_SHORT = 60


@click.group(short_help="Tell other services when jobs end.")
def webhooks() -> None:
    """Webhooks: who is told when jobs end or something goes wrong, and whether it arrived."""


@webhooks.command("list", short_help="Who is told of what.")
@asks_service
def webhooks_list(service: Service) -> None:
    """List the webhooks, the oldest first."""
    found = service.client.webhooks()
    rows = [
        (
            str(one.webhook_id),
            "on" if one.active else f"off: {one.disabled_why}",
            str(one.failures),
            one.queue or "",
            one.task or "",
            " ".join(one.events),
            one.url,
        )
        for one in found
    ]
    names = ("webhook", "state", "failures", "queue", "task", "events", "url")
    service.table(
        {"webhooks": [one.said for one in found]}, names, rows, whole=("webhook",), empty="Nobody is told anything."
    )


@webhooks.command("add", short_help="Have somebody told.")
@click.argument("to", metavar="ADDRESS")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="Send this event; else every end of a job. May be repeated.",
)
@click.option("--queue", help="Only of jobs of this queue.")
@click.option("--task", help="Only of jobs of this task.")
@click.option("--description", help="What it is for; shown to people.")
@asks_service
def webhooks_add(service: Service, *, to: str, events: tuple[str, ...], **more: Any) -> None:
    """Have ADDRESS told of every end of a job, or of what --event names. The secret is shown now, and never again."""
    made = service.client.add_webhook(to, events=list(events) or None, **more)
    service.show(made.said, [f"webhook {made.webhook_id}", f"secret  {made.secret}"])


@webhooks.command("edit", short_help="Change a webhook, switch it off or on.")
@click.argument("webhook_id", type=click.UUID)
@click.option("--to", help="The new address.", metavar="ADDRESS")
@click.option(
    "--event", "events", type=click.Choice(EVENTS), multiple=True, help="Send this event alone; may be repeated."
)
@click.option("--queue", help="Only of jobs of this queue; '' for all.")
@click.option("--task", help="Only of jobs of this task; '' for all.")
@click.option("--description", help="What it is for; shown to people.")
@click.option("--on/--off", "active", default=None, help="Switch it on or off.")
@asks_service
def webhooks_edit(service: Service, *, webhook_id: UUID, to: str | None, events: tuple[str, ...], **more: Any) -> None:
    """Change what is named; the rest stays."""
    changes = {
        name: value for name, value in {**more, "url": to, "events": list(events) or None}.items() if value is not None
    }
    if not changes:
        raise click.UsageError("say what is to be changed")
    made = service.client.change_webhook(webhook_id, **changes)
    service.show(made.said, [f"webhook {made.webhook_id} is {'on' if made.active else 'off'}"])


@webhooks.command("remove", short_help="Tell somebody no more.")
@click.argument("webhook_id", type=click.UUID)
@asks_service
def webhooks_remove(service: Service, *, webhook_id: UUID) -> None:
    """Remove a webhook, with its deliveries and their log."""
    service.client.remove_webhook(webhook_id)
    service.show({"removed": True}, ["removed"])


@webhooks.command("rotate", short_help="Draw a new secret.")
@click.argument("webhook_id", type=click.UUID)
@click.option("--overlap", type=click.IntRange(min=0), default=86_400, show_default=True, metavar="SECONDS",
              help="For how long the old one signs beside it.")  # fmt: skip
@asks_service
def webhooks_rotate(service: Service, *, webhook_id: UUID, overlap: int) -> None:
    """Draw a new secret, shown now and never again."""
    made = service.client.rotate_webhook(webhook_id, overlap_sec=overlap)
    service.show(made.said, [f"secret  {made.secret}"])


@webhooks.command("ping", short_help="Send a webhook something, to see whether it arrives.")
@click.argument("webhook_id", type=click.UUID)
@asks_service
def webhooks_ping(service: Service, *, webhook_id: UUID) -> None:
    """Send a webhook.ping; a worker process sends it."""
    sent = service.client.ping_webhook(webhook_id)
    service.show({"delivery_id": str(sent)}, [f"delivery {sent}", f"dataloader webhooks delivery {sent}"])


@webhooks.command("deliveries", short_help="What was told, or is to be.")
@click.option("--webhook", "webhook_id", type=click.UUID, help="Only to this one.")
@click.option("--job", "job_id", type=click.UUID, help="Only about this job.")
@click.option("--state", type=click.Choice(["waiting", "delivered", "given_up"]), help="Only in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many.")
@asks_service
def webhooks_deliveries(service: Service, **which: Any) -> None:
    """List deliveries, the newest first."""
    found = service.client.deliveries(**which)
    rows = [
        (str(one.delivery_id), one.state, str(one.tries), one.event, str(one.job_id or ""), one.error or "")
        for one in found
    ]
    names = ("delivery", "state", "tries", "event", "job", "error")
    service.table(
        {"deliveries": [one.said for one in found]}, names, rows, whole=("delivery", "state"), empty="No delivery fits."
    )


@webhooks.command("delivery", short_help="How one delivery went.")
@click.argument("delivery_id", type=click.UUID)
@asks_service
def webhooks_delivery(service: Service, *, delivery_id: UUID) -> None:
    """Tell of one delivery: each try, and what the receiver answered."""
    said = service.client.delivery(delivery_id).said
    service.show(said, [f"{said['event']} to {said['url']}: {said['state']}", *map(_try_line, said["log"])])


def _try_line(one: dict[str, Any]) -> str:
    told = text.clean(one["error"] or one["answer"])[:_SHORT]
    return f"{text.local_time(one['at'])}  {one['status'] or '-'}  {one['duration_ms']:.0f} ms  {told}"


@webhooks.command("redeliver", short_help="Send something once more.")
@click.argument("delivery_id", type=click.UUID)
@asks_service
def webhooks_redeliver(service: Service, *, delivery_id: UUID) -> None:
    """Send a delivery once more, under the same id, and then for a day as if it were new."""
    service.client.redeliver(delivery_id)
    service.show({"delivery_id": str(delivery_id)}, ["it will be sent"])


@click.group(short_help="What goes wrong, and the rules that decide it.")
def alerts() -> None:
    """Alerts: what fires, and the rules that decide it."""


@alerts.command("list", short_help="What fires.")
@click.option("--all", "everything", is_flag=True, help="Also what is over.")
@asks_service
def alerts_list(service: Service, *, everything: bool) -> None:
    """List the alerts that fire, the newest first."""
    found = service.client.alerts(firing=not everything)
    rows = [
        (text.local_time(one.began_at), "over" if one.ended_at else "firing", one.name, one.detail) for one in found
    ]
    service.table(
        {"alerts": [one.said for one in found]},
        ("since", "state", "rule", "what"),
        rows,
        whole=("since", "state"),
        empty="Nothing fires.",
    )


@alerts.command("rules", short_help="The rules.")
@asks_service
def alerts_rules(service: Service) -> None:
    """List the rules, by name."""
    found = service.client.alert_rules()
    rows = [
        (str(one.rule_id), one.name, one.kind, f"{one.threshold:g}", one.queue or "", one.task or "",
         "on" if one.active else "off")
        for one in found
    ]  # fmt: skip
    names = ("rule", "name", "kind", "threshold", "queue", "task", "state")
    service.table({"rules": [one.said for one in found]}, names, rows, whole=("rule",), empty="There are no rules.")


@alerts.command("add", short_help="Make a rule.")
@click.argument("name")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--threshold", type=float, required=True, help="A share below 1 for failure_rate, else seconds.")
@click.option("--queue", help="Only for this queue.")
@click.option("--task", help="Only for this task.")
@click.option("--window", "window_sec", type=float, help="How far back the rule looks, in seconds.")
@click.option("--min-runs", type=click.IntRange(min=1), help="How many runs the window must have.")
@asks_service
def alerts_add(service: Service, *, name: str, kind: str, threshold: float, **more: Any) -> None:
    """Make a rule of a KIND; docs/alerts.md tells what each looks at."""
    given = {key: value for key, value in more.items() if value is not None}
    made = service.client.add_alert_rule(name, kind, threshold, **given)
    service.show(made.said, [f"rule {made.rule_id}"])


@alerts.command("edit", short_help="Change a rule's numbers, switch it off or on.")
@click.argument("rule_id", type=click.UUID)
@click.option("--threshold", type=float, help="A share below 1 for failure_rate, else seconds.")
@click.option("--window", "window_sec", type=float, help="How far back the rule looks, in seconds.")
@click.option("--min-runs", type=click.IntRange(min=1), help="How many runs the window must have.")
@click.option("--on/--off", "active", default=None, help="Switch the rule on or off.")
@asks_service
def alerts_edit(service: Service, *, rule_id: UUID, **more: Any) -> None:
    """Change what is named; the rest stays."""
    changes = {key: value for key, value in more.items() if value is not None}
    if not changes:
        raise click.UsageError("say what is to be changed")
    made = service.client.change_alert_rule(rule_id, **changes)
    service.show(made.said, [f"rule {made.name} is {'on' if made.active else 'off'}"])


@alerts.command("remove", short_help="Remove a rule.")
@click.argument("rule_id", type=click.UUID)
@asks_service
def alerts_remove(service: Service, *, rule_id: UUID) -> None:
    """Remove a rule; what it has fired is over at the next look."""
    service.client.remove_alert_rule(rule_id)
    service.show({"removed": True}, ["removed"])
