"""Triggers that come at the same time, answered together and without Flask: half of what a trigger costs is the way
to its code and back.

Only what is plain is answered here: a sound request of somebody who may, whose job is new. Whatever else it is, a
fault, a refusal, a key that is taken, the ordinary way finds out anew and tells; nothing has happened by then. One
thing cannot be found out anew, and is handed over: what the database was asked for, and its answer lost, is asked once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app import traces
from app.queue.job import Enqueued, NewJob
from app.queue.keys import Scope
from app.queue.together import Together
from app.web.answers import json_text
from app.web.auth import Actor, Guard
from app.web.exchange import API_HEADERS, Around
from app.web.models import Triggered, TriggerRequest
from app.web.operations import JSON, PLAIN_JSON, valid
from app.web.options import WebOptions
from app.web.queues import Drains
from app.web.tasks import args_faults
from pipelines.contract import Pipelines

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

PATH = "/api/v1/jobs/trigger"
_DRESS = "".join(f"{name}: {value}\r\n" for name, value in API_HEADERS)

_FAILURE: ContextVar[Exception | None] = ContextVar("what the request has come to already", default=None)


@contextmanager
def failed(error: Exception | None) -> Iterator[None]:
    """The request that this thread answers within was asked of the database before, and came to this."""
    token = _FAILURE.set(error)
    try:
        yield
    finally:
        _FAILURE.reset(token)


def fail_as_before() -> None:
    error = _FAILURE.get()
    if error is not None:
        raise error


@dataclass(frozen=True, slots=True)
class Answer:
    """A 200."""

    fields: str  # of its head, each with its line's end
    body: bytes


@dataclass(frozen=True, slots=True)
class _Wanted:
    environ: WSGIEnvironment
    actor: Actor
    new: NewJob
    act: str
    started: float


class Express:
    """Used by several threads at once."""

    def __init__(
        self,
        around: Around,
        guard: Guard,
        together: Together,
        pipelines: Pipelines,
        options: WebOptions,
        asked: type[TriggerRequest],
        drains: Drains,
    ) -> None:
        self._around, self._guard, self._together, self._drains = around, guard, together, drains
        self._pipelines, self._options, self._asked = pipelines, options, asked

    def answer(self, requests: Sequence[tuple[WSGIEnvironment, bytes]]) -> list[Answer | Exception | None]:
        """What each comes to. None: that is for the ordinary way to find out; an error: for it to tell (`failed`)."""
        wanted = [self._wanted(environ, body) for environ, body in requests]
        made = iter(self._together.enqueue_all([(one.new, one.act) for one in wanted if one is not None]))
        return [None if one is None else self._told(one, next(made)) for one in wanted]

    def _wanted(self, environ: WSGIEnvironment, body: bytes) -> _Wanted | None:
        started = time.perf_counter()
        if environ.get("CONTENT_TYPE") not in PLAIN_JSON or len(body) > self._options.max_body_bytes:
            return None
        try:
            actor = self._guard.known(environ)
            if actor is None or not actor.may((Scope.TRIGGER,)):
                return None
            self._guard.must_be_ours(environ, actor)
            asked = valid(self._asked, body, self._options.max_json_depth)
            if asked.live_key is not None or not actor.may_trigger(asked.task, asked.queue):
                return None
            if args_faults(self._pipelines.get(asked.task), asked.args):
                return None
            self._drains.refuse(asked.queue)
        except Exception:  # nothing has happened yet, and the ordinary way comes to the same
            return None
        act = actor.act("trigger", self._around.name(environ))
        return _Wanted(environ, actor, asked.new_job(traces.read(environ.get("HTTP_TRACEPARENT"))), act.told(), started)

    def _told(self, one: _Wanted, made: Enqueued | Exception | None) -> Answer | Exception | None:
        if not isinstance(made, Enqueued):
            return made
        facts: dict[str, Any] = {
            "job_id": made.job_id, "queue": one.new.queue, "task": one.new.task, "created": made.created,
            "producer": one.new.producer,
        }  # fmt: skip
        request_id = self._around.tell(one.environ, one.actor, PATH, one.started, "job.trigger", facts)
        body = json_text(vars(Triggered(made.job_id, made.status))).encode()
        return Answer(
            f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\n{_DRESS}", body
        )
