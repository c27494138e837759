"""Webhooks: who is told of what, and how the telling went."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from app.addresses import LONGEST_URL, Allowed
from app.log import conceal, scrub
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.webhooks import ENDS, SUBSCRIBABLE, Delivery, DeliveryState, Try, Webhook, Webhooks
from app.web.answers import json_text
from app.web.auth import current_actor
from app.web.exchange import said
from app.web.models import LONGEST_LIST, need_one_of
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code
from app.web.subscriptions import known_events, names_of, welcome_url

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)
_LONGEST_OVERLAP = 30 * 86_400

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Filter = Annotated[str, Field(max_length=1000)]
Url = Annotated[str, Field(max_length=LONGEST_URL, json_schema_extra={"format": "uri"})]
EventNames = Annotated[list[str], Field(json_schema_extra=names_of(SUBSCRIBABLE))]


class NewWebhook(BaseModel):
    """Who wants to be told of what."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    url: Url = Field(description="Where to POST to.", examples=["https://hooks.example.com/dataloader"])
    events: EventNames = Field([*ENDS], description="Of what to tell; by default of every end of a job.")
    queue: Name | None = Field(None, description="Only of jobs of this queue; null is all.")
    task: Name | None = Field(None, description="Only of jobs of this task; null is all.")
    description: str = Field("", max_length=1000, description="For people.")

    _events = field_validator("events")(known_events)


class WebhookChange(BaseModel):
    """What is to be another way; what is left out stays."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_extra=need_one_of(null_counts=False)
    )

    url: Url | None = Field(None, description="Where to POST to.")
    events: EventNames | None = Field(None, description="Of what to tell.")
    queue: Filter | None = Field(None, description="Only of jobs of this queue; the empty text is all.")
    task: Filter | None = Field(None, description="Only of jobs of this task; the empty text is all.")
    description: str | None = Field(None, max_length=1000, description="For people.")
    active: bool | None = Field(
        None, description="False: nothing is written for it any more, and what waits is given up; true: again."
    )

    _events = field_validator("events")(known_events)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(value is None for value in self.__dict__.values()):
            raise PydanticCustomError("empty", "nothing is to be changed; name what is")
        return self


class Rotation(BaseModel):
    """How to change over to a new secret."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    overlap_sec: Annotated[int, Field(ge=0, le=_LONGEST_OVERLAP)] = Field(
        86_400, description="For how long the old secret signs beside the new one."
    )


