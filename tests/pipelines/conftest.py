"""A pipeline's surroundings: a source, a database, and where both are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import psycopg2.extras
import pytest

from dataloader.pipelines import targets
from dataloader.pipelines.contract import Pipelines
from tests.support_sources import SourceServer

ENDPOINTS = ("cbr", "tenera", "gmap2brief", "llm", "documents")


@pytest.fixture
def source() -> Iterator[SourceServer]:
    server = SourceServer()
    yield server
    server.close()


@pytest.fixture
def places(source: SourceServer, empty_dsn: str) -> Iterator[None]:
    """All endpoints are the one source, all targets the one database."""
    targets.configure(dict.fromkeys(ENDPOINTS, source.url), {"default": empty_dsn}, {"llm": "t0ken", "tenera": "10"})
    yield
    targets.configure({}, {})


@pytest.fixture
def rows(empty_dsn: str, places: None):
    """Ask the target: `rows("SELECT …")` gives dictionaries."""
    with closing(psycopg2.connect(empty_dsn, cursor_factory=psycopg2.extras.RealDictCursor)) as conn:
        conn.autocommit = True

        def ask(statement: str, *values: object) -> list[dict[str, object]]:
            with conn.cursor() as cur:
                cur.execute(statement, values or None)
                return [dict(row) for row in cur.fetchall()] if cur.description else []

        yield ask


@pytest.fixture
def known() -> Pipelines:
    """No task yet."""
    return Pipelines()
