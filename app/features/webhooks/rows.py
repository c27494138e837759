"""Webhooks and their deliveries. The database itself writes a delivery, in the transaction that finishes a job or fires
an alert."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, id_of_key, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DeliveryNotFound, IdempotencyConflict, WebhookNotFound
from dataloader.app.features.webhooks.receivers import Format, host_of
from dataloader.app.queue.webhook_events import FINAL_EVENTS, WebhookEvent
from dataloader.app.wording import replace_seconds
from dataloader.pipelines.json_values import sanitize_text

MAX_RESPONSE_LENGTH = 500
MAX_REDELIVERED = 1_000  # at a time: each has a line in the audit log
_MAX_ERROR_LENGTH = 500
_SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A webhook, without its secret. `failures` counts consecutive failed deliveries."""

    webhook_id: UUID
    url: str
    events: list[str]
    queue: str | None
    task: str | None
    description: str
    active: bool
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    failing_since: datetime | None
    paused_until: datetime | None
    old_secret_expires_at: datetime | None
    format: Format

    @property
    def public_address(self) -> str:
        """The address as every caller may see it."""
        return self.url if self.format is Format.EMAIL else host_of(self.url)


@dataclass(frozen=True, kw_only=True)
class LeasedDelivery:
    """A delivery that a sender has leased. `secrets` is empty for a job's own webhook."""

    id: UUID
    webhook_id: UUID | None
    url: str
    target: str
    job_id: UUID | None
    event: str
    body: str
    attempts: int  # this one included
    earlier_attempts: int  # before it was redelivered
    format: Format
    secrets: tuple[str, ...] = field(repr=False)
    now: int  # the database's time in seconds since 1970


@dataclass(frozen=True, kw_only=True)
class DeliveryResult:
    """The result of an attempt. `status` is the HTTP status of the response, if there was one."""

    state: DeliveryState
    duration_ms: float
    status: int | None = None
    response: str = ""
    error: str | None = None
    retry_in_sec: float = 0.0  # if the delivery stays pending
    receiver_down: bool = False  # pause all deliveries to this receiver for a while


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A delivery to a receiver; `status` and `error` are those of its last attempt."""

    delivery_id: UUID
    webhook_id: UUID | None
    url: str
    format: Format
    job_id: UUID | None
    event: str
    state: DeliveryState
    attempts: int
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str | None


@dataclass(frozen=True)
class LastDelivery:
    delivery_id: UUID
    event: str
    state: DeliveryState
    created_at: datetime


@dataclass(frozen=True)
class DeliveryAttempt:
    """One attempt of a delivery, with the beginning of the receiver's response."""

    number: int
    at: datetime
    status: int | None
    duration_ms: float
    response: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class DeliveryDetail(Delivery):
    """A delivery with the body that is sent, and its attempts."""

    body: str
    attempt_log: list[DeliveryAttempt]


@dataclass(frozen=True)
class DeliveryBacklog:
    """Undelivered deliveries: `failing` of the pending ones were attempted before."""

    pending: int
    failing: int
    oldest_sec: float
    disabled_webhooks: int


