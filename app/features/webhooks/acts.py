"""What an administrator changes of webhooks, and an operator of their deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import ConfigDict, Field, field_validator, model_validator

from dataloader.app.acts.act import Call, act
from dataloader.app.features.webhooks.receivers import Format, check_receiver, read_receiver, shown_url
from dataloader.app.features.webhooks.rows import Webhook, Webhooks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import (
    BodyModel,
    Deleted,
    event_schema,
    require_change,
    require_one_field,
    validate_events,
)
from dataloader.app.net import MAX_URL_LENGTH, AllowedHosts, ForbiddenAddress
from dataloader.app.queue.webhook_events import FINAL_EVENTS, SUBSCRIBABLE_EVENTS

_MAX_OVERLAP_SEC = 30 * 86_400
_WEBHOOK_NOT_FOUND, _DELIVERY_NOT_FOUND = (ProblemCode.WEBHOOK_NOT_FOUND,), (ProblemCode.DELIVERY_NOT_FOUND,)
_UNAUDITED = {"url", "description", "idempotency_key"}  # the path of an address may be a password

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Filter = Annotated[str, Field(max_length=1000)]
Url = Annotated[str, Field(max_length=MAX_URL_LENGTH, json_schema_extra={"format": "uri"})]
FormatName = Annotated[Format, Field(strict=False)]
_FORMAT = (
    "What is sent. json: signed events; slack, teams, google_chat, email: messages for people. null: what the URL "
    "names (`slack://`, `teams://`, `gchat://` for `https://`, `mailto:`, or the host of one of these services), "
)
EventNames = Annotated[list[str], Field(json_schema_extra=event_schema(SUBSCRIBABLE_EVENTS))]


class NewWebhook(BodyModel):
    """A webhook to create."""

    url: Url = Field(description="The URL to POST to.", examples=["https://hooks.example.com/dataloader"])
    events: EventNames = Field(
        [*FINAL_EVENTS], description="The events to deliver; by default all final statuses of jobs."
    )
    queue: Name | None = Field(None, description="Only jobs of this queue; null: all.")
    task: Name | None = Field(None, description="Only jobs of this task; null: all.")
    description: str = Field("", max_length=1000, description="A note.")
    format: FormatName | None = Field(None, description=f"{_FORMAT}else json.")
    idempotency_key: Name | None = Field(
        None, description="A second request with it and the same values returns the same webhook, without its secret."
    )

    _validate_events = field_validator("events")(validate_events)


class WebhookEdit(BodyModel):
    """Values of a webhook to change; those left out stay as they are."""

    model_config = ConfigDict(json_schema_extra=require_one_field(null_is_change=False))

    url: Url | None = Field(None, description="The URL to POST to.")
    events: EventNames | None = Field(None, description="The events to deliver.")
    queue: Filter | None = Field(None, description="Only jobs of this queue; an empty text: all.")
    task: Filter | None = Field(None, description="Only jobs of this task; an empty text: all.")
    description: str | None = Field(None, max_length=1000, description="A note.")
    format: FormatName | None = Field(None, description=f"{_FORMAT}else as it is.")
    active: bool | None = Field(
        None, description="False: no deliveries are created, and pending ones fail; true: active again."
    )

    _validate_events = field_validator("events")(validate_events)

    _require_change = model_validator(mode="after")(require_change)


class SecretRotation(BodyModel):
    """A rotation of a webhook's secret."""

    overlap_sec: Annotated[int, Field(ge=0, le=_MAX_OVERLAP_SEC)] = Field(
        86_400, description="How long deliveries also carry a signature of the old secret."
    )


@dataclass(frozen=True, kw_only=True)
class WebhookWithSecret(Webhook):
    """A webhook with its secret, which is shown once."""

    secret: str


@dataclass(frozen=True, kw_only=True)
class CreatedWebhook(Webhook):
    """A webhook that was created, with its secret; null: the idempotency key found it, or nothing is signed in its
    format. `warnings`: why its queue or task may be misspelt."""

    secret: str | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class ChangedWebhook(Webhook):
    """A webhook after a change. `warnings`: why its queue or task may be misspelt."""

    warnings: list[str]


@dataclass(frozen=True)
class DeliveryQueued:
    """A delivery that will be sent; `GET /api/v1/deliveries/{delivery_id}` has its result."""

    delivery_id: UUID


@dataclass(frozen=True)
class DeliveriesQueued:
    """How many deliveries will be sent again."""

    deliveries: int


