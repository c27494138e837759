"""Several hosts in a DSN: a connection is tried with the next, also from one that takes connections and hangs up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.db import schema
from dataloader.app.db.connection import Session
from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.workers.connections.task_connections import TaskConnections
from tests.support.proxy import HangUpServer


@pytest.fixture
def first() -> Iterator[HangUpServer]:
    with HangUpServer() as listener:
        yield listener


def by_session(dsn: str) -> None:
    session = Session(dsn, application_name="test")
    session.execute("ping")
    session.close()


def by_pool(dsn: str) -> None:
    pool = Pool(dsn)
    pool.execute("ping")
    pool.close()


def by_effects_at_home(dsn: str) -> None:
    effects = TaskConnections(ConnectionSettings(dsn=dsn, schema="public", targets={}), uuid4(), uuid4())
    assert effects._open_queue_connection().info.dbname
    effects.close()


def by_effects_elsewhere(dsn: str) -> None:
    effects = TaskConnections(ConnectionSettings(dsn="", schema="public", targets={"there": dsn}), uuid4(), uuid4())
    with effects.connect("there").cursor() as cursor:
        cursor.execute("SELECT 1")
    effects.close()


WAYS = [by_session, by_pool, schema.check, schema.migrate, by_effects_at_home, by_effects_elsewhere]


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_from_a_host_that_hangs_up(way: Callable[[str], object], first: HangUpServer, queue_db):
    way(first.dsn_before(queue_db.dsn))

    assert first.accepted_count > 0


@pytest.mark.parametrize("way", WAYS)
def test_error_of_only_host_is_unchanged(way: Callable[[str], object], first: HangUpServer):
    with pytest.raises((DatabaseUnavailable, psycopg2.OperationalError)):
        way(f"host=127.0.0.1 port={first.port} dbname=x user=x")
