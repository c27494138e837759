"""Triggers that come at the same time, answered together and without Flask: half of what a trigger costs is the way
to its code and back.

Only what is plain is answered here: a sound request of somebody who may, whose job is new, and that can be looked at
without waiting for anything. Whatever else it is, a fault, a refusal, a key that is taken, the ordinary way finds out
anew and tells; nothing has happened by then. One thing cannot be found out anew, and is handed over: what the database
was asked for, and its answer lost, is asked for once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flask import Flask
from flask import app as flasks
from flask.signals import (
    appcontext_popped,
    appcontext_pushed,
    appcontext_tearing_down,
    request_finished,
    request_started,
    request_tearing_down,
)

from app import log, traces
from app.queue.job import Enqueued, NewJob
from app.queue.keys import Scope
from app.queue.together import Together
from app.web.again import Again
from app.web.answers import json_text
from app.web.auth import Actor, Guard
from app.web.exchange import API_HEADERS, Around
from app.web.models import Triggered, TriggerRequest
from app.web.operations import JSON, PLAIN_JSON, valid
from app.web.options import WebOptions
from app.web.queues import Drains
from app.web.tasks import args_faults
from pipelines.contract import Pipelines, Task

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

PATH = "/api/v1/jobs/trigger"
EXPRESS = "dataloader.express"  # in the app's extensions
_DRESS = "".join(f"{name}: {value}\r\n" for name, value in API_HEADERS)
# Seconds that a task may take to look at its args, here where others wait for it; and for how long it is not asked here
# if it took longer: that may have been the machine.
_SLOW, _NOT_HERE_FOR = 0.02, 60.0

_SIGNALS = (
    request_started, request_finished, request_tearing_down, appcontext_pushed, appcontext_popped,
    appcontext_tearing_down,
)  # fmt: skip
_HOOKS = (
    "before_request_funcs", "after_request_funcs", "teardown_request_funcs", "teardown_appcontext_funcs",
    "url_value_preprocessors",
)  # fmt: skip
_WAY = (
    "__call__", "wsgi_app", "request_context", "full_dispatch_request", "dispatch_request", "preprocess_request",
    "process_response", "finalize_request", "make_response",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """A 200."""

    fields: str  # of its head, each with its line's end
    body: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plain request for a job."""

    environ: WSGIEnvironment
    request_id: str
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
        self.around = around
        self._guard, self._together, self._drains = guard, together, drains
        self._pipelines, self._options, self._asked = pipelines, options, asked
        self._slow: dict[str, float] = {}  # tasks that take long to look at their args, and until when they stay away

    def read(self, environ: WSGIEnvironment, body: bytes) -> Wanted | Again:
        """What is wanted; or that it is for the ordinary way to find out. Waits for nobody, but for a task that looks
        at its args: if one takes long, that is known for a while."""
        started = time.perf_counter()
        request_id = self.around.name(environ)
        token = log.bind(lambda: {"request_id": request_id})
        try:
            return self._read(environ, body, request_id, started) or Again(request_id)
        except BaseException:  # of a task's own, too: nothing has happened, and the ordinary way comes to the same
            return Again(request_id)
        finally:
            log.unbind(token)

    def _read(self, environ: WSGIEnvironment, body: bytes, request_id: str, started: float) -> Wanted | None:
        if environ.get("CONTENT_TYPE") not in PLAIN_JSON or not self._guard.knows_at_once(environ):
            return None
        actor = self._guard.known(environ)
        if actor is None or not actor.may((Scope.TRIGGER,)) or len(body) > self._options.max_body_bytes:
            return None
        self._guard.must_be_ours(environ, actor)
        asked = valid(self._asked, body, self._options.max_json_depth)
        if asked.live_key is not None or not actor.may_trigger(asked.task, asked.queue):
            return None
        if not self._drains.takes(asked.queue) or self._drains.may_have_doubts(asked.queue, asked.task):
            return None
        if self._has_faults(asked):
            return None
        act = actor.act("trigger", request_id).told()
        return Wanted(
            environ, request_id, actor, asked.new_job(traces.read(environ.get("HTTP_TRACEPARENT"))), act, started
        )

    def _has_faults(self, asked: TriggerRequest) -> bool:
        """Or may have some, which it would take long to find out."""
        task: Task | None = self._pipelines.get(asked.task)
        if task is None or not task.checks_args:
            return False
        if time.monotonic() < self._slow.get(task.name, 0.0):
            return True
        began = time.perf_counter()
        try:
            return bool(args_faults(task, asked.args))
        finally:
            if time.perf_counter() - began > _SLOW:
                self._slow[task.name] = time.monotonic() + _NOT_HERE_FOR

    def answer(self, wanted: Sequence[Wanted]) -> list[Answer | Again]:
        """What each comes to. Never raises, but for what ends the thread."""
        for one in wanted:
            self.around.begin(one.environ, one.request_id)
        made = self._together.enqueue_all([(one.new, one.act) for one in wanted])
        with log.gathered():
            return [self._told(one, came_to) for one, came_to in zip(wanted, made, strict=True)]

    def _told(self, one: Wanted, made: Enqueued | Exception | None) -> Answer | Again:
        if not isinstance(made, Enqueued):
            return Again(one.request_id, told=True, failure=made)
        facts: dict[str, Any] = {
            "job_id": made.job_id, "queue": one.new.queue, "task": one.new.task, "created": made.created,
            "producer": one.new.producer,
        }  # fmt: skip
        try:
            self.around.end(one.environ, one.request_id, one.actor, PATH, one.started, "job.trigger", facts)
            body = json_text(Triggered(made.job_id, made.status).answer()).encode()
        except Exception as error:  # the job is there, and is not asked for again
            return Again(one.request_id, told=True, failure=error)
        return Answer(
            f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\nX-Request-ID: {one.request_id}\r\n{_DRESS}", body
        )


def express_of(app: Any) -> Express | None:
    """Who may answer in the app's place: None where somebody stands around it, or in the way through it."""
    express = app.extensions.get(EXPRESS) if isinstance(app, Flask) else None
    if express is None or app.wsgi_app is not express.around:
        return None
    ways = [getattr(type(app), name) for name in _WAY]
    flasks_own = all(type(way) is FunctionType and way.__code__.co_filename == flasks.__file__ for way in ways)
    heard = any(signal.receivers for signal in _SIGNALS) or any(getattr(app, hooks, None) for hooks in _HOOKS)
    return express if flasks_own and not heard else None
