"""An attempt that owns the connections of its code, without a job, and statements that it must stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import psycopg2

from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name
from dataloader.workers.connections.own_sessions import Owner, OwnSession, reset_owner, set_owner
from dataloader.workers.connections.task_connections import TaskConnections
from tests.support.real_service import query_rows
from tests.support.waiting import eventually

SLEEP = "SELECT pg_sleep(60)"
SLEEPING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = %s"
QUERY_CANCELED = "57014"


class OwningAttempt:
    def __init__(self, dsn: str) -> None:
        self.job_id, self.run_id = uuid4(), uuid4()
        self.name = attempt_application_name(self.job_id, self.run_id)
        self.connections = TaskConnections(
            ConnectionSettings(dsn=dsn, schema="public", targets={}), self.job_id, self.run_id
        )
        self.unchecked: list[str] = []

    @property
    def owner_id(self) -> str:
        return str(self.job_id)

    def own_application_name(self) -> str:
        return self.name

    def adopt(self, session: OwnSession) -> None:
        self.connections.adopt(session)

    def drop(self, session: OwnSession) -> None:
        self.connections.drop(session)

    def report_unchecked(self, target: str, error: str) -> None:
        self.unchecked.append(error)


@contextmanager
def owned_by(owner: Owner | None) -> Iterator[None]:
    """What this thread opens in the block is the owner's."""
    token = set_owner(owner)
    try:
        yield
    finally:
        reset_owner(token)


def error_code(call: Callable[[], Any]) -> str:
    try:
        call()
    except (psycopg2.Error, psycopg.Error) as error:
        return str(getattr(error, "pgcode", None) or getattr(error, "sqlstate", None) or error)
    return ""


def cancel(dsn: str, owner: OwningAttempt) -> None:
    """Cancel the statement that the owner's session executes."""
    eventually(lambda: query_rows(dsn, SLEEPING, owner.name))
    assert owner.connections.cancel() == 1
