"""Webhooks and deliveries over HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar
from uuid import UUID

from pydantic import Field

from dataloader.app.acts.act import acts_of
from dataloader.app.acts.web import add_routes
from dataloader.app.features.webhooks import acts
from dataloader.app.features.webhooks.receivers import Format, host_of, shown_url
from dataloader.app.features.webhooks.rows import Delivery, DeliveryDetail, DeliveryState, Webhook, Webhooks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import dump_json
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import MAX_PAGE_SIZE, QueryModel
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields, redact_text

AnyDelivery = TypeVar("AnyDelivery", bound=Delivery)


class DeliveriesQuery(QueryModel):
    """Which deliveries to list, the newest first."""

    webhook_id: Annotated[UUID | None, Field(description="Only deliveries of this webhook.")] = None
    job_id: Annotated[UUID | None, Field(description="Only deliveries of this job.")] = None
    state: Annotated[DeliveryState | None, Field(description="Only deliveries in this state.")] = None
    before: Annotated[
        UUID | None, Field(description="Only deliveries older than this one: the last of the previous page.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 50


@dataclass(frozen=True)
class WebhookList:
    webhooks: list[Webhook]


@dataclass(frozen=True)
class DeliveryList:
    deliveries: list[Delivery]


def create_webhooks_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("webhooks", "/api/v1", problems=DATABASE_PROBLEMS)
    webhooks = Webhooks(site.executor)

    @blueprint.get("/webhooks", response=WebhookList, scope=Scope.READ)
    def list_webhooks() -> WebhookList:
        """List webhooks, oldest first.

        Only a key with `admin` sees whole URLs, others only their hosts; those of chats no key sees.
        """
        return WebhookList([visible_webhook(webhook) for webhook in webhooks.all()])

    @blueprint.get(
        "/webhooks/<uuid:webhook_id>", response=Webhook, problems=(ProblemCode.WEBHOOK_NOT_FOUND,), scope=Scope.READ
    )
    def get_webhook(webhook_id: UUID) -> Webhook:
        """Get a webhook."""
        return visible_webhook(webhooks.get(webhook_id))

    @blueprint.get("/deliveries", query=DeliveriesQuery, response=DeliveryList, scope=Scope.READ, standby=True)
    def list_deliveries(query: DeliveriesQuery) -> DeliveryList:
        """List deliveries, newest first."""
        return DeliveryList([visible_delivery(delivery) for delivery in webhooks.deliveries(**vars(query))])

    @blueprint.get(
        "/deliveries/<uuid:delivery_id>",
        response=DeliveryDetail,
        problems=(ProblemCode.DELIVERY_NOT_FOUND,),
        scope=Scope.READ,
    )
    def get_delivery(delivery_id: UUID) -> DeliveryDetail:
        """Get a delivery with its body and its attempts. Values under the names of secrets are masked."""
        return visible_delivery_detail(webhooks.delivery(delivery_id))

    add_routes(blueprint, acts_of(acts), site.runner)
    return blueprint


def visible_webhook(webhook: Webhook) -> Webhook:
    return replace(webhook, url=_visible_url(webhook.url, webhook.format))


def visible_delivery(delivery: AnyDelivery) -> AnyDelivery:
    url = _visible_url(delivery.url, delivery.format)
    return replace(delivery, url=url, error=delivery.error and redact_text(delivery.error))


def visible_delivery_detail(detail: DeliveryDetail) -> DeliveryDetail:
    attempts = [
        replace(attempt, response=redact_text(attempt.response), error=attempt.error and redact_text(attempt.error))
        for attempt in detail.attempt_log
    ]
    return replace(visible_delivery(detail), body=_mask(detail.body), attempt_log=attempts)


def _visible_url(url: str, format: Format) -> str:
    """The whole URL for a caller who may set it, else its host: the paths of many receivers are passwords. Those of
    chats always are, so that no caller sees them again."""
    may_see = format is Format.EMAIL or current_actor().has_scope((Scope.ADMIN,))
    return shown_url(url, format) if may_see else host_of(url)


def _mask(body: str) -> str:
    """Mask values under the names of secrets, as job routes do."""
    try:
        payload = json.loads(body)
        masked = mask_secret_fields(payload)
    except (ValueError, RecursionError):
        return redact_text(body)
    return body if masked == payload else dump_json(masked)
