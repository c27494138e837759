"""The stream of job events over HTTP, as server-sent events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

from flask import Response, request
from pydantic import Field

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import revalidator
from dataloader.app.http.json_io import FieldError, dump_json
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields
from dataloader.app.queue.events import EventReader
from dataloader.app.queue.job_records import JobEvent

EVENT_STREAM_TYPE = "text/event-stream"
_POLL_INTERVAL_SEC = 0.5
_KEEPALIVE_INTERVAL_SEC = 15.0  # without an event, after which a comment is sent
_REVALIDATE_SEC = 5.0  # between two checks that the caller is still authorized
_MAX_STREAM_SEC = 3600.0


class StreamQuery(QueryModel):
    """Which events to stream."""

    queue: Annotated[str | None, Field(description="Only events of jobs of this queue.")] = None
    kind: Annotated[str | None, Field(description="Only these kinds of events, separated by commas.")] = None
    after: Annotated[
        str | None,
        Field(
            max_length=2000,
            description="Continue after this `id`; the header `Last-Event-ID` overrides it. Left out: events from now "
            "on.",
        ),
    ] = None
    seconds: Annotated[
        float, Field(gt=0, le=_MAX_STREAM_SEC, description="The maximum length of the stream in seconds.")
    ] = _MAX_STREAM_SEC


def create_events_blueprint(site: Site) -> ApiBlueprint:
    source, options, closing = site.executor, site.options, site.closing
    blueprint = ApiBlueprint("events", "/api/v1", problems=DATABASE_PROBLEMS)
    slots = threading.BoundedSemaphore(options.max_streams)

    @blueprint.get(
        "/stream",
        query=StreamQuery,
        response=str,
        media_type=EVENT_STREAM_TYPE,
        problems=(ProblemCode.TOO_MANY_WAITING,),
        scope=Scope.READ,
    )
    def stream_events(query: StreamQuery) -> Response:
        """Stream job events as server-sent events.

        Each has its kind as name and the event as `data`, with `event_id`, `job_id`, `queue`, `ts`, `kind` and
        `payload`. Events committed late arrive late, but none is lost: the `id` of an event is its number, followed
        after a `~` by earlier ones that may still arrive. Send the last `id` as `Last-Event-ID` to continue. The
        stream ends soon after the caller's key or session expires.
        """
        try:
            reader = EventReader(source, after=request.headers.get("Last-Event-ID") or query.after)
        except ValueError as error:
            raise InvalidRequest([FieldError("after", f"{error}; send the id of an event")]) from None
        if not slots.acquire(blocking=False):
            raise RequestRejected(ProblemCode.TOO_MANY_WAITING, headers={"Retry-After": "1"})
        with ExitStack() as stack:
            stack.callback(slots.release)
            first = reader.poll()  # before the response starts, an outage is a problem
            lines = _event_lines(reader, first, query, closing, revalidator((Scope.READ,)))
            headers = {"X-Accel-Buffering": "no"}
            response = Response(lines, headers=headers, content_type=f"{EVENT_STREAM_TYPE}; charset=utf-8")
            response.call_on_close(stack.pop_all().close)  # releases once, however often the response is closed
        return response

    return blueprint


def _event_lines(
    reader: EventReader,
    first: list[JobEvent],
    query: StreamQuery,
    closing: threading.Event,
    is_authorized: Callable[[], bool],
) -> Iterator[str]:
    ends_at = time.monotonic() + query.seconds
    kinds = None if query.kind is None else frozenset(query.kind.split(","))
    yield f"retry: 2000\nid: {reader.cursor}\n\n"
    events, last_sent_at = first, time.monotonic()
    last_authorized_at = last_sent_at
    while True:
        if time.monotonic() - last_authorized_at >= _REVALIDATE_SEC:
            try:
                if not is_authorized():
                    return
            except DatabaseUnavailable:  # for longer than keys are trusted without it
                return
            last_authorized_at = time.monotonic()
        matching = [
            event for event in events if query.queue in (None, event.queue) and (kinds is None or event.kind in kinds)
        ]
        for n, event in enumerate(matching, 1):
            # Only the last event of a poll carries the cursor: continuing after an earlier one would skip the rest.
            yield _format_event(event, reader.cursor if n == len(matching) else None)
        now = time.monotonic()
        if matching:
            last_sent_at = now
        elif now - last_sent_at >= _KEEPALIVE_INTERVAL_SEC:
            last_sent_at = now
            yield f"id: {reader.cursor}\n: nothing new\n\n" if events else ": nothing new\n\n"
        if now >= ends_at or closing.wait(min(_POLL_INTERVAL_SEC, max(0.0, ends_at - now)) if not events else 0):
            return
        try:
            events = reader.poll()
        except DatabaseUnavailable:
            events = []
            yield ": the database is away\n\n"


def _format_event(event: JobEvent, cursor: str | None) -> str:
    payload = replace(event, payload=mask_secret_fields(event.payload))
    # Another service may have written any kind; a line break in it would begin a line of its own.
    kind = " ".join(event.kind.split())[:100]
    place = "" if cursor is None else f"id: {cursor}\n"
    return f"{place}event: {kind}\ndata: {dump_json(payload)}\n\n"
