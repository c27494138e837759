"""Webhooks and deliveries over HTTP."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar
from uuid import UUID

from pydantic import ConfigDict, Field, create_model, field_validator, model_validator

from dataloader.app.acts.known_names import NameCheck
from dataloader.app.features.webhooks.rows import Delivery, DeliveryDetail, DeliveryState, Webhook, Webhooks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import dump_json
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import (
    MAX_PAGE_SIZE,
    BodyModel,
    Deleted,
    QueryModel,
    event_schema,
    require_change,
    require_one_field,
    validate_events,
    validate_url,
)
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields, redact_text
from dataloader.app.net import MAX_URL_LENGTH, AllowedHosts
from dataloader.app.queue.webhook_events import FINAL_EVENTS, SUBSCRIBABLE_EVENTS

_MAX_OVERLAP_SEC = 30 * 86_400

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Filter = Annotated[str, Field(max_length=1000)]
Url = Annotated[str, Field(max_length=MAX_URL_LENGTH, json_schema_extra={"format": "uri"})]
AnyDelivery = TypeVar("AnyDelivery", bound=Delivery)
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


class DeliveriesQuery(QueryModel):
    """Which deliveries to list, the newest first."""

    webhook_id: Annotated[UUID | None, Field(description="Only deliveries of this webhook.")] = None
    job_id: Annotated[UUID | None, Field(description="Only deliveries of this job.")] = None
    state: Annotated[DeliveryState | None, Field(description="Only deliveries in this state.")] = None
    before: Annotated[
        UUID | None, Field(description="Only deliveries older than this one: the last of the previous page.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 50


@dataclass(frozen=True, kw_only=True)
class WebhookWithSecret(Webhook):
    """A webhook with its secret, which is shown once."""

    secret: str


@dataclass(frozen=True, kw_only=True)
class CreatedWebhook(Webhook):
    """A webhook that was created, with its secret; null: the idempotency key found it. `warnings`: why its queue or
    task may be misspelt."""

    secret: str | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class ChangedWebhook(Webhook):
    """A webhook after a change. `warnings`: why its queue or task may be misspelt."""

    warnings: list[str]


@dataclass(frozen=True)
class WebhookList:
    webhooks: list[Webhook]


@dataclass(frozen=True)
class DeliveryList:
    deliveries: list[Delivery]


@dataclass(frozen=True)
class DeliveryQueued:
    """A delivery that will be sent; `GET /api/v1/deliveries/{delivery_id}` has its result."""

    delivery_id: UUID


@dataclass(frozen=True)
class DeliveriesQueued:
    """How many deliveries will be sent again."""

    deliveries: int


def create_webhooks_blueprint(site: Site) -> ApiBlueprint:
    executor, pipelines, options = site.executor, site.pipelines, site.options
    blueprint = ApiBlueprint("webhooks", "/api/v1", problems=DATABASE_PROBLEMS)
    webhooks, names = Webhooks(executor), NameCheck(executor, pipelines)
    allowed = AllowedHosts.parse(options.webhook_allowed_hosts)
    new_model, edit_model = with_url_check(NewWebhook, allowed), with_url_check(WebhookEdit, allowed)
    webhook_problems = (ProblemCode.WEBHOOK_NOT_FOUND,)
    delivery_problems = (ProblemCode.DELIVERY_NOT_FOUND,)

    @blueprint.get("/webhooks", response=WebhookList, scope=Scope.READ)
    def list_webhooks() -> WebhookList:
        """List webhooks, oldest first. Only a key with `admin` sees whole URLs, others only their hosts."""
        return WebhookList([visible_webhook(webhook) for webhook in webhooks.all()])

    @blueprint.post(
        "/webhooks",
        body=new_model,
        response=CreatedWebhook,
        problems=(ProblemCode.IDEMPOTENCY_CONFLICT,),
        scope=Scope.ADMIN,
    )
    def create_webhook(body: NewWebhook) -> CreatedWebhook:
        """Create a webhook.

        The response has the secret that signs its deliveries. It cannot be read again.
        """
        webhook, secret = webhooks.add(**vars(body))
        if secret is not None:
            audit_action("webhook.created", webhook_id=webhook.webhook_id)
        warnings = names.warnings(queue=body.queue, task=body.task)
        return CreatedWebhook(**vars(webhook), secret=secret, warnings=warnings)

    @blueprint.get("/webhooks/<uuid:webhook_id>", response=Webhook, problems=webhook_problems, scope=Scope.READ)
    def get_webhook(webhook_id: UUID) -> Webhook:
        """Get a webhook."""
        return visible_webhook(webhooks.get(webhook_id))

    @blueprint.patch(
        "/webhooks/<uuid:webhook_id>",
        body=edit_model,
        response=ChangedWebhook,
        problems=webhook_problems,
        scope=Scope.ADMIN,
    )
    def edit_webhook(body: WebhookEdit, webhook_id: UUID) -> ChangedWebhook:
        """Change a webhook, or activate or deactivate it."""
        webhook = webhooks.change(webhook_id, **vars(body))
        audit_action("webhook.changed", webhook_id=webhook_id)
        warnings = names.warnings(queue=webhook.queue, task=webhook.task)
        return ChangedWebhook(**vars(visible_webhook(webhook)), warnings=warnings)

    @blueprint.delete("/webhooks/<uuid:webhook_id>", response=Deleted, problems=webhook_problems, scope=Scope.ADMIN)
    def delete_webhook(webhook_id: UUID) -> Deleted:
        """Delete a webhook with its deliveries."""
        webhooks.remove(webhook_id)
        audit_action("webhook.deleted", webhook_id=webhook_id)
        return Deleted()

    @blueprint.post(
        "/webhooks/<uuid:webhook_id>/rotate",
        body=SecretRotation,
        response=WebhookWithSecret,
        problems=webhook_problems,
        scope=Scope.ADMIN,
    )
    def rotate_webhook_secret(body: SecretRotation, webhook_id: UUID) -> WebhookWithSecret:
        """Replace a webhook's secret. For a while deliveries carry signatures of both, so that receivers can switch."""
        webhook, secret = webhooks.rotate(webhook_id, overlap_sec=body.overlap_sec)
        audit_action("webhook.secret_rotated", webhook_id=webhook_id)
        return WebhookWithSecret(**vars(webhook), secret=secret)

    @blueprint.post(
        "/webhooks/<uuid:webhook_id>/ping", response=DeliveryQueued, problems=webhook_problems, scope=Scope.OPERATE
    )
    def ping_webhook(webhook_id: UUID) -> DeliveryQueued:
        """Send a test delivery. A worker process sends it, like all others."""
        return DeliveryQueued(webhooks.ping(webhook_id))

    @blueprint.post(
        "/webhooks/<uuid:webhook_id>/redeliver",
        response=DeliveriesQueued,
        problems=webhook_problems,
        scope=Scope.OPERATE,
    )
    def redeliver_undelivered(webhook_id: UUID) -> DeliveriesQueued:
        """Send again what was not delivered to a webhook, the oldest thousand, and end its pause.

        Each delivery has its id and the retries of a new one.
        """
        count = webhooks.redeliver_undelivered(webhook_id)
        audit_action("webhook.redelivered", webhook_id=webhook_id, deliveries=count)
        return DeliveriesQueued(count)

    @blueprint.get("/deliveries", query=DeliveriesQuery, response=DeliveryList, scope=Scope.READ, standby=True)
    def list_deliveries(query: DeliveriesQuery) -> DeliveryList:
        """List deliveries, newest first."""
        return DeliveryList([visible_delivery(delivery) for delivery in webhooks.deliveries(**vars(query))])

    @blueprint.get(
        "/deliveries/<uuid:delivery_id>", response=DeliveryDetail, problems=delivery_problems, scope=Scope.READ
    )
    def get_delivery(delivery_id: UUID) -> DeliveryDetail:
        """Get a delivery with its body and its attempts. Values under the names of secrets are masked."""
        return visible_delivery_detail(webhooks.delivery(delivery_id))

    @blueprint.post(
        "/deliveries/<uuid:delivery_id>/redeliver",
        response=DeliveryQueued,
        problems=delivery_problems,
        scope=Scope.OPERATE,
    )
    def redeliver_webhook(delivery_id: UUID) -> DeliveryQueued:
        """Send a delivery again under the same id, and retry it like a new one."""
        webhooks.redeliver(delivery_id)
        audit_action("webhook.redelivered", delivery_id=delivery_id)
        return DeliveryQueued(delivery_id)

    return blueprint


