"""Liveness, readiness and probes of a process over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dataloader.app import log
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import SCHEMA_VERSION, SchemaVersion, require_compatible
from dataloader.app.errors import DatabaseUnavailable, SchemaError
from dataloader.app.http.auth.guard import has_full_details
from dataloader.app.http.caches import RefreshingValue, RefreshTimeout
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.routing import ANY_KEY, OPEN, ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.jobs import JobQueue

Probe = Callable[[], Mapping[str, Any]]

LOG = log.get("dataloader.app.http")


@dataclass(frozen=True)
class Health:
    status: Literal["healthy"] = "healthy"


@dataclass(frozen=True)
class Info:
    service: Literal["dataloader"]
    version: str
    environment: str


@dataclass(frozen=True)
class ComponentStatus:
    """A component that the service needs."""

    ready: bool
    detail: str | None


@dataclass(frozen=True)
class DatabaseStatus(ComponentStatus):
    round_trip_ms: float | None


@dataclass(frozen=True)
class SchemaStatus(ComponentStatus):
    version: int | None
    required_version: int


@dataclass(frozen=True)
class Readiness:
    """The state of each component. Null: this process has no such component, or its state is unknown."""

    ready: bool
    state: Literal["ready", "starting", "not_ready"]  # starting: the process has not been ready yet
    database: DatabaseStatus
    schema: SchemaStatus | None
    pool: dict[str, Any] | None
    workers: dict[str, Any] | None


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe that passed; one that fails is a 503."""

    ready: bool = True


class ReadinessCheck:
    """Checks all components of the process; one query to the database at a time."""

    def __init__(self, queue: JobQueue, options: WebOptions, probe: Probe | None, pool: Pool | None) -> None:
        self._pool, self._probe = pool, probe
        self._was_ready = False
        self._is_outage_logged = False
        self._database = RefreshingValue(
            lambda: _check_database(queue, pool), name="refresh-status", timeout_sec=options.status_timeout_sec
        )

    def __call__(self) -> Readiness:
        try:
            database, schema = self._database.get()
            reason = database.detail
        except RefreshTimeout as error:
            database, schema, reason = DatabaseStatus(False, str(error), None), None, str(error)
        except DatabaseUnavailable as error:
            database, schema, reason = DatabaseStatus(False, "unavailable", None), None, str(error)
        self._log_change(database.ready, reason)
        workers = None if self._probe is None else _check_workers(self._probe)
        is_ready = database.ready and (schema is None or schema.ready) and (workers is None or bool(workers["ready"]))
        self._was_ready = self._was_ready or is_ready
        state: Literal["ready", "starting", "not_ready"] = "ready" if is_ready else "not_ready"
        return Readiness(
            ready=is_ready,
            state=state if self._was_ready else "starting",
            database=database,
            schema=schema,
            pool=None if self._pool is None else vars(self._pool.stats()),
            workers=workers,
        )

    def _log_change(self, is_available: bool, reason: str | None) -> None:
        """Log the first check that fails and the first that passes again: probes come every few seconds."""
        if is_available and self._is_outage_logged:
            LOG.info("status.database_available")
        elif not is_available and not self._is_outage_logged:
            LOG.warning("status.database_unavailable", error=reason)
        self._is_outage_logged = not is_available


class Probes:
    """The probes of a process: each returns None, or the reason why it fails."""

    def __init__(self, why_not_ready: Callable[[], str | None], probe: Probe | None) -> None:
        self._why_not_ready, self._probe = why_not_ready, probe
        self._was_ready = False

    def started(self) -> str | None:
        return None if self._was_ready or self.ready() is None else "the process has not been ready yet"

    def ready(self) -> str | None:
        reason = self._why_not_ready()
        self._was_ready = self._was_ready or reason is None
        return reason

    def consuming(self) -> str | None:
        if self._probe is None:
            return "this process runs no jobs"
        state = self._probe()
        if state.get("consuming"):
            return None
        return str(state.get("detail") or "the dispatcher has not completed a claim in time")


