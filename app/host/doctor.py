"""`dataloader doctor`: the settings' own ways to the database, examined."""

from __future__ import annotations

from app.config import Settings
from app.config import dsn as dsn_text
from app.doctor.examine import Ways, examine
from app.doctor.findings import UNREACHABLE, Finding, error
from app.errors import DatabaseUnavailable
from app.host.database import Database
from app.log import scrub
from app.queue.examination import Examination
from app.queue.pool import Pool


def examine_service(settings: Settings) -> list[Finding]:
    """All findings; of a database that does not answer, that alone."""
    try:
        return _examine(settings)
    except DatabaseUnavailable as outage:
        return [_unreachable(settings, str(outage))]


def _unreachable(settings: Settings, reason: str) -> Finding:
    given = "" if settings.dsn is None else settings.dsn.get_secret_value()
    parameters = dsn_text.parse(given)
    host = parameters.get("host") or parameters.get("hostaddr") or "the local socket"
    port = parameters.get("port") or "5432"
    return error(
        UNREACHABLE,
        f"the database at {host} port {port} does not answer: {_what_failed(reason)}",
        "start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force, and "
        f"`pg_isready -h {host} -p {port}` whether something answers there",
        host=host,
        port=port,
        reason=scrub(reason),
    )


def _what_failed(reason: str) -> str:
    """libpq's question whether the server runs would repeat the remedy."""
    lines = [line.strip() for line in scrub(reason).splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith("Is the server running"))


def _examine(settings: Settings) -> list[Finding]:
    database = Database(settings)
    try:
        dsn = database.dsn()
        pool = Pool(
            dsn,
            size=1,
            overflow=0,
            connect_timeout_sec=settings.pg_connect_timeout,
            command_timeout_sec=settings.pg_command_timeout,
            application_name="dataloader-doctor",
            schema=settings.schema,
            transactions_only=True,
        )
        ways = Ways(
            api=dsn,
            workers=None if settings.worker_dsn is None else settings.worker_dsn.get_secret_value(),
            timeout_sec=settings.pg_connect_timeout,
            api_connections=settings.pg_pool_size + settings.pg_max_overflow,
            is_retention_decided=settings.is_retention_decided,
        )
        try:
            return examine(Examination(pool), ways)
        finally:
            pool.close()
    finally:
        database.close()