class DeliveriesQuery(BaseModel):
    """Which deliveries to list, the newest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    webhook_id: Annotated[UUID | None, Field(description="Only those of this webhook.")] = None
    job_id: Annotated[UUID | None, Field(description="Only those about this job.")] = None
    state: Annotated[
        Literal["waiting", "delivered", "given_up"] | None, Field(description="Only those in this state.")
    ] = None
    before: Annotated[UUID | None, Field(description="Only those older than this one: the page before's last.")] = None
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = 50


@dataclass(frozen=True, kw_only=True)
class WebhookShown:
    """A webhook, without its secret; `url` is whole for a key with `admin`, and its host for others."""

    webhook_id: UUID
    url: str
    events: list[str]
    queue: str | None
    task: str | None
    description: str
    active: bool
    disabled_at: datetime | None
    disabled_why: str | None
    failures: int
    failing_since: datetime | None
    rest_until: datetime | None
    old_secret_until: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, hook: Webhook) -> WebhookShown:
        return cls(**_fields(hook) | {"url": _shown(hook.url)})


@dataclass(frozen=True, kw_only=True)
class WebhookWithSecret(WebhookShown):
    """A webhook whose secret is told once."""

    secret: str


def _fields(hook: Webhook) -> dict[str, Any]:
    row = dict(vars(hook))
    return row | {"webhook_id": row.pop("id"), "events": [*hook.events], "active": hook.disabled_at is None}


@dataclass(frozen=True)
class WebhookList:
    webhooks: list[WebhookShown]


@dataclass(frozen=True, kw_only=True)
class DeliveryLine:
    """A delivery in a list; `status` and `error` are those of its last try. `url` is whole for a key with `admin`, and
    its host for others."""

    delivery_id: UUID
    webhook_id: UUID | None
    url: str
    job_id: UUID | None
    event: str
    state: Literal["waiting", "delivered", "given_up"]
    tries: int
    created_at: datetime
    due_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str | None

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryLine:
        return cls(**_line(delivery))


def _line(delivery: Delivery) -> dict[str, Any]:
    row = dict(vars(delivery))
    row.pop("body")
    error = delivery.error and scrub(delivery.error)
    return row | {"delivery_id": row.pop("id"), "url": _shown(delivery.url), "error": error}


def _shown(url: str) -> str:
    """Whole for whoever may set it; for the others its host: of many a receiver the path is the password."""
    if current_actor().may((Scope.ADMIN,)):
        return url
    scheme, _, rest = url.partition("://")
    authority, *more = re.split(r"(?=[/?#\\])", rest, maxsplit=1)
    return f"{scheme}://{authority.rpartition('@')[2]}{'/…' if more and more != ['/'] else '/'}"


def _concealed(body: str) -> str:
    """As the routes of jobs show what is in it."""
    try:
        told = json.loads(body)
        hidden = conceal(told)
    except (ValueError, RecursionError):
        return scrub(body)
    return body if hidden == told else json_text(hidden)


@dataclass(frozen=True)
class DeliveryTry:
    """One try: what the receiver answered, as far as it is kept, and how long it took."""

    n: int
    at: datetime
    status: int | None
    duration_ms: float
    answer: str
    error: str | None

    @classmethod
    def of(cls, one: Try) -> DeliveryTry:
        return cls(one.n, one.at, one.status, one.duration_ms, scrub(one.answer), one.error and scrub(one.error))


@dataclass(frozen=True, kw_only=True)
class DeliveryDetail(DeliveryLine):
    """`body` is what is sent, but for values under the names of secrets, which are hidden here."""

    body: str
    log: list[DeliveryTry]


@dataclass(frozen=True)
class DeliveryList:
    deliveries: list[DeliveryLine]


@dataclass(frozen=True)
class Sent:
    """What will be sent; `GET /api/v1/deliveries/{delivery_id}` tells how it went."""

    delivery_id: UUID


@dataclass(frozen=True)
class Removed:
    removed: bool


def webhooks(source: Source, options: WebOptions) -> Subject:
    subject = Subject("webhooks", "/api/v1", options.max_json_depth)
    hooks = Webhooks(source)
    allowed = Allowed.of(options.webhook_allow)

    class AllowedWebhook(NewWebhook):
        _url = field_validator("url")(lambda told: welcome_url(told, allowed))

    class AllowedChange(WebhookChange):
        _url = field_validator("url")(lambda told: welcome_url(told, allowed))

    new, change = _named(AllowedWebhook, NewWebhook), _named(AllowedChange, WebhookChange)
    absent = (Code.WEBHOOK_NOT_FOUND, *_DATABASE)

    @subject.get("/webhooks", answer=WebhookList, problems=_DATABASE, scope=Scope.READ)
    def webhook_list() -> WebhookList:
        """List the webhooks, the oldest first."""
        return WebhookList([WebhookShown.of(hook) for hook in hooks.all()])

    @subject.post("/webhooks", body=new, answer=WebhookWithSecret, problems=_DATABASE, scope=Scope.ADMIN)
    def webhook_add(wanted: NewWebhook) -> WebhookWithSecret:
        """Have something told to a receiver.

        The answer holds the secret that signs what is sent. It is told here, and never again.
        """
        hook, secret = hooks.add(**wanted.__dict__)
        said("webhook.add", webhook_id=hook.id)
        return WebhookWithSecret(**_fields(hook), secret=secret)

    @subject.get("/webhooks/<uuid:webhook_id>", answer=WebhookShown, problems=absent, scope=Scope.READ)
    def webhook_detail(webhook_id: UUID) -> WebhookShown:
        """Tell of one webhook."""
        return WebhookShown.of(hooks.get(webhook_id))

    @subject.patch("/webhooks/<uuid:webhook_id>", body=change, answer=WebhookShown, problems=absent, scope=Scope.ADMIN)
    def webhook_change(wanted: WebhookChange, webhook_id: UUID) -> WebhookShown:
        """Change a webhook, switch it off or on."""
        hook = hooks.change(webhook_id, **wanted.__dict__)
        said("webhook.change", webhook_id=hook.id)
        return WebhookShown.of(hook)

    @subject.delete("/webhooks/<uuid:webhook_id>", answer=Removed, problems=absent, scope=Scope.ADMIN)
    def webhook_remove(webhook_id: UUID) -> Removed:
        """Remove a webhook, its deliveries and their log."""
        hooks.remove(webhook_id)
        said("webhook.remove", webhook_id=webhook_id)
        return Removed(True)

    @subject.post(
        "/webhooks/<uuid:webhook_id>/rotate",
        body=Rotation,
        answer=WebhookWithSecret,
        problems=absent,
        scope=Scope.ADMIN,
    )
    def webhook_rotate(wanted: Rotation, webhook_id: UUID) -> WebhookWithSecret:
        """Draw a new secret. The old one signs beside it for a while, so that the receiver may change over."""
        hook, secret = hooks.rotate(webhook_id, overlap_sec=wanted.overlap_sec)
        said("webhook.rotate", webhook_id=hook.id)
        return WebhookWithSecret(**_fields(hook), secret=secret)

    @subject.post("/webhooks/<uuid:webhook_id>/ping", answer=Sent, problems=absent, scope=Scope.OPERATE)
    def webhook_ping(webhook_id: UUID) -> Sent:
        """Send a webhook something, to see whether it arrives. A worker process sends it, as it does all others."""
        return Sent(hooks.ping(webhook_id))

    @subject.get("/deliveries", query=DeliveriesQuery, answer=DeliveryList, problems=_DATABASE, scope=Scope.READ)
    def delivery_list(wanted: DeliveriesQuery) -> DeliveryList:
        """List what was told, or is to be, the newest first."""
        found = hooks.deliveries(
            webhook_id=wanted.webhook_id,
            job_id=wanted.job_id,
            state=None if wanted.state is None else DeliveryState(wanted.state),
            before=wanted.before,
            limit=wanted.limit,
        )
        return DeliveryList([DeliveryLine.of(delivery) for delivery in found])

    none = (Code.DELIVERY_NOT_FOUND, *_DATABASE)

    @subject.get("/deliveries/<uuid:delivery_id>", answer=DeliveryDetail, problems=none, scope=Scope.READ)
    def delivery_detail(delivery_id: UUID) -> DeliveryDetail:
        """Tell of one delivery: what is sent, and how each try went."""
        delivery, tries = hooks.delivery(delivery_id)
        return DeliveryDetail(
            **_line(delivery), body=_concealed(delivery.body), log=[DeliveryTry.of(one) for one in tries]
        )

    @subject.post("/deliveries/<uuid:delivery_id>/redeliver", answer=Sent, problems=none, scope=Scope.OPERATE)
    def redeliver(delivery_id: UUID) -> Sent:
        """Send something once more, under the same id, and then for as long as if it were new."""
        hooks.redeliver(delivery_id)
        said("webhook.redeliver", delivery_id=delivery_id)
        return Sent(delivery_id)

    return subject


def _named(model: type[BaseModel], like: type[BaseModel]) -> type[BaseModel]:
    """In the document it has the name that it has for readers."""
    model.__name__ = model.__qualname__ = like.__name__
    model.__doc__ = like.__doc__
    model.model_config["title"] = like.__name__
    model.model_rebuild(force=True)
    return model