@act(
    "webhook.created",
    "POST",
    "/webhooks",
    scope=Scope.ADMIN,
    problems=(ProblemCode.IDEMPOTENCY_CONFLICT,),
    unaudited=_UNAUDITED,
)
def create_webhook(call: Call, body: NewWebhook) -> CreatedWebhook:
    """Create a webhook.

    The response has the secret that signs its deliveries. It cannot be read again.
    """
    url, format = _read_receiver(call, body.url, body.format)
    warnings = call.check_names(queue=body.queue, task=body.task)
    values = {**vars(body), "url": url, "format": format or Format.JSON}
    webhook, secret = Webhooks(call.executor).add(**values)
    call.audit(webhook_id=webhook.webhook_id)
    if secret is None:
        call.event = None
    shown = secret if webhook.format is Format.JSON else None
    return CreatedWebhook(**_shown(webhook), secret=shown, warnings=warnings)


@act(
    "webhook.changed",
    "PATCH",
    "/webhooks/<uuid:webhook_id>",
    scope=Scope.ADMIN,
    problems=_WEBHOOK_NOT_FOUND,
    unaudited=_UNAUDITED,
)
def edit_webhook(call: Call, webhook_id: UUID, body: WebhookEdit) -> ChangedWebhook:
    """Change a webhook, or activate or deactivate it."""
    values = vars(body).copy()
    if body.url is not None:
        values["url"], values["format"] = _read_receiver(call, body.url, body.format)
    if body.url is not None or body.format is not None:
        kept = Webhooks(call.executor).get(webhook_id)
        if body.url is None:
            _read_receiver(call, kept.url, body.format)
        elif values["format"] is None and kept.format is Format.EMAIL:
            values["format"] = Format.JSON  # the new address is none of e-mail
    call.check_names(queue=body.queue, task=body.task)
    webhook = Webhooks(call.executor).change(webhook_id, **values)
    return ChangedWebhook(**_shown(webhook), warnings=call.names.warnings(queue=webhook.queue, task=webhook.task))


@act("webhook.deleted", "DELETE", "/webhooks/<uuid:webhook_id>", scope=Scope.ADMIN, problems=_WEBHOOK_NOT_FOUND)
def delete_webhook(call: Call, webhook_id: UUID) -> Deleted:
    """Delete a webhook with its deliveries."""
    Webhooks(call.executor).remove(webhook_id)
    return Deleted()


@act(
    "webhook.secret_rotated",
    "POST",
    "/webhooks/<uuid:webhook_id>/rotate",
    scope=Scope.ADMIN,
    problems=_WEBHOOK_NOT_FOUND,
)
def rotate_webhook_secret(call: Call, webhook_id: UUID, body: SecretRotation) -> WebhookWithSecret:
    """Replace a webhook's secret. For a while deliveries carry signatures of both, so that receivers can switch."""
    webhook, secret = Webhooks(call.executor).rotate(webhook_id, overlap_sec=body.overlap_sec)
    return WebhookWithSecret(**_shown(webhook), secret=secret)


@act("webhook.pinged", "POST", "/webhooks/<uuid:webhook_id>/ping", problems=_WEBHOOK_NOT_FOUND)
def ping_webhook(call: Call, webhook_id: UUID) -> DeliveryQueued:
    """Send a test delivery. A worker process sends it, like all others."""
    delivery_id = Webhooks(call.executor).ping(webhook_id)
    call.audit(delivery_id=delivery_id)
    return DeliveryQueued(delivery_id)


@act("webhook.redelivered", "POST", "/webhooks/<uuid:webhook_id>/redeliver", problems=_WEBHOOK_NOT_FOUND)
def redeliver_undelivered(call: Call, webhook_id: UUID) -> DeliveriesQueued:
    """Send again what was not delivered to a webhook, the oldest thousand, and end its pause.

    Each delivery has its id and the retries of a new one.
    """
    count = Webhooks(call.executor).redeliver_undelivered(webhook_id)
    call.audit(deliveries=count)
    return DeliveriesQueued(count)


@act("webhook.redelivered", "POST", "/deliveries/<uuid:delivery_id>/redeliver", problems=_DELIVERY_NOT_FOUND)
def redeliver_webhook(call: Call, delivery_id: UUID) -> DeliveryQueued:
    """Send a delivery again under the same id, and retry it like a new one."""
    Webhooks(call.executor).redeliver(delivery_id)
    return DeliveryQueued(delivery_id)


def _shown(webhook: Webhook) -> dict[str, Any]:
    return vars(webhook) | {"url": shown_url(webhook.url, webhook.format)}


def _read_receiver(call: Call, url: str, format: Format | None) -> tuple[str, Format | None]:
    """The address to send to and its format. Refuse an address that is not allowed, as far as this is known without
    resolving its host."""
    try:
        url, format = read_receiver(url, format)
        check_receiver(url, AllowedHosts.parse(call.options.webhook_allowed_hosts))
    except ForbiddenAddress as error:
        raise InvalidRequest([FieldError("url", str(error))]) from None
    options = call.options.features.get("webhooks")
    if format is Format.EMAIL and options is not None and options.smtp is None:
        raise InvalidRequest([FieldError("url", "is e-mail, and DL_SMTP_URL, the mail server, is not set")])
    return url, format
