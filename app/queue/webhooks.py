"""Webhooks: who is told of what, and how the telling goes. What is to be told is written by the database itself, in the
transaction that ends a run or a wait."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.errors import DeliveryNotFound, WebhookNotFound
from app.queue.jobqueue import Source, as_uuid
from app.queue.values import array, checked_text, clean_text

LONGEST_ANSWER = 500  # characters of a receiver's answer that are kept
_LONGEST_ERROR = 500
_SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, and no secret


class Event(StrEnum):
    """What a webhook may be told of."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELED = "job.canceled"
    LOST = "job.lost"
    RETRYING = "job.retrying"
    ALERT_FIRING = "alert.firing"
    ALERT_OVER = "alert.over"
    PING = "webhook.ping"


ENDS = (Event.SUCCEEDED, Event.FAILED, Event.CANCELED, Event.LOST)
OF_JOBS = (*ENDS, Event.RETRYING)
SUBSCRIBABLE = (*OF_JOBS, Event.ALERT_FIRING, Event.ALERT_OVER)


class DeliveryState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class Webhook:
    """Who wants to be told; the secret is not among what can be read."""

    id: UUID
    url: str
    events: tuple[str, ...]
    queue: str | None
    task: str | None
    description: str
    created_at: datetime
    disabled_at: datetime | None
    disabled_why: str | None
    failures: int  # in a row
    failing_since: datetime | None
    rest_until: datetime | None
    old_secret_until: datetime | None


@dataclass(frozen=True, kw_only=True)
class Due:
    """A delivery in the hands of whoever sends it. `secrets` is empty for a job's own webhook."""

    id: UUID
    webhook_id: UUID | None
    url: str
    target: str
    job_id: UUID | None
    event: str
    body: str
    tries: int  # this one included
    first_try: int  # tries before it was asked for anew
    secrets: tuple[str, ...] = field(repr=False)
    now: int  # the database's time, in whole seconds since 1970


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a try went. `status` is the receiver's, if there was one."""

    state: DeliveryState
    duration_ms: float
    status: int | None = None
    answer: str = ""
    error: str | None = None
    pause_sec: float = 0.0  # until the next try, if the delivery still waits
    down: bool = False  # the receiver itself is in trouble: it is left alone for a while


@dataclass(frozen=True)
class Delivery:
    """What was, or is to be, told; with what the last try has brought."""

    id: UUID
    webhook_id: UUID | None
    url: str
    job_id: UUID | None
    event: str
    state: DeliveryState
    tries: int
    created_at: datetime
    due_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str | None
    body: str


@dataclass(frozen=True)
class Try:
    n: int
    at: datetime
    status: int | None
    duration_ms: float
    answer: str
    error: str | None


@dataclass(frozen=True)
class Backlog:
    waiting: int
    failing: int  # of them, tried before
    oldest_sec: float
    disabled: int  # webhooks


