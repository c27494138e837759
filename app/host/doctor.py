"""`dataloader doctor`: the settings' own ways to the database, examined."""

from __future__ import annotations

from app.config import Settings
from app.doctor.examine import Ways, examine
from app.doctor.findings import Finding
from app.host.database import Database
from app.queue.examination import Examination
from app.queue.pool import Pool


def examine_service(settings: Settings) -> list[Finding]:
    """Raises DatabaseUnavailable when there is nothing to examine."""
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
