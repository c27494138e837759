"""`dataloader migrate`: the tables of this version, with what was dropped or changed by hand put back."""

from __future__ import annotations

from dataclasses import replace

from app.config import Settings
from app.doctor.schema import expected, find_repairs
from app.host.database import Database
from app.queue.examination import Examination
from app.queue.pool import Pool
from app.queue.repair import Repairs
from app.queue.schema import SCHEMA_VERSION, Migration


def migrate(settings: Settings) -> Migration:
    """Apply schema.sql, then compare each object with what it makes, and restore what differs."""
    database = Database(settings)
    try:
        done = database.migrate()
        if done.now > SCHEMA_VERSION:
            return done  # what a newer version has made on purpose is no difference
        repairs = _find_repairs(database, settings)
        if repairs is None:
            return done
        return replace(done, steps=(*done.steps, *database.migrate(repairs).steps))
    finally:
        database.close()


def _find_repairs(database: Database, settings: Settings) -> Repairs | None:
    pool = Pool(
        database.worker_dsn,
        size=1,
        overflow=0,
        connect_timeout_sec=settings.pg_connect_timeout,
        schema=settings.schema,
        application_name="dataloader-migrate",
    )
    try:
        return find_repairs(Examination(pool).catalogue(), expected())
    finally:
        pool.close()
