"""The pages of webhooks: receivers, their deliveries with each attempt, and the forms that change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from flask import Response
from pydantic import Field

from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.features.webhooks import acts
from dataloader.app.features.webhooks.receivers import CHAT_FORMATS, Format
from dataloader.app.features.webhooks.routes import visible_delivery, visible_delivery_detail, visible_webhook
from dataloader.app.features.webhooks.rows import DeliveryState, Webhooks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.webhook_events import SUBSCRIBABLE_EVENTS
from dataloader.app.ui.base import FormModel, PageRenderer, redirect_to

PAGE_SIZE = 50
_MAX_UNDELIVERED_SHOWN = 20
_WEBHOOK_PATH = "/webhooks/<uuid:webhook_id>"
_UNKNOWN_WEBHOOK, _UNKNOWN_DELIVERY = (ProblemCode.WEBHOOK_NOT_FOUND,), (ProblemCode.DELIVERY_NOT_FOUND,)
_FORMAT_CHOICES = [(format.value, format.label) for format in Format]
_ACTIONS = {
    "on": Choice(act=acts.edit_webhook, preset={"active": True}),
    "off": Choice(act=acts.edit_webhook, preset={"active": False}),
    "delete": Choice(act=acts.delete_webhook, respond=lambda _: redirect_to("/webhooks")),
}


class DeliveriesPageQuery(FormModel):
    state: DeliveryState | None = Field(None, description="Only deliveries in this state.")
    before: UUID | None = Field(None, description="Only deliveries older than this one.")


def create_webhooks_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("webhooks_page", site.options)
    webhooks = Webhooks(site.executor)

    @pages.page("/webhooks")
    def show_webhooks() -> Response:
        """Show the webhooks, and what was not delivered."""
        known = [visible_webhook(webhook) for webhook in webhooks.all()]
        failed, pending = (
            webhooks.deliveries(state=state, limit=_MAX_UNDELIVERED_SHOWN)
            for state in (DeliveryState.FAILED, DeliveryState.PENDING)
        )
        return pages.render(
            "webhooks.html",
            webhooks=sorted(known, key=lambda webhook: not (webhook.failures or webhook.disabled_at)),
            undelivered=[visible_delivery(delivery) for delivery in (*failed, *pending)],
            events=SUBSCRIBABLE_EVENTS,
            chat_formats=CHAT_FORMATS,
            format_choices=_FORMAT_CHOICES,
            can_admin=can_admin(),
        )

    @pages.page(_WEBHOOK_PATH, query=DeliveriesPageQuery, problems=_UNKNOWN_WEBHOOK)
    def show_webhook(query: DeliveriesPageQuery | None = None, *, webhook_id: UUID) -> Response:
        """Show a webhook with its deliveries."""
        state, before = (None, None) if query is None else (query.state, query.before)
        found = webhooks.deliveries(webhook_id=webhook_id, state=state, before=before, limit=PAGE_SIZE)
        return pages.render(
            "webhook.html",
            webhook=visible_webhook(webhooks.get(webhook_id)),
            deliveries=[visible_delivery(delivery) for delivery in found],
            older=found[-1].delivery_id if len(found) == PAGE_SIZE else None,
            state=state,
            states=list(DeliveryState),
            events=SUBSCRIBABLE_EVENTS,
            chat_formats=CHAT_FORMATS,
            format_choices=_FORMAT_CHOICES,
            can_admin=can_admin(),
        )

    @pages.page("/deliveries/<uuid:delivery_id>", problems=_UNKNOWN_DELIVERY)
    def show_delivery(delivery_id: UUID) -> Response:
        """Show a delivery: its body, and the response to each attempt."""
        return pages.render("delivery.html", delivery=visible_delivery_detail(webhooks.delivery(delivery_id)))

    def show_secret(webhook: acts.CreatedWebhook | acts.WebhookWithSecret) -> Response:
        if webhook.secret is None:
            return redirect_to(f"/webhooks/{webhook.webhook_id}")
        return pages.render(
            "secret.html",
            what="Secret of the webhook",
            name=webhook.description or webhook.url,
            secret=webhook.secret,
            use="It signs the deliveries: give it to the receiver.",
            next_url=f"/webhooks/{webhook.webhook_id}",
        )

    forms = ActForms(pages=pages, runner=site.runner, page=show_webhooks, page_url="/webhooks")
    new = Choice(act=acts.create_webhook, boxes=("events",), respond=show_secret, is_strict=True)
    forms.add("/webhooks", "submit_webhook", new)
    _add_forms_of_webhook(
        replace(forms, page=show_webhook, page_url="/webhooks/{webhook_id}", problems=_UNKNOWN_WEBHOOK), show_secret
    )
    forms = replace(forms, page=show_delivery, page_url="/deliveries/{delivery_id}", problems=_UNKNOWN_DELIVERY)
    forms.add_button("/deliveries/<uuid:delivery_id>/retry", "submit_redelivery", acts.redeliver_webhook)
    return pages.blueprint


def _add_forms_of_webhook(forms: ActForms, show_secret: Callable[..., Response]) -> None:
    edit = Choice(act=acts.edit_webhook, boxes=("events",), parse=_parse_filters, is_strict=True)
    forms.add(f"{_WEBHOOK_PATH}/edit", "submit_webhook_edit", edit)
    forms.add(f"{_WEBHOOK_PATH}/act", "submit_webhook_action", _ACTIONS, summary="Switch or delete a webhook.")
    rotation = Choice(act=acts.rotate_webhook_secret, respond=show_secret)
    forms.add(f"{_WEBHOOK_PATH}/rotate", "submit_secret_rotation", rotation)
    forms.add_button(f"{_WEBHOOK_PATH}/ping", "submit_webhook_ping", acts.ping_webhook, respond=_to_delivery)
    forms.add_button(f"{_WEBHOOK_PATH}/redeliver", "submit_redeliveries", acts.redeliver_undelivered)


def _parse_filters(form: Any, _path: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an edit clears where the form has nothing; no event is refused."""
    texts = {name: getattr(form, name).strip() for name in ("queue", "task", "description")}
    return {**texts, "events": form.events}


def _to_delivery(queued: acts.DeliveryQueued) -> Response:
    return redirect_to(f"/deliveries/{queued.delivery_id}")


def can_admin() -> bool:
    return current_actor().has_scope((Scope.ADMIN,))
