"""A database for loads, and a context that can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import connection

from dataloader.pipelines.contract import Stop, StopReason
from tests.support.site import Site, serving


@dataclass
class FakeContext:
    """A context for tests: counts what it is asked, and stops at the check that was chosen."""

    stop_at: int | None = None
    on_sleep: Callable[[], None] | None = None
    checks: int = 0
    sleeps: list[float] = field(default_factory=list)

    def check(self) -> None:
        self.checks += 1
        if self.stop_at is not None and self.checks >= self.stop_at:
            raise Stop(StopReason.CANCEL)

    def sleep(self, seconds: float) -> None:
        """Does not wait: a test that needs the time to pass says so otherwise."""
        self.sleeps.append(seconds)
        if self.on_sleep is not None:
            self.on_sleep()
        self.check()


@pytest.fixture
def fake_context() -> type[FakeContext]:
    return FakeContext


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as made:
        yield made


@dataclass
class Database:
    dsn: str
    conn: connection

    def run(self, statement: str, *values: Any) -> None:
        with self.conn.cursor() as cur:
            cur.execute(statement, values or None)
        self.conn.commit()

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.conn.cursor() as cur:
            cur.execute(statement, values or None)
            return cur.fetchall()

    def value(self, statement: str, *values: Any) -> Any:
        return self.rows(statement, *values)[0][0]


@pytest.fixture
def db(empty_dsn: str) -> Iterator[Database]:
    conn = psycopg2.connect(empty_dsn)
    yield Database(empty_dsn, conn)
    conn.close()


@pytest.fixture
def another(empty_dsn: str) -> Iterator[Database]:
    """Someone else in the same database."""
    conn = psycopg2.connect(empty_dsn)
    conn.autocommit = True
    yield Database(empty_dsn, conn)
    conn.close()
