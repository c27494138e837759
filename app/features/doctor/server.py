"""Checks of the server, its settings, its clock, and poolers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dataloader.app.acts.findings import Finding, error, info, ok, warning
from dataloader.app.db.rights import FEATURE_RIGHTS
from dataloader.app.db.schema import CREATE_DATABASE, REQUIRED_ENCODING
from dataloader.app.db.schema_statements import quote_identifier
from dataloader.app.features.doctor.facts import Pooler

_MIN_VERSION, _BILLION = 150_000, 1_000_000_000
_CLOCK_WARNING_SEC, _CLOCK_ERROR_SEC = 2.0, 30.0
_MAX_LOGGED_STATEMENT_MS = 10_000
_MAX_NOTIFICATION_QUEUE_USAGE = 0.05
_RELOAD_SQL = "SELECT pg_reload_conf()"

SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "autovacuum", "track_counts", "max_connections",
    "superuser_reserved_connections", "reserved_connections", "log_statement", "log_min_duration_statement",
    "log_parameter_max_length", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout",
    "statement_timeout", "lock_timeout", "default_transaction_read_only", "transaction_read_only",
)  # fmt: skip


@dataclass(frozen=True)
class ConnectionBudget:
    """The connections the service may need."""

    worker_processes: int  # live ones
    api_connections: int  # at most, of one API process

    @property
    def needed_count(self) -> int:
        return 4 * max(1, self.worker_processes) + self.api_connections


def check_server(server: Mapping[str, Any], ahead_sec: float, budget: ConnectionBudget) -> Iterator[Finding]:
    settings: Mapping[str, str] = server["settings"]
    yield _check_version(server)
    yield _check_encoding(server)
    yield from _check_durability(server, settings)
    yield from _check_vacuum(server, settings)
    yield _check_writable(server, settings)
    yield _check_standby(server)
    yield _check_connections(server, settings, budget)
    yield from _check_logging(server, settings)
    yield from _check_timeouts(server, settings)
    yield _check_clock(ahead_sec)
    yield _check_notifications(server)
    yield from _check_feature_rights(server)


def _check_feature_rights(server: Mapping[str, Any]) -> Iterator[Finding]:
    for right in FEATURE_RIGHTS:
        if right.check and not server[right.check]:
            yield info(
                right.check,
                f"{server['user']} has no right to {right.feature}: {right.loss}",
                f"{right.grant(server['user'], server['database'])}; as {right.granted_by}",
            )


def _check_version(server: Mapping[str, Any]) -> Finding:
    if server["version"] < _MIN_VERSION:
        return error("server_version", f"PostgreSQL {server['version_text']}", "dataloader needs 15 or newer")
    return ok("server_version", f"PostgreSQL {server['version_text']}")


def _check_encoding(server: Mapping[str, Any]) -> Finding:
    if server["encoding"] != REQUIRED_ENCODING:
        return error(
            "encoding",
            f"database {server['database']!r} has the encoding {server['encoding']}, which cannot hold every text",
            f"name another database, made by {CREATE_DATABASE}",
        )
    return ok("encoding", f"the database has the encoding {REQUIRED_ENCODING}")


def _check_durability(server: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    for name, reason in (("fsync", "a crash may lose everything"), ("full_page_writes", "a crash may tear pages")):
        if settings[name] == "off":
            yield error(name, f"{name} is off: {reason}", f"ALTER SYSTEM SET {name} = on; {_RELOAD_SQL}")
    if settings["synchronous_commit"] == "off":
        yield warning(
            "synchronous_commit",
            "synchronous_commit is off: a crash loses accepted jobs and settlements",
            f"ALTER ROLE {quote_identifier(server['user'])} SET synchronous_commit = on",
        )
    if (
        all(settings[name] == "on" for name in ("fsync", "full_page_writes"))
        and settings["synchronous_commit"] != "off"
    ):
        yield ok("durability", "what is committed survives a crash")


def _check_vacuum(server: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings["autovacuum"] == "off" or settings["track_counts"] == "off":
        yield error(
            "autovacuum",
            "autovacuum does not run: dead rows stay, and claims get slower by the hour",
            f"ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; {_RELOAD_SQL}",
        )
    age = int(server["frozen_age"])
    if age > _BILLION:
        report = error if age > 1.8 * _BILLION else warning
        yield report(
            "wraparound",
            f"the oldest row is {age:,} transactions old; at 2,147 million the server stops taking writes",
            "VACUUM (FREEZE); as a superuser, after the transactions below have ended",
            age=age,
        )
    else:
        yield ok("wraparound", f"the oldest row is {age:,} transactions old", age=age)


def _check_writable(server: Mapping[str, Any], settings: Mapping[str, str]) -> Finding:
    if server["in_recovery"]:
        return error(
            "writable",
            "the server is a standby and takes no writes",
            "name the primary in DL_DB_DSN, or SELECT pg_promote()",
        )
    if server["role_is_read_only"]:
        return ok("writable", "the role is read-only by default, and sessions of the service are read-write")
    if "on" in (settings["default_transaction_read_only"], settings["transaction_read_only"]):
        return error(
            "writable",
            "transactions are read-only by default",
            f"ALTER ROLE {quote_identifier(server['user'])} SET default_transaction_read_only = off",
        )
    return ok("writable", "the server takes writes")


def _check_standby(server: Mapping[str, Any]) -> Finding:
    if server["waiting_commits"]:
        return error(
            "synchronous_standby",
            f"commits wait for a standby that is not there: {server['waiting_commits']} for more than 5 seconds "
            f"(synchronous_standby_names is {server['standby_names']!r})",
            f"ALTER SYSTEM SET synchronous_standby_names = ''; {_RELOAD_SQL}; as a superuser, or start that standby",
            standby_names=server["standby_names"],
        )
    return ok("synchronous_standby", "no commit waits for a standby")


def _check_connections(server: Mapping[str, Any], settings: Mapping[str, str], budget: ConnectionBudget) -> Finding:
    available = int(settings["max_connections"]) - _reserved_connections(settings)
    limits = [limit for limit in (server["role_limit"], server["database_limit"]) if limit >= 0]
    available = min([available, *limits])
    facts = {"available": available, "in_use": server["connections"], "needed": budget.needed_count}
    if budget.needed_count > available:
        return warning(
            "connections",
            f"the service may need {budget.needed_count} connections, and {available} are available",
            _connection_remedy(server, settings, budget, limits),
            **facts,
        )
    return ok("connections", f"up to {budget.needed_count} connections are needed, {available} are available", **facts)


def _connection_remedy(
    server: Mapping[str, Any], settings: Mapping[str, str], budget: ConnectionBudget, limits: list[int]
) -> str:
    """The statement that raises the limit that is too low."""
    less = "or lower PG_POOL_SIZE and PG_MAX_OVERFLOW"
    if 0 <= server["role_limit"] < budget.needed_count:
        return f"ALTER ROLE {quote_identifier(server['user'])} CONNECTION LIMIT {budget.needed_count}; {less}"
    if limits and min(limits) < budget.needed_count:
        return f"ALTER DATABASE {quote_identifier(server['database'])} CONNECTION LIMIT {budget.needed_count}; {less}"
    max_connections = budget.needed_count + _reserved_connections(settings)
    return f"ALTER SYSTEM SET max_connections = {max_connections}; and restart the server; {less}"


def _reserved_connections(settings: Mapping[str, str]) -> int:
    return int(settings["superuser_reserved_connections"]) + int(settings.get("reserved_connections") or 0)


def _check_logging(server: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    min_duration_ms = int(settings["log_min_duration_statement"])
    if settings["log_statement"] in ("mod", "all"):
        found, name, value = f"log_statement is {settings['log_statement']}", "log_statement", "none"
    elif 0 <= min_duration_ms < _MAX_LOGGED_STATEMENT_MS:
        found, name, value = f"log_min_duration_statement is {min_duration_ms} ms", "log_min_duration_statement", "-1"
    else:
        yield ok("statement_logging", "the server's log has no statements, and so no args of jobs")
        return
    yield warning(
        "statement_logging",
        f"{found}: the server's log has the args of jobs",
        f"ALTER ROLE {quote_identifier(server['user'])} SET {name} = {value}; as a superuser",
    )


def _check_timeouts(server: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    if int(settings["idle_session_timeout"]):
        yield error(
            "idle_session_timeout",
            f"idle_session_timeout is {settings['idle_session_timeout']} ms: it ends listeners and key locks",
            f"ALTER ROLE {quote_identifier(server['user'])} SET idle_session_timeout = 0",
        )
    if int(settings.get("transaction_timeout") or 0):
        yield warning(
            "transaction_timeout",
            f"transaction_timeout is {settings['transaction_timeout']} ms: longer loads into this database are ended",
            f"ALTER ROLE {quote_identifier(server['user'])} SET transaction_timeout = 0; needed if "
            "pipelines load into this one",
        )
    if not int(settings["idle_in_transaction_session_timeout"]):
        yield info(
            "idle_in_transaction",
            "nothing ends a session that leaves its transaction open: vacuum could remove no dead row",
            f"ALTER DATABASE {quote_identifier(server['database'])} SET idle_in_transaction_session_timeout = '10min'",
        )


def _check_clock(ahead_sec: float) -> Finding:
    offset_sec = abs(ahead_sec)
    direction = "ahead of" if ahead_sec > 0 else "behind"
    message = f"the server's clock is {offset_sec:.2f} s {direction} this machine's"
    if offset_sec < _CLOCK_WARNING_SEC:
        return ok("clock", message, ahead_sec=round(ahead_sec, 3))
    report = error if offset_sec > _CLOCK_ERROR_SEC else warning
    remedy = "set both by NTP; leases use the server's clock, logs this machine's"
    return report("clock", message, remedy, ahead_sec=round(ahead_sec, 3))


def _check_notifications(server: Mapping[str, Any]) -> Finding:
    usage = float(server["notification_queue_usage"])
    if usage > _MAX_NOTIFICATION_QUEUE_USAGE:
        return error(
            "notification_queue",
            f"the notification queue is {usage:.0%} full; when it is full no job can be enqueued",
            "a session that listens is idle in a transaction: find it among the transactions below, and end it",
            usage=usage,
        )
    return ok("notification_queue", f"the notification queue is {usage:.0%} full", usage=usage)


def check_pooler(pooler: Pooler, client: str, *, needs_session: bool) -> Finding:
    if not (pooler.shared or pooler.wandered):
        return ok("pooler", f"{client}: each connection has a server process of its own")
    lost = [
        name
        for name, is_lost in (("settings", pooler.lost_state), ("prepared statements", pooler.lost_prepared))
        if is_lost
    ]
    if not needs_session:
        return ok("pooler", f"{client}: a pooler is in between, which does the API no harm", **vars(pooler))
    message = f"{client}: a pooler gives one server process to several clients; LISTEN and session locks are lost"
    message += f", as were {' and '.join(lost)}" if lost else ""
    remedy = "DL_WORKER_DSN names the server itself, or a pooler with pool_mode = session; see docs/deploying.md"
    return error("pooler", message, remedy, **vars(pooler))
