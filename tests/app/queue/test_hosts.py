"""Several hosts in a DSN: whoever connects goes on to the next, also from one that takes connections and hangs up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg2
import pytest

from app.errors import DatabaseUnavailable
from app.queue import schema
from app.queue.attempt_sessions import Places
from app.queue.effects import Effects
from app.queue.pool import Pool
from app.queue.session import Session
from tests.support.proxy import HangingUp


@pytest.fixture
def first() -> Iterator[HangingUp]:
    with HangingUp() as listener:
        yield listener


def by_session(dsn: str) -> None:
    session = Session(dsn, name="test")
    session.ask("ping")
    session.close()


def by_pool(dsn: str) -> None:
    pool = Pool(dsn)
    pool.ask("ping")
    pool.close()


def by_effects_at_home(dsn: str) -> None:
    effects = Effects(Places(dsn=dsn, schema="public", targets={}), uuid4(), uuid4())
    assert effects._home().info.dbname
    effects.close()


def by_effects_elsewhere(dsn: str) -> None:
    effects = Effects(Places(dsn="", schema="public", targets={"there": dsn}), uuid4(), uuid4())
    with effects.connect("there").cursor() as cursor:
        cursor.execute("SELECT 1")
    effects.close()


WAYS = [by_session, by_pool, schema.check, schema.migrate, by_effects_at_home, by_effects_elsewhere]


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_from_a_host_that_hangs_up(way: Callable[[str], object], first: HangingUp, desk):
    way(first.before(desk.dsn))

    assert first.taken > 0


@pytest.mark.parametrize("way", WAYS)
def test_with_no_other_host_it_is_told_as_what_it_is(way: Callable[[str], object], first: HangingUp):
    with pytest.raises((DatabaseUnavailable, psycopg2.OperationalError)):
        way(f"host=127.0.0.1 port={first.port} dbname=x user=x")
