"""The client's words for webhooks and alerts; `app.client.Client` has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

Said = dict[str, Any]
HOOKS, DELIVERIES, ALERTS = "/api/v1/webhooks", "/api/v1/deliveries", "/api/v1/alerts"


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Who is told. `secret` is there when it was just made, and never again."""

    webhook_id: UUID
    url: str
    events: tuple[str, ...]
    queue: str | None
    task: str | None
    active: bool
    failures: int
    disabled_why: str | None
    secret: str | None = field(repr=False)
    said: Said = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What was told, or is to be; `log` and `body` only of one that was asked for by its id."""

    delivery_id: UUID
    webhook_id: UUID | None
    job_id: UUID | None
    event: str
    state: str
    tries: int
    status: int | None
    error: str | None
    created_at: datetime
    said: Said = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    rule_id: UUID
    name: str
    kind: str
    queue: str | None
    task: str | None
    threshold: float
    window_sec: float
    min_runs: int
    active: bool
    said: Said = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """From its beginning to its end."""

    alert_id: UUID
    kind: str
    name: str
    subject: str
    detail: str
    began_at: datetime
    ended_at: datetime | None
    said: Said = field(repr=False)


class Telling:
    """Mixed into the client."""

    def _told(self, method: str, path: str, body: Said | None, read: Any) -> Any:
        raise NotImplementedError

    # ── webhooks ────────────────────────────────────────────────────────────────────────────────────────────────

    def webhooks(self) -> list[Webhook]:
        found: list[Webhook] = self._told("GET", HOOKS, None, lambda said: [_webhook(one) for one in said["webhooks"]])
        return found

    def webhook(self, webhook_id: UUID) -> Webhook:
        return self._one_webhook("GET", f"/{webhook_id}")

    def add_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        description: str | None = None,
    ) -> Webhook:
        """Its `secret` is told here alone."""
        asked = {"url": url, "events": events, "queue": queue, "task": task, "description": description}
        return self._one_webhook("POST", "", _given(asked))

    def change_webhook(self, webhook_id: UUID, **changes: Any) -> Webhook:
        """url, events, queue, task, description, active; the empty text takes a filter away."""
        return self._one_webhook("PATCH", f"/{webhook_id}", changes)

    def remove_webhook(self, webhook_id: UUID) -> None:
        self._told("DELETE", f"{HOOKS}/{webhook_id}", None, lambda said: said["removed"])

    def rotate_webhook(self, webhook_id: UUID, *, overlap_sec: int = 86_400) -> Webhook:
        return self._one_webhook("POST", f"/{webhook_id}/rotate", {"overlap_sec": overlap_sec})

    def ping_webhook(self, webhook_id: UUID) -> UUID:
        """The delivery under which it is found how it went."""
        return self._sent(f"{HOOKS}/{webhook_id}/ping")

    def deliveries(
        self,
        *,
        webhook_id: UUID | None = None,
        job_id: UUID | None = None,
        state: str | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """The newest first."""
        asked = {"webhook_id": webhook_id, "job_id": job_id, "state": state, "before": before, "limit": limit}
        found: list[Delivery] = self._told(
            "GET",
            f"{DELIVERIES}?{urlencode(_given(asked))}",
            None,
            lambda said: [_delivery(one) for one in said["deliveries"]],
        )
        return found

    def delivery(self, delivery_id: UUID) -> Delivery:
        found: Delivery = self._told("GET", f"{DELIVERIES}/{delivery_id}", None, _delivery)
        return found

    def redeliver(self, delivery_id: UUID) -> UUID:
        return self._sent(f"{DELIVERIES}/{delivery_id}/redeliver")

    def _one_webhook(self, method: str, path: str, body: Said | None = None) -> Webhook:
        found: Webhook = self._told(method, HOOKS + path, body, _webhook)
        return found

    def _sent(self, path: str) -> UUID:
        found: UUID = self._told("POST", path, None, lambda said: UUID(said["delivery_id"]))
        return found

    # ── alerts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def alerts(self, *, firing: bool = True, before: UUID | None = None, limit: int = 100) -> list[Alert]:
        """The newest first; without `firing` also those that are over."""
        asked = _given({"state": "firing" if firing else "all", "before": before, "limit": limit})
        found: list[Alert] = self._told(
            "GET", f"{ALERTS}?{urlencode(asked)}", None, lambda said: [_alert(one) for one in said["alerts"]]
        )
        return found

    def alert_rules(self) -> list[AlertRule]:
        found: list[AlertRule] = self._told(
            "GET", f"{ALERTS}/rules", None, lambda said: [_rule(one) for one in said["rules"]]
        )
        return found

    def alert_rule(self, rule_id: UUID) -> AlertRule:
        return self._one_rule("GET", f"/{rule_id}")

    def add_alert_rule(self, name: str, kind: str, threshold: float, **more: Any) -> AlertRule:
        """queue, task, window_sec, min_runs. Raises `Conflict` if the name is taken."""
        return self._one_rule("POST", "", {"name": name, "kind": kind, "threshold": threshold, **more})

    def change_alert_rule(self, rule_id: UUID, **changes: Any) -> AlertRule:
        """threshold, window_sec, min_runs, active."""
        return self._one_rule("PATCH", f"/{rule_id}", changes)

    def remove_alert_rule(self, rule_id: UUID) -> None:
        self._told("DELETE", f"{ALERTS}/rules/{rule_id}", None, lambda said: said["removed"])

    def _one_rule(self, method: str, path: str, body: Said | None = None) -> AlertRule:
        found: AlertRule = self._told(method, f"{ALERTS}/rules{path}", body, _rule)
        return found


def _given(asked: Mapping[str, Any]) -> Said:
    return {name: value for name, value in asked.items() if value is not None}


def _id(told: str | None) -> UUID | None:
    return None if told is None else UUID(told)


def _webhook(said: Said) -> Webhook:
    names = ("url", "queue", "task", "active", "failures", "disabled_why")
    return Webhook(
        webhook_id=UUID(said["webhook_id"]),
        events=tuple(said["events"]),
        secret=said.get("secret"),
        said=said,
        **{name: said[name] for name in names},
    )


def _delivery(said: Said) -> Delivery:
    return Delivery(
        delivery_id=UUID(said["delivery_id"]),
        webhook_id=_id(said["webhook_id"]),
        job_id=_id(said["job_id"]),
        created_at=datetime.fromisoformat(said["created_at"]),
        said=said,
        **{name: said[name] for name in ("event", "state", "tries", "status", "error")},
    )


def _rule(said: Said) -> AlertRule:
    names = ("name", "kind", "queue", "task", "threshold", "window_sec", "min_runs", "active")
    return AlertRule(rule_id=UUID(said["rule_id"]), said=said, **{name: said[name] for name in names})


def _alert(said: Said) -> Alert:
    ended = said["ended_at"]
    return Alert(
        alert_id=UUID(said["alert_id"]),
        began_at=datetime.fromisoformat(said["began_at"]),
        ended_at=None if ended is None else datetime.fromisoformat(ended),
        said=said,
        **{name: said[name] for name in ("kind", "name", "subject", "detail")},
    )