def visible_webhook(webhook: Webhook) -> Webhook:
    return replace(webhook, url=_visible_url(webhook.url))


def visible_delivery(delivery: AnyDelivery) -> AnyDelivery:
    return replace(delivery, url=_visible_url(delivery.url), error=delivery.error and redact_text(delivery.error))


def visible_delivery_detail(detail: DeliveryDetail) -> DeliveryDetail:
    attempts = [
        replace(attempt, response=redact_text(attempt.response), error=attempt.error and redact_text(attempt.error))
        for attempt in detail.attempt_log
    ]
    return replace(visible_delivery(detail), body=_mask(detail.body), attempt_log=attempts)


def _visible_url(url: str) -> str:
    """The whole URL for a caller who may set it, else its host: the paths of many receivers are passwords."""
    if current_actor().has_scope((Scope.ADMIN,)):
        return url
    scheme, _, rest = url.partition("://")
    authority, *more = re.split(r"(?=[/?#\\])", rest, maxsplit=1)
    return f"{scheme}://{authority.rpartition('@')[2]}{'/…' if more and more != ['/'] else '/'}"


def _mask(body: str) -> str:
    """Mask values under the names of secrets, as job routes do."""
    try:
        payload = json.loads(body)
        masked = mask_secret_fields(payload)
    except (ValueError, RecursionError):
        return redact_text(body)
    return body if masked == payload else dump_json(masked)


def with_url_check(model: type[BodyModel], allowed: AllowedHosts) -> type[BodyModel]:
    """The model, whose `url` must be one that webhooks may use."""
    check = field_validator("url")(lambda url: validate_url(url, allowed))
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, __validators__={"_validate_url": check})
