"""Translates psycopg2's errors into ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from app.errors import (
    ConfigError,
    DatabaseUnavailable,
    InvalidJob,
    RightsMissing,
    SchemaMissing,
    SchemaOutdated,
    SettingError,
)

_UNDEFINED_TABLE_CODES = {"42P01", "42704", "3F000"}  # no such table, type or schema
_INSUFFICIENT_PRIVILEGE = "42501"
_UNDEFINED_MEMBER_CODES = {"42703", "42883"}  # no such column or function
_LOST_SESSION_CODES = {"42P05", "26000"}  # a prepared statement exists too early, or no longer


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise our error in place of psycopg2's, `from` the original."""
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        message = (error.diag.message_primary or str(error) or type(error).__name__).strip()
        if code in _UNDEFINED_TABLE_CODES:
            raise SchemaMissing(f"{message}; `dataloader migrate` creates the queue's tables") from error
        if code in _UNDEFINED_MEMBER_CODES:
            raise SchemaOutdated(f"{message}; `dataloader migrate` brings the queue's tables up to date") from error
        if code == _INSUFFICIENT_PRIVILEGE:
            raise RightsMissing(f"{message}; `dataloader migrate --roles` prints the rights it needs") from error
        if code in _LOST_SESSION_CODES:  # a pooler hands out another session at each transaction
            raise DatabaseUnavailable(f"{message}; behind a pooler DL_WORKER_DSN names PostgreSQL itself") from error
        if isinstance(error, psycopg2.DataError) or code.startswith("23"):
            raise InvalidJob(f"PostgreSQL refused a value: {message}") from error
        # Without a code the connection broke during a response.
        is_broken = isinstance(error, psycopg2.DatabaseError) and not code
        is_operational = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        if is_broken or is_operational or code.startswith(("08", "25", "40", "53", "55", "57", "58")):
            raise DatabaseUnavailable(message) from error
        raise


@contextmanager
def translate_dsn_errors() -> Iterator[None]:
    """Raise ConfigError in place of libpq's refusal to read a connection string.

    libpq repeats the whole string, password and all: neither its message nor the original error may leave this block.
    """
    try:
        yield
    except (psycopg2.ProgrammingError, UnicodeError, ValueError):
        remedy = (
            "write % as %25, and @ : / as %40 %3A %2F, in a password within postgresql://…; quote a value that has "
            "blanks in keyword=value pairs"
        )
        settings = "DL_DB_DSN, DL_WORKER_DSN or DL_TARGETS"
        raise ConfigError([SettingError(settings, "a connection string that libpq cannot read", remedy)]) from None
