"""What happens to jobs, as it happens: server-sent events out of the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated

from flask import Response, request
from pydantic import BaseModel, ConfigDict, Field

from app.errors import DatabaseUnavailable
from app.queue.job import Event
from app.queue.jobqueue import Source
from app.queue.journal import Reader
from app.queue.keys import Scope
from app.web.answers import json_text
from app.web.auth import still_welcome
from app.web.models import JobEvent
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code, InvalidRequest, TooManyWaiting
from app.web.strictjson import FieldFault

EVENTS = "text/event-stream"
_LOOK_EVERY = 0.5  # seconds
_HEARTBEAT_SEC = 15.0  # of silence, after which a comment shows that the line is there
_STILL_SEC = 5.0  # between two looks whether the caller would still be let in
_LONGEST_SEC = 3600.0


class StreamQuery(BaseModel):
    """What to be told of. From the address, where everything is a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: Annotated[str | None, Field(description="Only of jobs of this queue.")] = None
    kind: Annotated[str | None, Field(description="Only these kinds of events, separated by commas.")] = None
    after: Annotated[
        str | None,
        Field(
            max_length=2000,
            description="Go on behind this `id`; the header `Last-Event-ID` says the same, and counts more. Left out: "
            "what happens from now on.",
        ),
    ] = None
    seconds: Annotated[
        float, Field(gt=0, le=_LONGEST_SEC, description="After how many seconds the stream ends at the latest.")
    ] = _LONGEST_SEC


def stream(source: Source, options: WebOptions, closing: threading.Event) -> Subject:
    subject = Subject("stream", "/api/v1", options.max_json_depth)
    places = threading.BoundedSemaphore(options.most_streams)

    @subject.get(
        "/stream",
        query=StreamQuery,
        answer=str,
        media_type=EVENTS,
        problems=(Code.TOO_MANY_WAITING, Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH),
        scope=Scope.READ,
    )
    def events(wanted: StreamQuery) -> Response:
        """Follow what happens to jobs, as server-sent events.

        Each event has the name of its kind, and a line of the journal as `data`, with `event_id`, `job_id`, `queue`,
        `ts`, `kind` and `payload`. Events that are committed late come late, and none is left out: the `id` of an
        event is its number, and behind a `~` those before it that may yet come. Send the last one back as
        `Last-Event-ID` to go on there. A stream ends soon after its caller's key or session has.
        """
        reader = _reader(source, request.headers.get("Last-Event-ID") or wanted.after)
        if not places.acquire(blocking=False):
            raise TooManyWaiting
        try:
            first = reader.look()  # an outage is a problem, as long as nothing has been said
            told = _told(reader, first, wanted, closing, still_welcome((Scope.READ,)))
            response = Response(told, content_type=f"{EVENTS}; charset=utf-8")
        except BaseException:
            places.release()
            raise
        response.call_on_close(_once(places.release))
        response.headers["X-Accel-Buffering"] = "no"
        return response

    return subject


def _reader(source: Source, after: str | None) -> Reader:
    try:
        return Reader(source, after=after)
    except ValueError as error:
        raise InvalidRequest([FieldFault("after", f"{error}; send the id of an event")]) from None


def _told(
    reader: Reader, first: list[Event], wanted: StreamQuery, closing: threading.Event, welcome: Callable[[], bool]
) -> Iterator[str]:
    ends_at = time.monotonic() + wanted.seconds
    kinds = None if wanted.kind is None else frozenset(wanted.kind.split(","))
    yield f"retry: 2000\nid: {reader.place}\n\n"
    events, told_at = first, time.monotonic()
    asked_at = told_at
    while True:
        if time.monotonic() - asked_at >= _STILL_SEC:
            if not _is_welcome(welcome):
                return
            asked_at = time.monotonic()
        fitting = [event for event in events if _fits(event, wanted.queue, kinds)]
        for n, event in enumerate(fitting, 1):
            # Only the last one of a look has a place: to go on behind another would leave out what came with it.
            yield _event(event, reader.place if n == len(fitting) else None)
        now = time.monotonic()
        if fitting:
            told_at = now
        elif now - told_at >= _HEARTBEAT_SEC:
            told_at = now
            yield f"id: {reader.place}\n: nothing new\n\n" if events else ": nothing new\n\n"
        if now >= ends_at or closing.wait(min(_LOOK_EVERY, max(0.0, ends_at - now)) if not events else 0):
            return
        try:
            events = reader.look()
        except DatabaseUnavailable:
            events = []
            yield ": the database is away\n\n"


def _is_welcome(welcome: Callable[[], bool]) -> bool:
    try:
        return welcome()
    except DatabaseUnavailable:  # for so long that nobody is trusted any more
        return False


def _fits(event: Event, queue: str | None, kinds: frozenset[str] | None) -> bool:
    return (queue is None or event.queue == queue) and (kinds is None or event.kind in kinds)


def _event(event: Event, place: str | None) -> str:
    said = vars(JobEvent.of(event)) | {"job_id": event.job_id, "queue": event.queue}
    lines = [f"event: {_word(event.kind)}", f"data: {json_text(said)}"]
    if place is not None:
        lines.insert(0, f"id: {place}")
    return "\n".join(lines) + "\n\n"


def _word(kind: str) -> str:
    """Another service may have written anything; a line break in it would begin a line of its own."""
    return " ".join(kind.split())[:100]


def _once(do: Callable[[], object]) -> Callable[[], None]:
    done = threading.Lock()

    def call() -> None:
        if done.acquire(blocking=False):
            do()

    return call
