"""Commands about webhooks and their deliveries."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import SECONDS, limit_option, without_none
from dataloader.app.cli.service_options import RemoteGroup, RemoteService
from dataloader.app.cli.tables import Table
from dataloader.app.wording import format_count

EVENTS = ("job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.resolved")
DELIVERY_STATES = ("pending", "delivered", "failed")
_WEBHOOKS = Table(
    "webhook=webhook_id, state, failures, queue, task, events, url",
    {
        "state": lambda webhook: "on" if webhook["active"] else f"off: {webhook['disabled_reason']}",
        "events": lambda webhook: " ".join(webhook["events"]),
    },
    uncut="webhook",
    empty_message="No webhooks.",
)
_DELIVERIES = Table(
    "delivery=delivery_id, state, attempts, event, job=job_id, error",
    uncut="delivery, state",
    empty_message="No deliveries match.",
)
webhooks = RemoteGroup(
    "webhooks",
    former={"add": "create", "remove": "delete"},
    help="Manage webhooks: requests to other services when jobs end or alerts fire.",
)
_PATH = "/api/v1/webhooks"
_MAX_ERROR_LENGTH = 60
webhook_argument = click.argument("webhook_id", type=click.UUID)
delivery_argument = click.argument("delivery_id", type=click.UUID)


@webhooks.command("list", short_help="List the webhooks.")
def webhooks_list(service: RemoteService) -> None:
    """List the webhooks, oldest first."""
    service.print_list(service.get(_PATH), "webhooks", _WEBHOOKS)


@webhooks.command("create", short_help="Create a webhook.")
@click.argument("to", metavar="ADDRESS")
@click.option("--event", "events", type=click.Choice(EVENTS), multiple=True,
              help="Send this event; by default every end of a job. May be repeated.")  # fmt: skip
@click.option("--queue", help="Only events of jobs in this queue.")
@click.option("--task", help="Only events of jobs of this task.")
@click.option("--description", help="What it is for.")
@click.option("--idempotency-key", help="Create no second webhook when the command is repeated.")
def webhooks_create(service: RemoteService, *, to: str, events: tuple[str, ...], **options: Any) -> None:
    """Create a webhook that sends every end of a job, or the given events, to ADDRESS. The secret is shown only now."""
    webhook = service.post(_PATH, without_none({**options, "url": to, "events": events or None}))
    service.print_warnings(webhook)
    secret = webhook["secret"] or "shown when it was created; `dataloader webhooks rotate` makes another"
    service.print_payload(webhook, f"webhook {webhook['webhook_id']}", f"secret  {secret}")


@webhooks.command("edit", short_help="Change a webhook, switch it off or on.")
@webhook_argument
@click.option("--to", help="The new address.", metavar="ADDRESS")
@click.option("--event", "events", type=click.Choice(EVENTS), multiple=True, help="Send this event; may be repeated.")
@click.option("--queue", help="Only events of jobs in this queue; '' for all.")
@click.option("--task", help="Only events of jobs of this task; '' for all.")
@click.option("--description", help="What it is for.")
@click.option("--on/--off", "active", default=None, help="Switch it on or off.")
def webhooks_edit(
    service: RemoteService, *, webhook_id: UUID, to: str | None, events: tuple[str, ...], **changes: Any
) -> None:
    """Change the given options of a webhook; the others stay."""
    webhook = service.patch(f"{_PATH}/{webhook_id}", {**changes, "url": to, "events": events or None})
    service.print_warnings(webhook)
    service.print_payload(webhook, f"webhook {webhook['webhook_id']} is {'on' if webhook['active'] else 'off'}")


@webhooks.command("delete", short_help="Delete a webhook.")
@webhook_argument
def webhooks_delete(service: RemoteService, *, webhook_id: UUID) -> None:
    """Delete a webhook, with its deliveries and their log."""
    service.delete(f"{_PATH}/{webhook_id}")
    service.print_payload({"deleted": True}, f"Webhook {webhook_id} is deleted.")


@webhooks.command("rotate", short_help="Replace the secret of a webhook.")
@webhook_argument
@click.option("--overlap", type=SECONDS, default=86_400, show_default=True,
              help="How long requests are also signed with the old secret.")  # fmt: skip
def webhooks_rotate(service: RemoteService, *, webhook_id: UUID, overlap: float) -> None:
    """Replace the secret of a webhook. The new one is shown only now."""
    webhook = service.post(f"{_PATH}/{webhook_id}/rotate", {"overlap_sec": overlap})
    service.print_payload(webhook, f"secret  {webhook['secret']}")


@webhooks.command("ping", short_help="Send a test event to a webhook.")
@webhook_argument
def webhooks_ping(service: RemoteService, *, webhook_id: UUID) -> None:
    """Send the event webhook.ping to a webhook; a worker process sends it."""
    delivery_id = service.post(f"{_PATH}/{webhook_id}/ping")["delivery_id"]
    service.print_payload(
        {"delivery_id": delivery_id}, f"delivery {delivery_id}", f"dataloader webhooks delivery {delivery_id}"
    )


@webhooks.command("deliveries", short_help="List deliveries.")
@click.option("--webhook", "webhook_id", type=click.UUID, help="Only deliveries to this webhook.")
@click.option("--job", "job_id", type=click.UUID, help="Only deliveries about this job.")
@click.option("--state", type=click.Choice(DELIVERY_STATES), help="Only deliveries in this state.")
@limit_option
def webhooks_deliveries(service: RemoteService, **query: Any) -> None:
    """List deliveries, newest first."""
    service.print_list(service.get("/api/v1/deliveries", **query), "deliveries", _DELIVERIES)


@webhooks.command("delivery", short_help="Show a delivery.")
@delivery_argument
def webhooks_delivery(service: RemoteService, *, delivery_id: UUID) -> None:
    """Show a delivery: each attempt, and the receiver's response."""
    delivery = service.get(f"/api/v1/deliveries/{delivery_id}")
    head = f"{delivery['event']} to {delivery['url']}: {delivery['state']}"
    lines = []
    for attempt in delivery["attempt_log"]:
        duration = text.format_number(attempt["duration_ms"], ".0f")
        times = f"{text.format_time(attempt['at'])}  {attempt['status'] or '-'}  {duration} ms"
        is_status_alone = attempt["error"] == f"answered {attempt['status']}"
        reason = attempt["response"] if is_status_alone else attempt["error"] or attempt["response"]
        lines.append(f"{times}  {text.one_line(reason)[:_MAX_ERROR_LENGTH]}".rstrip())
    service.print_payload(delivery, head, *lines)


@webhooks.command("redeliver", short_help="Send a delivery, or all undelivered ones, again.")
@click.argument("delivery_id", type=click.UUID, required=False)
@click.option("--webhook", "webhook_id", type=click.UUID, help="All that was not delivered to this webhook.")
def webhooks_redeliver(service: RemoteService, *, delivery_id: UUID | None, webhook_id: UUID | None) -> None:
    """Send a delivery again, under the same id, with retries for a day as if it were new; or with --webhook all that
    were not delivered, the oldest thousand."""
    if (delivery_id is None) == (webhook_id is None):
        raise click.UsageError("name a delivery, or a webhook with --webhook")
    if delivery_id is not None:
        service.post(f"/api/v1/deliveries/{delivery_id}/redeliver")
        service.print_payload({"delivery_id": str(delivery_id)}, "it will be sent")
        return
    queued = service.post(f"{_PATH}/{webhook_id}/redeliver")
    service.print_payload(queued, f"{format_count(queued['deliveries'], 'delivery', 'deliveries')} will be sent")
