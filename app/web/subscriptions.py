"""What a request may say about being told: where to, and of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from app.addresses import LONGEST_URL, Allowed, Unwelcome, place_of
from app.queue.webhooks import ENDS, OF_JOBS, SUBSCRIBABLE, Event
from app.web.options import WebOptions


def names_of(among: Iterable[Event]) -> dict[str, object]:
    """The JSON Schema of a list of events."""
    return {"items": {"enum": [event.value for event in among]}, "minItems": 1}


def _known(told: list[str], among: tuple[Event, ...]) -> list[str]:
    strange = [event for event in told if event not in among]
    if strange or not told:
        found = repr(strange[0][:64]) if strange else "an empty list"
        raise PydanticCustomError("event", "{found} names none of {known}", {"found": found, "known": ", ".join(among)})
    return list(dict.fromkeys(told))


def known_events(told: list[str] | None) -> list[str] | None:
    return None if told is None else _known(told, SUBSCRIBABLE)


def welcome_url(told: str | None, allowed: Allowed) -> str | None:
    """An address that may be spoken to, as far as can be seen without asking for its name."""
    if told is not None:
        try:
            place_of(told, allowed)
        except Unwelcome as error:
            raise PydanticCustomError("url", "{why}", {"why": str(error)}) from None
    return told


class JobWebhook(BaseModel):
    """Where to tell how a job ends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    url: Annotated[str, Field(max_length=LONGEST_URL, json_schema_extra={"format": "uri"})] = Field(
        description="Where to POST to.", examples=["https://hooks.example.com/dataloader"]
    )
    events: Annotated[list[str], Field(json_schema_extra=names_of(OF_JOBS))] = Field(
        [*ENDS], description="Of what to tell; by default of the job's end, whichever it is."
    )

    @field_validator("events")
    @classmethod
    def _events(cls, told: list[str]) -> list[str]:
        return _known(told, OF_JOBS)


def sendable(options: WebOptions) -> Callable[[JobWebhook], JobWebhook]:
    """One that this service would send to, and sign."""
    allowed = Allowed.of(options.webhook_allow)

    def checked(told: JobWebhook) -> JobWebhook:
        if not options.webhook_secret:
            raise PydanticCustomError(
                "webhook", "jobs' own webhooks are signed with DL_WEBHOOK_SECRET, which is not set here"
            )
        welcome_url(told.url, allowed)
        return told

    return checked
