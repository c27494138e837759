"""Commands about webhooks and their deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import ID, option
from dataloader.app.cli.remote import RemoteGroup, RemoteService
from dataloader.app.wording import format_count

_WEBHOOKS = Table(
    "webhooks",
    "webhook=webhook_id!, state, format, failures, queue, task, events, url",
    "No webhooks.",
    cells={
        "state": lambda webhook: "on" if webhook["active"] else f"off: {webhook['disabled_reason']}",
        "events": lambda webhook: " ".join(webhook["events"]),
    },
)
_DELIVERIES = Table(
    "deliveries", "delivery=delivery_id!, state!, attempts, event, job=job_id, error", "No deliveries match."
)
_MAX_ERROR_LENGTH = 60
_EVENTS = {"names": "--event", "help": "Send this event; by default every end of a job. May be repeated."}


def _created_lines(webhook: text.Payload) -> Iterator[str]:
    yield f"webhook {webhook['webhook_id']}"
    if webhook["format"] != "json":
        yield f"format  {webhook['format']}; a test: dataloader webhooks ping {webhook['webhook_id']}"
        return
    yield f"secret  {webhook['secret'] or 'shown when it was created; `dataloader webhooks rotate` makes another'}"


def _delivery_lines(delivery: text.Payload) -> Iterator[str]:
    yield f"{delivery['event']} to {delivery['url']}: {delivery['state']}"
    for attempt in delivery["attempt_log"]:
        duration = text.format_number(attempt["duration_ms"], ".0f")
        is_status_alone = attempt["error"] == f"answered {attempt['status']}"
        reason = text.one_line(attempt["response"] if is_status_alone else attempt["error"] or attempt["response"])
        line = f"{text.format_time(attempt['at'])}  {attempt['status'] or '-'}  {duration} ms"
        yield f"{line}  {reason[:_MAX_ERROR_LENGTH]}".rstrip()


webhooks = RemoteGroup(
    "webhooks", former={"add": "create", "remove": "delete"},
    help="Manage webhooks: requests to other services when jobs end or alerts fire.",
)  # fmt: skip
webhooks.add("list", "list_webhooks", _WEBHOOKS)
webhooks.add(
    "create", "create_webhook", _created_lines, arguments=("url",),
    options={"url": {"metavar": "ADDRESS"}, "events": _EVENTS},
    help="Create a webhook that sends every end of a job, or the given events, to ADDRESS. The secret is shown only "
    "now.",
)  # fmt: skip
webhooks.add(
    "edit", "edit_webhook", lambda hook: f"webhook {hook['webhook_id']} is {'on' if hook['active'] else 'off'}",
    options={
        "url": {"names": "--to", "metavar": "ADDRESS", "help": "The new address."},
        "events": {**_EVENTS, "help": "Send this event; may be repeated."},
        "active": {"names": "--on/--off", "help": "Switch it on or off."},
    },
)  # fmt: skip
webhooks.add("delete", "delete_webhook", "Webhook {webhook_id} is deleted.")
webhooks.add("rotate", "rotate_webhook_secret", "secret  {secret}")
webhooks.add("ping", "ping_webhook", "delivery {delivery_id}\ndataloader webhooks delivery {delivery_id}")
webhooks.add("deliveries", "list_deliveries", _DELIVERIES, options={"webhook_id": "--webhook", "job_id": "--job"})
webhooks.add("delivery", "get_delivery", _delivery_lines)


@webhooks.command("redeliver", short_help="Send a delivery, or all undelivered ones, again.")
@click.argument("delivery_id", type=ID, required=False)
@option("--webhook", "webhook_id", type=ID, help="All that was not delivered to this webhook.")
def redeliver(service: RemoteService, *, delivery_id: UUID | None, webhook_id: UUID | None) -> None:
    """Send a delivery again, under the same id, with retries for a day as if it were new; or with --webhook all that
    were not delivered, the oldest thousand."""
    if (delivery_id is None) == (webhook_id is None):
        raise click.UsageError("name a delivery, or a webhook with --webhook")
    if delivery_id is not None:
        service.send("redeliver_webhook", delivery_id=delivery_id)
        print_payload({"delivery_id": str(delivery_id)}, "it will be sent")
    else:
        service.perform("redeliver_undelivered", _queued_line, webhook_id=webhook_id)


def _queued_line(queued: text.Payload) -> str:
    return f"{format_count(queued['deliveries'], 'delivery', 'deliveries')} will be sent"


COMMANDS = {"Watch": (webhooks,)}