class Webhooks:
    """Reads and changes webhooks, and leases and updates their deliveries."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def add(
        self,
        url: str,
        *,
        events: Iterable[str] = FINAL_EVENTS,
        queue: str | None = None,
        task: str | None = None,
        description: str = "",
        format: Format = Format.JSON,
        idempotency_key: str | None = None,
    ) -> tuple[Webhook, str | None]:
        """Add a webhook; return it with its secret, which cannot be read again; None: the one with the key is there.
        Raises IdempotencyConflict if that one has other values."""
        secret, webhook_id = _new_secret(), id_of_key("webhook", idempotency_key)
        texts = {"url": url, "queue": queue, "task": task, "description": description, "secret": secret}
        values = {"events": array(events), "webhook_id": str(webhook_id), "format": format.value}
        parameters = validate_texts(texts) | values
        if rows := self._execute("add_webhook", parameters):
            return from_row(Webhook, rows[0]), secret
        webhook = self.get(webhook_id)
        requested = (url, list(events), queue, task, description, format)
        kept = (webhook.url, webhook.events, webhook.queue, webhook.task, webhook.description, webhook.format)
        if kept != requested:
            raise IdempotencyConflict(idempotency_key or "", None, "a webhook with other values")
        return webhook, None

    def all(self) -> list[Webhook]:
        return [from_row(Webhook, row) for row in self._execute("webhooks", {"webhook_id": None})]

    def get(self, webhook_id: UUID) -> Webhook:
        return from_row(Webhook, self._single_row("webhooks", webhook_id))

    def change(
        self,
        webhook_id: UUID,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        description: str | None = None,
        format: Format | None = None,
        active: bool | None = None,
    ) -> Webhook:
        """Change a webhook. None leaves a value as it is, an empty text removes a filter. Deactivating it fails its
        pending deliveries."""
        texts = {"url": url, "queue": queue, "task": task, "description": description}
        values = {"events": None if events is None else array(events), "active": active, "format": format}
        row = self._single_row("change_webhook", webhook_id, **validate_texts(texts), **values)
        return from_row(Webhook, row[:-1])

    def remove(self, webhook_id: UUID) -> None:
        """Delete a webhook, its deliveries and their attempts."""
        self._single_row("remove_webhook", webhook_id)

    def rotate(self, webhook_id: UUID, *, overlap_sec: float) -> tuple[Webhook, str]:
        """Replace the secret and return the new one; deliveries carry both signatures for `overlap_sec`."""
        secret = _new_secret()
        row = self._single_row("rotate_webhook_secret", webhook_id, secret=secret, overlap_sec=overlap_sec)
        return from_row(Webhook, row), secret

    def ping(self, webhook_id: UUID) -> UUID:
        """Create a test delivery; return its id."""
        return as_uuid(self._single_row("ping_webhooks", webhook_id)[0])

    def ping_alert_receivers(self) -> list[UUID]:
        """Create a test delivery for each active webhook that gets alerts; return their ids."""
        return [as_uuid(row[0]) for row in self._execute("ping_webhooks", {"webhook_id": None})]

    def last_deliveries(self) -> dict[UUID, LastDelivery]:
        """The last delivery of each webhook that gets alerts."""
        return {as_uuid(row[0]): from_row(LastDelivery, row[1:]) for row in self._execute("last_deliveries")}

    def _single_row(self, statement: str, webhook_id: UUID, **parameters: Any) -> tuple[Any, ...]:
        rows = self._execute(statement, {"webhook_id": str(webhook_id), **parameters})
        if not rows:
            raise WebhookNotFound(webhook_id)
        return rows[0]

    def deliveries(
        self,
        *,
        webhook_id: UUID | None = None,
        job_id: UUID | None = None,
        state: DeliveryState | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """List deliveries, newest first; `before` is the last one of the previous page."""
        rows = self._delivery_rows(webhook_id=webhook_id, job_id=job_id, state=state, before=before, limit=limit)
        return [from_row(Delivery, row[:-1]) for row in rows]

    def delivery(self, delivery_id: UUID) -> DeliveryDetail:
        rows = self._delivery_rows(delivery_id=delivery_id)
        if not rows:
            raise DeliveryNotFound(delivery_id)
        attempts = self._execute("delivery_attempts", {"delivery_id": str(delivery_id)})
        detail = from_row(DeliveryDetail, rows[0], attempt_log=[DeliveryAttempt(*row) for row in attempts])
        return replace(detail, body=_with_durations(detail.event, detail.body))

    def _delivery_rows(self, *, limit: int = 1, **criteria: Any) -> list[tuple[Any, ...]]:
        names = ("delivery_id", "webhook_id", "job_id", "state", "before")
        values = {name: criteria.get(name) and str(criteria[name]) for name in names}
        return self._execute("deliveries", {**values, "limit": limit})

    def redeliver(self, delivery_id: UUID) -> None:
        """Send a delivery again now, and retry it like a new one."""
        if not self._execute("redeliver", {"delivery_id": str(delivery_id)}):
            raise DeliveryNotFound(delivery_id)

    def redeliver_undelivered(self, webhook_id: UUID) -> int:
        """Send again what was not delivered to a webhook, the oldest `MAX_REDELIVERED`; return how many."""
        return int(self._single_row("redeliver_undelivered", webhook_id, limit=MAX_REDELIVERED)[0])

    def backlog(self) -> DeliveryBacklog:
        return DeliveryBacklog(*self._execute("webhook_backlog")[0])

    # Called by the webhook sender

    def lease(
        self,
        claim_id: UUID,
        *,
        limit: int,
        max_per_target: int,
        busy_targets: Sequence[str],
        half_busy_targets: Sequence[str] = (),
        lease_sec: float,
    ) -> tuple[list[LeasedDelivery], float | None]:
        """Lease due deliveries; return them with the seconds until the next one may be due (None: none is pending)."""
        parameters = {
            "claim_id": str(claim_id),
            "limit": limit,
            "max_per_target": max_per_target,
            "busy": array(busy_targets),
            "half_busy": array(half_busy_targets),
            "lease_sec": lease_sec,
        }
        rows = self._execute("lease_deliveries", parameters)
        leased = [from_row(LeasedDelivery, row[:-1]) for row in rows if row[0] is not None]
        return [replace(each, body=_with_durations(each.event, each.body)) for each in leased], rows[0][-1]

    def save_result(self, delivery: LeasedDelivery, claim_id: UUID, result: DeliveryResult) -> bool:
        """Save the result of an attempt; False if another sender has leased the delivery since."""
        parameters = {
            "delivery_id": str(delivery.id),
            "webhook_id": delivery.webhook_id and str(delivery.webhook_id),
            "claim_id": str(claim_id),
            "number": delivery.attempts,
            "state": result.state.value,
            "response": sanitize_text(result.response, MAX_RESPONSE_LENGTH),
            "error": None if result.error is None else sanitize_text(result.error, _MAX_ERROR_LENGTH),
        }
        return bool(self._execute("save_delivery_result", vars(result) | parameters))

    def disable(self, webhook_id: UUID, *, reason: str, failing_for_sec: float, immediately: bool = False) -> bool:
        """Deactivate a webhook that has failed for longer than `failing_for_sec`; return whether it was deactivated."""
        parameters = {"reason": reason, "failing_for_sec": failing_for_sec, "immediately": immediately}
        return bool(self._execute("disable_webhook", parameters | {"webhook_id": str(webhook_id)})[0][1])

    def prune(self, *, keep_sec: float, limit: int = 1000) -> int:
        """Delete old finished deliveries; return their number."""
        return len(self._execute("prune_deliveries", {"keep_sec": keep_sec, "limit": limit}))


def _with_durations(event: str, body: str) -> str:
    """The body of an alert with the durations of its detail as people read them: SQL has written seconds."""
    if event not in (WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED):
        return body
    try:
        payload = json.loads(body)
        for alert in payload["data"].get("alerts") or [payload["data"]]:
            alert["detail"] = replace_seconds(alert["detail"])
    except (ValueError, LookupError, TypeError):  # not ours
        return body
    return json.dumps(payload, ensure_ascii=False)


def _new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
