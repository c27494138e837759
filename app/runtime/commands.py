"""What the commands that work on this machine do: run the service, migrate, prune, examine, make keys, open psql."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from app.admin.api_keys import ApiKeys, NewApiKey, Scope
from app.config import Settings, load_settings
from app.config import dsn as dsn_text
from app.db.roles import roles_sql
from app.db.schema import SCHEMA_VERSION, Migration
from app.db.statements import AuditContext, acting_as
from app.doctor.examine import Connections, run_checks
from app.doctor.facts import DatabaseFacts
from app.doctor.findings import UNREACHABLE, Finding, error
from app.doctor.schema import expected_schema, find_repairs
from app.errors import DatabaseUnavailable
from app.log import redact_text
from app.runtime.database import Database
from app.runtime.prune import preview_held_retention, prune
from app.runtime.psql import psql_command
from app.runtime.serve import serve
from app.runtime.service import set_up_logging
from app.runtime.worker import run_worker

__all__ = [
    "ApiKeys", "NewApiKey", "Scope", "audited_api_keys", "database_dsn", "migrate", "preview_held_retention", "prune",
    "psql_command", "roles_sql", "run_doctor", "run_worker", "serve",
]  # fmt: skip


def database_dsn(settings: Settings) -> str:
    """Return the connection string, with its password. An embedded server is started for it."""
    with Database.opened(settings) as database:
        return database.dsn()


def migrate(settings: Settings) -> Migration:
    """Apply schema.sql, then compare each object with what it creates, and restore what differs."""
    set_up_logging(settings)
    with Database.opened(settings) as database:
        migration = database.migrate()
        if migration.to_version > SCHEMA_VERSION:
            return migration  # what a newer version has made on purpose is no difference
        with database.pool("dataloader-migrate") as pool:
            repairs = find_repairs(DatabaseFacts(pool).schema_objects(), expected_schema())
        if not repairs:
            return migration
        database.apply_repairs(repairs)
        restored = (f"restored {repair.object_name}" for repair in repairs if repair.object_name)
        return replace(migration, steps=(*migration.steps, *restored))


@contextmanager
def audited_api_keys(action: str) -> Iterator[tuple[ApiKeys, str]]:
    """Open the API keys of the settings' database, with the operating system's user as the actor."""
    settings = load_settings()
    set_up_logging(settings)
    context = AuditContext(action=action, actor=f"account {_os_user()}", via="command", address=os.uname().nodename)
    with (
        Database.opened(settings) as database,
        database.pool("dataloader-keys") as pool,
        acting_as(context),
    ):
        yield ApiKeys(pool), context.actor


def _os_user() -> str:
    """By the process's user id: variables of the environment can be set by the caller."""
    user_id = os.getuid()
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def run_doctor(settings: Settings) -> list[Finding]:
    """Return all findings; of a database that does not answer, that alone."""
    set_up_logging(settings)
    try:
        with Database.opened(settings) as database, database.pool("dataloader-doctor", direct=False) as pool:
            connections = Connections(
                api_dsn=database.dsn(),
                worker_dsn=None if settings.worker_dsn is None else settings.worker_dsn.get_secret_value(),
                timeout_sec=settings.pg_connect_timeout,
                api_connections=settings.pg_pool_size + settings.pg_max_overflow,
                is_retention_decided=settings.is_retention_decided,
            )
            return run_checks(DatabaseFacts(pool), connections)
    except DatabaseUnavailable as outage:
        return [_unreachable_finding(settings, redact_text(str(outage)))]


def _unreachable_finding(settings: Settings, reason: str) -> Finding:
    parameters = dsn_text.parse_dsn("" if settings.dsn is None else settings.dsn.get_secret_value())
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
