"""Is it there, what is it, is it ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from app import log
from app.errors import DatabaseUnavailable, SchemaError
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.schema import SCHEMA_VERSION, Stand, judge
from app.web.auth import may_know_more
from app.web.bounded import Bounded, NoAnswer
from app.web.models import DatabasePart, Health, Info, Readiness, SchemaPart
from app.web.operations import ANY_KEY, OPEN, Subject
from app.web.options import WebOptions
from app.web.problems import Code, NotReady

Probe = Callable[[], Mapping[str, Any]]
Seen = tuple[DatabasePart, SchemaPart | None]

LOG = log.get("app.web")


class Look:
    """How the process does, asked of all its parts; one question to the database at a time."""

    def __init__(self, queue: JobQueue, options: WebOptions, probe: Probe | None, pool: Pool | None) -> None:
        self._pool, self._probe = pool, probe
        self._was_ready = False  # once it is true it stays so
        self._database = Bounded(lambda: _look(queue, pool), patience_sec=options.status_patience_sec)

    def __call__(self) -> Readiness:
        found = _readiness(self._database, self._pool, self._probe)
        self._was_ready = self._was_ready or found.ready
        return found if self._was_ready else replace(found, state="starting")


def infrastructure(look: Look, options: WebOptions) -> Subject:
    subject = Subject("infrastructure", "", options.max_json_depth)
    healthy = Health("healthy")
    who = Info("dataloader", options.version, options.environment)

    @subject.get("/health", answer=Health, scope=OPEN)
    def health() -> Health:
        """Say that the process answers. Does not touch the database."""
        return healthy

    @subject.get("/info", answer=Info, scope=ANY_KEY)
    def info() -> Info:
        """Say which service this is."""
        return who

    @subject.get("/status", answer=Readiness, problems=(Code.NOT_READY,), scope=OPEN)
    def readiness() -> Readiness:
        """Say what is ready and what is missing.

        Asks the database, and the worker pool if this process has one. When a part is missing the answer is a 503
        whose problem holds the same members. Somebody who may not read learns only what is ready.
        """
        found = look()
        if not may_know_more():
            found = _outline(found)
        if not found.ready:
            raise NotReady(vars(found))
        return found

    return subject


def _outline(found: Readiness) -> Readiness:
    """For a stranger: what is ready, and nothing of how it does."""
    schema = None if found.schema is None else SchemaPart(found.schema.ready, None, None, SCHEMA_VERSION)
    workers = None if found.workers is None else {"ready": bool(found.workers["ready"])}
    return Readiness(found.ready, found.state, DatabasePart(found.database.ready, None, None), schema, None, workers)


def _look(queue: JobQueue, pool: Pool | None) -> Seen:
    """One look at the database: does it answer, and with the tables this version needs?"""
    there = DatabasePart(True, None, round(queue.ping() * 1000, 2))
    return there, None if pool is None else _schema(pool)


def _schema(pool: Pool) -> SchemaPart:
    found = None
    try:
        rows = pool.ask("schema_version")
        found = rows[0][0] if rows else None
        judge(Stand(*rows[0]) if rows else None, pool.schema, tables=True)
    except SchemaError as error:
        return SchemaPart(False, log.scrub(str(error)), found, SCHEMA_VERSION)
    return SchemaPart(True, None, found, SCHEMA_VERSION)


def _readiness(database: Bounded[Seen], pool: Pool | None, probe: Probe | None) -> Readiness:
    try:
        there, schema = database.get()
    except NoAnswer as silence:
        there, schema = DatabasePart(False, str(silence), None), None
    except DatabaseUnavailable as error:
        LOG.warning("status.database.away", error=str(error))
        there, schema = DatabasePart(False, "does not answer", None), None
    workers = _workers(probe)
    ready = there.ready and (schema is None or schema.ready) and (workers is None or bool(workers["ready"]))
    state: Literal["ready", "not_ready"] = "ready" if ready else "not_ready"
    return Readiness(ready, state, there, schema, None if pool is None else vars(pool.stats()), workers)


def _workers(probe: Probe | None) -> dict[str, Any] | None:
    """What the worker pool says of itself. One that cannot answer is not ready."""
    if probe is None:
        return None
    try:
        state = {"ready": True, **probe()}
    except Exception as error:  # whatever it is, /status must tell it rather than fail
        LOG.exception(log.Alert.API_ERROR, error=type(error).__name__)
        return {"ready": False, "detail": f"the worker pool cannot say how it is: {type(error).__name__}"}
    if isinstance(state.get("detail"), str):
        state["detail"] = log.scrub(state["detail"])  # it may quote a driver, and a driver its connection string
    return state
