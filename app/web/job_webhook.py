"""Validation of webhook URLs and events in requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from app.admin.webhooks import FINAL_EVENTS, JOB_EVENTS, SUBSCRIBABLE_EVENTS, WebhookEvent
from app.net import MAX_URL_LENGTH, AllowedHosts, ForbiddenAddress, parse_url
from app.web.options import WebOptions


def event_schema(events: Iterable[WebhookEvent]) -> dict[str, object]:
    """The JSON Schema of a list of events."""
    return {"items": {"enum": [event.value for event in events]}, "minItems": 1}


def _validate_among(names: list[str], allowed: tuple[WebhookEvent, ...]) -> list[str]:
    strange = [event for event in names if event not in allowed]
    if strange or not names:
        found = repr(strange[0][:64]) if strange else "an empty list"
        raise PydanticCustomError(
            "event", "{found} names none of {known}", {"found": found, "known": ", ".join(allowed)}
        )
    return list(dict.fromkeys(names))


def validate_events(names: list[str] | None) -> list[str] | None:
    return None if names is None else _validate_among(names, SUBSCRIBABLE_EVENTS)


def validate_url(url: str | None, allowed: AllowedHosts) -> str | None:
    """Reject a URL that is not allowed, as far as this is known without resolving its host."""
    if url is not None:
        try:
            parse_url(url, allowed)
        except ForbiddenAddress as error:
            raise PydanticCustomError("url", "{why}", {"why": str(error)}) from None
    return url


class JobWebhook(BaseModel):
    """A webhook of one job."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    url: Annotated[str, Field(max_length=MAX_URL_LENGTH, json_schema_extra={"format": "uri"})] = Field(
        description="The URL to POST to.", examples=["https://hooks.example.com/dataloader"]
    )
    events: Annotated[list[str], Field(json_schema_extra=event_schema(JOB_EVENTS))] = Field(
        [*FINAL_EVENTS], description="The events to deliver; by default all final statuses."
    )

    @field_validator("events")
    @classmethod
    def _validate_events(cls, names: list[str]) -> list[str]:
        return _validate_among(names, JOB_EVENTS)


def signable_webhook(options: WebOptions) -> Callable[[JobWebhook], JobWebhook]:
    """Return a validator: this service must be able to send to the URL, and to sign."""
    allowed = AllowedHosts.parse(options.webhook_allowed_hosts)

    def check(webhook: JobWebhook) -> JobWebhook:
        if not options.has_webhook_secret:
            raise PydanticCustomError(
                "webhook", "jobs' own webhooks are signed with DL_WEBHOOK_SECRET, which is not set here"
            )
        validate_url(webhook.url, allowed)
        return webhook

    return check
