"""What the commands that work on this machine do: run the service, migrate, prune, examine, make keys, open psql."""

from __future__ import annotations

import math
import os
import pwd
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from dataloader.app.acts.findings import UNREACHABLE, Finding, error
from dataloader.app.config import Settings, load_settings
from dataloader.app.config.dsn import parse_dsn
from dataloader.app.config.loading import inherited_environment
from dataloader.app.db import uninstall
from dataloader.app.db.roles import roles_sql
from dataloader.app.db.schema import LOCK_WAIT_SEC, SCHEMA_VERSION, Migration
from dataloader.app.db.statements import AuditContext, acting_as
from dataloader.app.db.uninstall import Installation, require_unused
from dataloader.app.errors import DatabaseUnavailable, ProgramMissing
from dataloader.app.features.doctor.examine import run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.schema import expected_schema, find_repairs
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.retention.rows import Retention
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.log import redact_text
from dataloader.app.postgres.binaries import find_program
from dataloader.app.runtime.database import Database
from dataloader.app.runtime.pool_settings import feature_options, retention_periods
from dataloader.app.runtime.serve import serve
from dataloader.app.runtime.service import doctor_connections, set_up_logging
from dataloader.app.runtime.worker import run_worker
from dataloader.app.state.queues import Queues
from dataloader.workers.reports.secrets import SecretStore

__all__ = [
    "ApiKeys", "NewApiKey", "Scope", "audited_api_keys", "database_dsn", "find_installation", "migrate", "os_user",
    "preview_held_retention", "prune", "psql_command", "remove_installation", "require_unused", "roles_sql",
    "run_doctor", "run_worker", "serve",
]  # fmt: skip
_PRUNE_BATCH_SIZE = 500
_DRAIN_POLL_SEC = 1.0
_MAX_COUNTED = 100_000  # jobs that a dry run counts at most, of each batch
# Of libpq's parameters those whose variable is not PG and the name without underscores.
_PSQL_VARIABLES = {"application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT", "dbname": "PGDATABASE"}


def database_dsn(settings: Settings) -> str:
    """Return the connection string, with its password. An embedded server is started for it."""
    with closing(Database(settings)) as database:
        return database.dsn()


def migrate(settings: Settings, *, lock_wait_sec: float | None = None) -> Migration:
    """Apply schema.sql, then compare each object with what it creates, and restore what differs."""
    set_up_logging(settings)
    with closing(Database(settings)) as database:
        migration = database.migrate(LOCK_WAIT_SEC if lock_wait_sec is None else lock_wait_sec)
        if migration.to_version > SCHEMA_VERSION:
            return migration  # what a newer version has made on purpose is no difference
        with database.pool("dataloader-migrate") as pool:
            repairs = find_repairs(DatabaseFacts(pool).schema_objects(), expected_schema())
        if not repairs:
            return migration
        database.apply_repairs(repairs)
        restored = (f"restored {repair.object_name}" for repair in repairs if repair.object_name)
        return replace(migration, steps=(*migration.steps, *restored))


def find_installation(settings: Settings) -> Installation:
    """Return what `uninstall` would remove."""
    set_up_logging(settings)
    with closing(Database(settings)) as database:
        return uninstall.find_installation(
            database.worker_dsn(), settings.schema, connect_timeout_sec=settings.pg_connect_timeout
        )


def remove_installation(settings: Settings, *, force: bool) -> Installation:
    """Remove the queue from the settings' schema; with `force` while it is in use too."""
    set_up_logging(settings)
    with closing(Database(settings)) as database:
        return uninstall.uninstall(
            database.worker_dsn(), settings.schema, force=force, connect_timeout_sec=settings.pg_connect_timeout
        )


@dataclass(frozen=True)
class DrainedHost:
    """The number of worker processes that were drained, and of the jobs that they still run."""

    workers: int
    running: int


def drain_host(settings: Settings, *, wait: bool, timeout_sec: float | None = None) -> DrainedHost:
    """Have the worker processes of this host claim nothing more; with `wait` return when their jobs have ended."""
    set_up_logging(settings)
    host, deadline = socket.gethostname(), math.inf if timeout_sec is None else time.monotonic() + timeout_sec
    context = AuditContext(action="drain_worker", actor=f"account {os_user()}", via="command", address=host)
    with closing(Database(settings)) as database, database.pool("dataloader-drain") as pool, acting_as(context):
        queues = Queues(pool)
        ids = {worker.worker_id for worker in queues.workers() if worker.alive and worker.host == host}
        for worker_id in ids:
            queues.drain_worker(worker_id, draining=True)
        while True:
            running = sum(worker.busy for worker in queues.workers() if worker.worker_id in ids)
            if not (wait and running) or time.monotonic() >= deadline:
                return DrainedHost(len(ids), running)
            threading.Event().wait(_DRAIN_POLL_SEC)