def create_health_blueprint(site: Site) -> ApiBlueprint:
    probe, options = site.probe, site.options
    check_readiness = ReadinessCheck(site.queue, options, probe, site.pool)
    blueprint = ApiBlueprint("status", "")
    probes = Probes(lambda: _why_not_ready(check_readiness()), probe)
    info = Info("dataloader", options.version, options.environment)
    not_ready = (ProblemCode.NOT_READY,)

    @blueprint.get("/health", response=Health, scope=OPEN)
    def get_health() -> Health:
        """Check that the process responds. Does not query the database."""
        return Health()

    @blueprint.get("/info", response=Info, scope=ANY_KEY)
    def get_info() -> Info:
        """Get the version of the service."""
        return info

    @blueprint.get("/status", response=Readiness, problems=not_ready, scope=OPEN)
    def get_status() -> Readiness:
        """Get the state of the database, and of the worker pool if this process has one.

        If a component is not ready the response is a 503 whose problem has the same fields. Without a key that may
        read, only the `ready` fields are shown.
        """
        readiness = check_readiness()
        if not has_full_details():
            readiness = _public_view(readiness)
        if not readiness.ready:
            raise _not_ready(vars(readiness))
        return readiness

    @blueprint.get("/health/started", response=ProbeResult, problems=not_ready, scope=OPEN)
    def check_started() -> ProbeResult:
        """Check whether the process has ever been ready: a startup probe."""
        return _probe_result(probes.started())

    @blueprint.get("/health/ready", response=ProbeResult, problems=not_ready, scope=OPEN)
    def check_ready() -> ProbeResult:
        """Check whether the database, its tables, and the workers if there are any, are ready now."""
        return _probe_result(probes.ready())

    @blueprint.get("/health/consuming", response=ProbeResult, problems=not_ready, scope=OPEN)
    def check_consuming() -> ProbeResult:
        """Check whether this process claims jobs.

        Fails if its dispatcher has not completed a claim in time, also without a database, and in a process without
        workers. While all threads run jobs no claim is needed.
        """
        return _probe_result(probes.consuming())

    return blueprint


def _not_ready(report: Mapping[str, Any]) -> RequestRejected:
    return RequestRejected(ProblemCode.NOT_READY, headers={"Retry-After": "5"}, fields=report)


def _probe_result(reason: str | None) -> ProbeResult:
    if reason is not None:
        raise _not_ready({"ready": False, "detail": reason})
    return ProbeResult()


def _why_not_ready(readiness: Readiness) -> str | None:
    """The reason for callers who may read it."""
    if readiness.ready:
        return None
    components = {"database": readiness.database, "schema": readiness.schema}
    details = {name: component.detail for name, component in components.items() if component and not component.ready}
    if readiness.workers is not None and not readiness.workers["ready"]:
        details["workers"] = readiness.workers.get("detail")
    if not has_full_details():
        return f"not ready: {', '.join(details)}"
    return "; ".join(f"{name}: {detail or 'not ready'}" for name, detail in details.items())


def _public_view(readiness: Readiness) -> Readiness:
    """Only the `ready` fields."""
    schema = None if readiness.schema is None else SchemaStatus(readiness.schema.ready, None, None, SCHEMA_VERSION)
    workers = None if readiness.workers is None else {"ready": bool(readiness.workers["ready"])}
    database = DatabaseStatus(readiness.database.ready, None, None)
    return replace(readiness, database=database, schema=schema, pool=None, workers=workers)


def _check_database(queue: JobQueue, pool: Pool | None) -> tuple[DatabaseStatus, SchemaStatus | None]:
    database, version = DatabaseStatus(True, None, round(queue.ping() * 1000, 2)), None
    if pool is None:
        return database, None
    reason: str | None = pool.execute("read_only_reason")[0][0]
    if reason is None and any(is_waiting for (is_waiting,) in pool.execute("is_commit_waiting")):
        reason = "commits wait for a standby that is not there; docs/backup.md, step 3 of a failover"
    if reason is not None:
        database = DatabaseStatus(False, reason, database.round_trip_ms)
    try:
        rows = pool.execute("schema_version")
        version = rows[0][0] if rows else None
        require_compatible(SchemaVersion(*rows[0]) if rows else None, pool.schema, has_tables=True)
    except SchemaError as error:
        return database, SchemaStatus(False, log.redact_text(str(error)), version, SCHEMA_VERSION)
    return database, SchemaStatus(True, None, version, SCHEMA_VERSION)


def _check_workers(probe: Probe) -> dict[str, Any]:
    try:
        state = {"ready": True, **probe()}
    except Exception as error:  # a worker pool that cannot report its state is not ready
        LOG.exception(log.Alert.API_ERROR, error=type(error).__name__)
        return {"ready": False, "detail": f"the worker pool's state is unknown: {type(error).__name__}"}
    if isinstance(state.get("detail"), str):
        state["detail"] = log.redact_text(state["detail"])  # it may quote a driver's message with a connection string
    return state