class Webhooks:
    """The subscriptions and the outbox in one schema of one database."""

    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask

    # ── who is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        url: str,
        *,
        events: Iterable[str] = ENDS,
        queue: str | None = None,
        task: str | None = None,
        description: str = "",
    ) -> tuple[Webhook, str]:
        """Subscribe. The secret is told here, and never again."""
        secret = _new_secret()
        told = {"url": url, "queue": queue, "task": task, "description": description, "secret": secret}
        rows = self._ask("add_webhook", _checked(told) | {"events": array(events)})
        return _webhook(rows[0]), secret

    def all(self) -> list[Webhook]:
        return [_webhook(row) for row in self._ask("webhooks", {"webhook_id": None})]

    def get(self, webhook_id: UUID) -> Webhook:
        return _webhook(_one(self._ask("webhooks", {"webhook_id": str(webhook_id)}), webhook_id))

    def change(
        self,
        webhook_id: UUID,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> Webhook:
        """What is None stays as it is; the empty text takes a filter away. Switched off, what waits is given up."""
        told = {"url": url, "queue": queue, "task": task, "description": description}
        asked = _checked(told) | {
            "webhook_id": str(webhook_id),
            "events": None if events is None else array(events),
            "active": active,
        }
        return _webhook(_one(self._ask("change_webhook", asked), webhook_id))

    def remove(self, webhook_id: UUID) -> None:
        """Its deliveries and their log go with it."""
        _one(self._ask("remove_webhook", {"webhook_id": str(webhook_id)}), webhook_id)

    def rotate(self, webhook_id: UUID, *, overlap_sec: float) -> tuple[Webhook, str]:
        """A new secret; the old one signs beside it for a while."""
        secret = _new_secret()
        asked = {"webhook_id": str(webhook_id), "secret": secret, "overlap_sec": overlap_sec}
        return _webhook(_one(self._ask("rotate_webhook_secret", asked), webhook_id)), secret

    def ping(self, webhook_id: UUID) -> UUID:
        """Have something sent, to see whether it arrives; returns the delivery."""
        return as_uuid(_one(self._ask("ping_webhook", {"webhook_id": str(webhook_id)}), webhook_id)[0])

    # ── how the telling goes ────────────────────────────────────────────────────────────────────────────────────

    def deliveries(
        self,
        *,
        webhook_id: UUID | None = None,
        job_id: UUID | None = None,
        state: DeliveryState | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """The newest first; `before` is the last one of the page before."""
        return self._deliveries(webhook_id=webhook_id, job_id=job_id, state=state, before=before, limit=limit)

    def delivery(self, delivery_id: UUID) -> tuple[Delivery, list[Try]]:
        found = self._deliveries(delivery_id=delivery_id)
        if not found:
            raise DeliveryNotFound(delivery_id)
        return found[0], [Try(*row) for row in self._ask("delivery_tries", {"delivery_id": str(delivery_id)})]

    def _deliveries(self, **which: Any) -> list[Delivery]:
        names = ("delivery_id", "webhook_id", "job_id", "state", "before")
        asked = {name: None if which.get(name) is None else str(which[name]) for name in names}
        return [_delivery(row) for row in self._ask("deliveries", asked | {"limit": which.get("limit", 1)})]

    def redeliver(self, delivery_id: UUID) -> None:
        """Send it once more, at once, and then for as long as a new one."""
        if not self._ask("redeliver", {"delivery_id": str(delivery_id)}):
            raise DeliveryNotFound(delivery_id)

    def backlog(self) -> Backlog:
        return Backlog(*self._ask("webhook_backlog")[0])

    # ── for whoever delivers ────────────────────────────────────────────────────────────────────────────────────

    def take(
        self,
        claim_id: UUID,
        *,
        most: int,
        of_each: int,
        busy: Sequence[str],
        half_busy: Sequence[str] = (),
        lease_sec: float,
    ) -> tuple[list[Due], float | None]:
        """What is to be sent now, and in how many seconds something else may be (None: nothing waits)."""
        asked = {
            "claim_id": str(claim_id),
            "most": most,
            "of_each": of_each,
            "busy": array(busy),
            "half_busy": array(half_busy),
            "lease_sec": lease_sec,
        }
        rows = self._ask("take_deliveries", asked)
        return [_due(row) for row in rows if row[0] is not None], rows[0][-1]

    def note(self, due: Due, claim_id: UUID, how: Outcome) -> bool:
        """Write down how a try went. False: somebody else has taken it over meanwhile."""
        asked = {
            "delivery_id": str(due.id),
            "webhook_id": None if due.webhook_id is None else str(due.webhook_id),
            "claim_id": str(claim_id),
            "n": due.tries,
            "state": how.state.value,
            "status": how.status,
            "duration_ms": how.duration_ms,
            "answer": clean_text(how.answer, LONGEST_ANSWER),
            "error": None if how.error is None else clean_text(how.error, _LONGEST_ERROR),
            "pause_sec": how.pause_sec,
            "down": how.down,
        }
        return bool(self._ask("note_delivery", asked))

    def disable(self, webhook_id: UUID, *, why: str, patience_sec: float, at_once: bool = False) -> bool:
        """Switch a webhook off that has failed for longer than the patience; tells whether it was."""
        asked = {"webhook_id": str(webhook_id), "why": why, "patience_sec": patience_sec, "at_once": at_once}
        return bool(self._ask("disable_webhook", asked)[0][1])

    def prune(self, *, keep_sec: float, most: int = 1000) -> int:
        """Forget old deliveries that are over; returns how many."""
        return len(self._ask("prune_deliveries", {"keep_sec": keep_sec, "most": most}))


def _new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def _checked(told: dict[str, str | None]) -> dict[str, str | None]:
    return {name: None if text is None else checked_text(name, text) for name, text in told.items()}


def _one(rows: list[tuple[Any, ...]], webhook_id: UUID) -> tuple[Any, ...]:
    if not rows:
        raise WebhookNotFound(webhook_id)
    return rows[0]


def _webhook(row: tuple[Any, ...]) -> Webhook:
    return Webhook(as_uuid(row[0]), row[1], tuple(row[2]), *row[3:13])


def _due(row: tuple[Any, ...]) -> Due:
    (delivery_id, webhook_id, url, target, job_id, event, body, tries, first_try, secret, old_secret, now, _) = row
    return Due(
        id=as_uuid(delivery_id),
        webhook_id=webhook_id and as_uuid(webhook_id),
        url=url,
        target=target,
        job_id=job_id and as_uuid(job_id),
        event=event,
        body=body,
        tries=tries,
        first_try=first_try,
        secrets=tuple(secret for secret in (secret, old_secret) if secret),
        now=now,
    )


def _delivery(row: tuple[Any, ...]) -> Delivery:
    (delivery_id, webhook_id, url, job_id, event, state, *rest) = row
    return Delivery(
        as_uuid(delivery_id),
        webhook_id and as_uuid(webhook_id),
        url,
        job_id and as_uuid(job_id),
        event,
        DeliveryState(state),
        *rest,
    )