@contextmanager
def audited_api_keys(action: str) -> Iterator[tuple[ApiKeys, str]]:
    """Open the API keys of the settings' database, with the operating system's user as the actor."""
    settings = load_settings()
    set_up_logging(settings)
    context = AuditContext(action=action, actor=f"account {os_user()}", via="command", address=os.uname().nodename)
    with (
        closing(Database(settings)) as database,
        database.pool("dataloader-keys") as pool,
        acting_as(context),
    ):
        yield ApiKeys(pool), context.actor


def os_user() -> str:
    """By the process's user id: variables of the environment can be set by the caller."""
    user_id = os.getuid()
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


@dataclass(frozen=True)
class PruneResult:
    """What was deleted, or what a dry run would delete."""

    jobs: dict[tuple[str, str], int]  # (status, task) → how many
    partitions: list[str]
    is_truncated: bool = False  # there are more jobs than a dry run counts


def preview_held_retention(settings: Settings) -> PruneResult | None:
    """Return what workers would delete were retention not paused since the upgrade from version 0, if it is."""
    if not settings.retention_enabled or settings.is_retention_requested:
        return None
    with _open_retention(settings) as retention:
        return _preview(retention) if retention.is_paused else None


def prune(settings: Settings, *, dry_run: bool) -> PruneResult:
    """Delete all that is older than its retention period, batch by batch."""
    with _open_retention(settings) as retention:
        if dry_run:
            return _preview(retention)
        jobs: Counter[tuple[str, str]] = Counter()
        has_more = True
        while has_more:
            batch = retention.prune(limit=_PRUNE_BATCH_SIZE)
            jobs.update(batch.jobs)
            has_more = batch.has_more
        partitions: list[str] = []
        while dropped := retention.drop_partitions():
            partitions += dropped
        retention.prune_audit()
        return PruneResult(dict(jobs), partitions)


@contextmanager
def _open_retention(settings: Settings) -> Iterator[Retention]:
    with closing(Database(settings)) as database, database.pool("dataloader-prune") as pool:
        yield Retention(pool, retention_periods(settings))


def _preview(retention: Retention) -> PruneResult:
    due = retention.prune(limit=_MAX_COUNTED, dry_run=True)
    return PruneResult(dict(due.jobs), retention.drop_partitions(dry_run=True), due.has_more)


def run_doctor(settings: Settings) -> list[Finding]:
    """Return all findings; of a database that does not answer, that alone."""
    set_up_logging(settings)
    features = feature_options(
        settings, SecretStore(settings.named_secrets, settings.secrets_dir, settings.task_secrets)
    )
    try:
        with closing(Database(settings)) as database, database.pool("dataloader-doctor", direct=False) as pool:
            connections = doctor_connections(settings, database.dsn(), features)
            return run_checks(DatabaseFacts(pool), connections, FEATURES)
    except DatabaseUnavailable as outage:
        return [_unreachable_finding(settings, redact_text(str(outage)))]


def _unreachable_finding(settings: Settings, reason: str) -> Finding:
    parameters = parse_dsn("" if settings.dsn is None else settings.dsn.get_secret_value())
    host = parameters.get("host") or parameters.get("hostaddr") or "the local socket"
    port = parameters.get("port") or "5432"
    lines = [line.strip() for line in reason.splitlines()]
    # libpq's question whether the server runs would repeat the remedy.
    summary = "; ".join(line for line in lines if line and not line.startswith("Is the server running"))
    return error(
        UNREACHABLE,
        f"the database at {host} port {port} does not answer: {summary}",
        "start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force, and "
        f"`pg_isready -h {host} -p {port}` whether something answers there",
        host=host,
        port=port,
        reason=reason,
    )


@contextmanager
def psql_command(settings: Settings) -> Iterator[tuple[str, dict[str, str]]]:
    """The program and its environment; an embedded server runs at least until the end of the block."""
    program = find_program("psql")
    if program is None:
        raise ProgramMissing(
            "there is no psql on PATH, in the usual folders of PostgreSQL or with the embedded server; install it "
            "(Debian, Ubuntu: apt install postgresql-client), or use another client with what `dataloader config "
            "--dsn` prints"
        )
    with closing(Database(settings)) as database:
        yield str(program), psql_environment(parse_dsn(database.dsn()), settings.schema)


def psql_environment(parameters: Mapping[str, str], schema: str) -> dict[str, str]:
    """This process's environment with the parameters by libpq's names, and the schema first in the search path."""
    quoted_schema = '"' + schema.replace('"', '""') + '",public'
    path = "-c search_path=" + quoted_schema.replace("\\", "\\\\").replace(" ", "\\ ")
    options = f"{parameters['options']} {path}" if "options" in parameters else path
    parameters = {"application_name": "dataloader-psql", **parameters, "options": options}
    return inherited_environment(
        {_PSQL_VARIABLES.get(name, f"PG{name.replace('_', '').upper()}"): value for name, value in parameters.items()}
    )
