"""Messages for people, made of the body of a delivery: what happened, where, since when, and the link."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any
from urllib.parse import quote

from dataloader.app.features.alerts.rows import subject_path
from dataloader.app.log import redact_text
from dataloader.app.queue.webhook_events import WebhookEvent
from dataloader.app.wording import format_count, format_duration
from dataloader.pipelines.zone_clock import find_zone

MAX_ITEMS = 10  # subjects that a message names; of the others it has the count
_MAX_TEXT_LENGTH = 300
_SHORT_ID_LENGTH = 8
_JOB_OUTCOMES = {
    WebhookEvent.SUCCEEDED: "succeeded",
    WebhookEvent.FAILED: "failed",
    WebhookEvent.CANCELED: "was canceled",
    WebhookEvent.LOST: "was lost",
    WebhookEvent.RETRYING: "failed, and is tried again",
}


class Tone(StrEnum):
    BAD = "bad"
    GOOD = "good"
    NEUTRAL = "neutral"


@dataclass(frozen=True)
class Item:
    """One subject: its name, its page, and lines about it."""

    name: str
    url: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """The subjects of one rule; without a title those of a message about a single thing."""

    title: str
    items: tuple[Item, ...]
    more: int = 0  # subjects that are not named


@dataclass(frozen=True)
class Message:
    title: str
    groups: tuple[Group, ...]
    tone: Tone
    origin: str  # the installation
    url: str | None  # the page that shows all of it
    url_title: str


@dataclass(frozen=True)
class Origin:
    """Where a message comes from: the installation's name, the address of its dashboard, and the zone of its times."""

    environment: str = "development"
    public_url: str | None = None
    zone: str = "UTC"

    def link(self, path: str) -> str | None:
        return None if self.public_url is None else f"{self.public_url}{path}"

    def time(self, moment: datetime) -> str:
        local = moment.astimezone(find_zone(self.zone))
        return f"{local:%d %b %H:%M} {self.zone if self.zone == 'UTC' else f'{local:%Z}'}"


def compose_message(event: str, body: str, origin: Origin) -> Message:
    payload: dict[str, Any] = json.loads(body)
    data = payload["data"]
    if event in (WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED):
        return _alert_message(event, payload, origin)
    if event in _JOB_OUTCOMES:
        return _job_message(event, data, origin)
    link = origin.link(f"/webhooks/{data.get('webhook_id', '')}")
    item = Item("This receiver gets messages of dataloader.", None, ("Nothing is wrong: this is a test.",))
    return Message("Test message", (Group("", (item,)),), Tone.NEUTRAL, origin.environment, link, "Open the webhook")


def _alert_message(event: str, payload: Mapping[str, Any], origin: Origin) -> Message:
    data = payload["data"]
    alerts = data.get("alerts") or [data]
    count = max(int(data.get("count", 0)), len(alerts))
    is_resolved = event == WebhookEvent.ALERT_RESOLVED
    now = datetime.fromisoformat(payload["timestamp"])
    by_rule = [(name, list(group)) for name, group in groupby(sorted(alerts, key=_rule_name), key=_rule_name)]
    groups, free = [], MAX_ITEMS
    for name, found in by_rule:
        items = tuple(_alert_item(alert, now, origin, is_resolved=is_resolved) for alert in found[:free])
        free -= len(items)
        groups.append(Group(name, items, len(found) - len(items)))
    if count > len(alerts):
        last = groups[-1]
        groups[-1] = Group(last.title, last.items, last.more + count - len(alerts))
    title = f"{'Resolved' if is_resolved else 'Firing'}: {by_rule[0][0]}"
    if len(by_rule) > 1:
        title += f" and {format_count(len(by_rule) - 1, 'other rule')}"
    if count > 1:
        title += f" ({format_count(count, 'alert')})"
    tone = Tone.GOOD if is_resolved else Tone.BAD
    return Message(title, tuple(groups), tone, origin.environment, origin.link("/alerts"), "Open the alerts")


def _rule_name(alert: Mapping[str, Any]) -> str:
    return str(alert["name"])


def _alert_item(alert: Mapping[str, Any], now: datetime, origin: Origin, *, is_resolved: bool) -> Item:
    started_at = datetime.fromisoformat(alert["started_at"])
    ended_at = alert.get("ended_at") and datetime.fromisoformat(alert["ended_at"])
    duration = format_duration(max(0.0, ((ended_at or now) - started_at).total_seconds()))
    subject, task, queue = str(alert["subject"]), alert.get("task"), alert.get("queue")
    where = [f"task {task}"] if task and task != subject else []
    where += [f"queue {queue}"] if queue and queue != subject else []
    when = f"since {origin.time(started_at)}"
    if is_resolved and ended_at:
        when += f", resolved {origin.time(ended_at)} after {duration}"
    elif duration != "0 s":
        when += f", for {duration}"
    path = subject_path(str(alert["kind"]), subject, task)
    lines = (_shorten(str(alert["detail"])), ", ".join([*where, when]))
    return Item(subject, origin.link(path), lines)


def _job_message(event: str, data: Mapping[str, Any], origin: Origin) -> Message:
    outcome = _JOB_OUTCOMES[WebhookEvent(event)]
    title = f"{data['task']} {outcome}"
    facts = [f"queue {data['queue']}", f"attempt {data['attempt']} of {data['max_attempts']}"]
    if data.get("started_at"):
        facts.append(f"since {origin.time(datetime.fromisoformat(data['started_at']))}")
    lines = [", ".join(facts)]
    if data.get("error") and event != WebhookEvent.SUCCEEDED:
        lines.insert(0, _shorten(redact_text(str(data["error"])).strip().splitlines()[-1]))
    link = origin.link(f"/jobs/{quote(str(data['job_id']))}")
    item = Item(f"job {str(data['job_id'])[-_SHORT_ID_LENGTH:]}", link, tuple(lines))
    tone = {WebhookEvent.SUCCEEDED: Tone.GOOD, WebhookEvent.CANCELED: Tone.NEUTRAL}.get(WebhookEvent(event), Tone.BAD)
    return Message(title, (Group("", (item,)),), tone, origin.environment, link, "Open the job")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 1]}…"
