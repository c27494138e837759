"""The stream of events, followed over lost connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from app.client.errors import ServiceUnavailable

Lines = Callable[[str | None], Iterator[str]]  # of a stream that goes on behind an id


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """What happened to a job. `place`: what to send as `after` to go on behind it; None: it came with others."""

    place: str | None
    event_id: int
    job_id: UUID
    queue: str
    at: datetime
    kind: str
    payload: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


def follow(lines: Lines, *, after: str | None, rest: Callable[[], None]) -> Iterator[StreamEvent]:
    """Each event once, or, when a connection was lost in the midst of several, twice. `rest` waits before a new one."""
    place = after
    while True:
        said: dict[str, str] = {}
        try:
            for line in lines(place):
                if line:
                    name, _, value = line.partition(": ")
                    said[name] = value
                    continue
                place = said.get("id", place)
                if "data" in said:
                    yield _event(json.loads(said["data"]), said.get("id"))
                said = {}
        except ServiceUnavailable as outage:
            if not outage.sent:
                raise
        rest()


def _event(said: dict[str, Any], place: str | None) -> StreamEvent:
    return StreamEvent(
        place=place,
        event_id=int(said["event_id"]),
        job_id=UUID(said["job_id"]),
        queue=str(said["queue"]),
        at=datetime.fromisoformat(said["ts"]),
        kind=str(said["kind"]),
        payload=dict(said["payload"]),
        said=said,
    )
