"""The pages of webhooks: receivers, their deliveries with each attempt, and the forms that change them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Response, request
from pydantic import ConfigDict, Field

from dataloader.app.acts.known_names import NameCheck
from dataloader.app.features.webhooks.routes import (
    NewWebhook,
    SecretRotation,
    WebhookEdit,
    visible_delivery,
    visible_delivery_detail,
    visible_webhook,
    with_url_check,
)
from dataloader.app.features.webhooks.rows import DeliveryState, Webhook, Webhooks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.net import AllowedHosts
from dataloader.app.queue.webhook_events import SUBSCRIBABLE_EVENTS
from dataloader.app.ui.base import FormModel, FormText, PageRenderer, parse_choice, redirect_to
from dataloader.app.ui.forms import NamingForm, parse_duration, validate_form

PAGE_SIZE = 50
_MAX_UNDELIVERED_SHOWN = 20
_EVENT = "event-"  # what the names of the check boxes begin with, before the event
_UNKNOWN_WEBHOOK, _UNKNOWN_DELIVERY = (ProblemCode.WEBHOOK_NOT_FOUND,), (ProblemCode.DELIVERY_NOT_FOUND,)


class DeliveriesPageQuery(FormModel):
    state: DeliveryState | None = Field(None, description="Only deliveries in this state.")
    before: UUID | None = Field(None, description="Only deliveries older than this one.")


class WebhookForm(NamingForm):
    """A webhook: a field `event-NAME` for each event that it delivers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    url: str = Field(description="The URL to POST to.")
    queue: FormText = Field("", description="Only jobs of this queue.")
    task: FormText = Field("", description="Only jobs of this task.")
    description: FormText = Field("", description="A note.")


class WebhookActionForm(FormModel):
    """A change of a webhook that needs no further value."""

    action: FormText = Field(description="on, off or delete.")


class RotationForm(FormModel):
    """A rotation of the secret."""

    overlap_sec: FormText = Field("1d", description="How long deliveries also carry a signature of the old secret.")


def create_webhooks_page(site: Site) -> ApiBlueprint:
    source, pipelines, options = site.executor, site.pipelines, site.options
    pages = PageRenderer("webhooks_page", options)
    webhooks, names = Webhooks(source), NameCheck(source, pipelines)
    allowed = AllowedHosts.parse(options.webhook_allowed_hosts)
    new_model, edit_model = with_url_check(NewWebhook, allowed), with_url_check(WebhookEdit, allowed)

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
            can_admin=can_admin(),
        )

    @pages.action("/webhooks", form=WebhookForm, page_url="/webhooks", page=show_webhooks, scope=Scope.ADMIN)
    def submit_webhook(form: WebhookForm) -> Response:
        """Create a webhook, and show its secret once."""
        values = _parse_webhook(form)
        texts = {name: values[name] or None for name in ("queue", "task")}
        events = {"events": values["events"]} if values["events"] else {}
        new = validate_form(new_model, {"url": values["url"], "description": values["description"], **texts, **events})
        form.require_known(names, queue=values["queue"], task=values["task"])
        webhook, secret = webhooks.add(**vars(new))
        return _show_secret(webhook, secret)

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
            can_admin=can_admin(),
        )

    path = "/webhooks/<uuid:webhook_id>"
    pages.page(path, query=DeliveriesPageQuery, problems=_UNKNOWN_WEBHOOK)(show_webhook)
    of_webhook: dict[str, Any] = {
        "page_url": "/webhooks/{webhook_id}",
        "page": show_webhook,
        "problems": _UNKNOWN_WEBHOOK,
    }

    @pages.action(f"{path}/edit", form=WebhookForm, scope=Scope.ADMIN, **of_webhook)
    def submit_webhook_edit(form: WebhookForm, webhook_id: UUID) -> None:
        """Change the address, events and filters of a webhook."""
        values = _parse_webhook(form)
        edit = validate_form(edit_model, values)
        form.require_known(names, queue=values["queue"], task=values["task"])
        webhooks.change(webhook_id, **vars(edit))

    @pages.action(f"{path}/act", form=WebhookActionForm, scope=Scope.ADMIN, **of_webhook)
    def submit_webhook_action(form: WebhookActionForm, webhook_id: UUID) -> Response | None:
        """Activate, deactivate or delete a webhook."""
        action = parse_choice("action", form.action, ("on", "off", "delete"))
        if action == "delete":
            webhooks.remove(webhook_id)
            return redirect_to("/webhooks")
        webhooks.change(webhook_id, active=action == "on")
        return None

    @pages.action(f"{path}/rotate", form=RotationForm, scope=Scope.ADMIN, **of_webhook)
    def submit_secret_rotation(form: RotationForm, webhook_id: UUID) -> Response:
        """Replace the secret of a webhook, and show the new one once."""
        overlap = parse_duration("overlap_sec", form.overlap_sec) or 0
        rotation = validate_form(SecretRotation, {"overlap_sec": int(overlap)})
        webhook, secret = webhooks.rotate(webhook_id, overlap_sec=rotation.overlap_sec)
        return _show_secret(webhook, secret)

    @pages.action(f"{path}/ping", **of_webhook)
    def submit_webhook_ping(webhook_id: UUID) -> Response:
        """Send a test delivery."""
        return redirect_to(f"/deliveries/{webhooks.ping(webhook_id)}")

    @pages.action(f"{path}/redeliver", **of_webhook)
    def submit_redeliveries(webhook_id: UUID) -> None:
        """Send again what was not delivered to a webhook."""
        webhooks.redeliver_undelivered(webhook_id)

    def _show_secret(webhook: Webhook, secret: str | None) -> Response:
        return pages.render(
            "secret.html",
            what="Secret of the webhook",
            name=webhook.description or visible_webhook(webhook).url,
            secret=secret,
            use="It signs the deliveries: give it to the receiver.",
            next_url=f"/webhooks/{webhook.webhook_id}",
        )

    _add_delivery_pages(pages, webhooks)
    return pages.blueprint


def _add_delivery_pages(pages: PageRenderer, webhooks: Webhooks) -> None:
    @pages.page("/deliveries/<uuid:delivery_id>", problems=_UNKNOWN_DELIVERY)
    def show_delivery(delivery_id: UUID) -> Response:
        """Show a delivery: its body, and the response to each attempt."""
        detail = visible_delivery_detail(webhooks.delivery(delivery_id))
        return pages.render("delivery.html", delivery=detail)

    @pages.action(
        "/deliveries/<uuid:delivery_id>/retry",
        page_url="/deliveries/{delivery_id}",
        page=show_delivery,
        problems=_UNKNOWN_DELIVERY,
    )
    def submit_redelivery(delivery_id: UUID) -> None:
        """Send a delivery again, and retry it like a new one."""
        webhooks.redeliver(delivery_id)


def can_admin() -> bool:
    return current_actor().has_scope((Scope.ADMIN,))


def _parse_webhook(form: WebhookForm) -> dict[str, Any]:
    """The values of the form; an empty filter is an empty text."""
    events = [name.removeprefix(_EVENT) for name in request.form if name.startswith(_EVENT)]
    texts = {name: getattr(form, name).strip() for name in ("url", "queue", "task", "description")}
    return {**texts, "events": events}
