"""A desk for each test of the queue: see tests/support/desk.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.desk import Desk


@pytest.fixture
def desk(dsn: str) -> Iterator[Desk]:
    made = Desk(dsn)
    yield made
    made.close()
