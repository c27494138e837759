"""A plant for each test of the workers: see tests/support/plant.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.support.plant import Plant


@pytest.fixture
def plant(dsn: str) -> Iterator[Plant]:
    """Pools to be started on an empty queue. When the test is over the journal must tell what the rows tell."""
    made = Plant(dsn)
    try:
        yield made
        made.gate.open()
        for pool in made.pools:
            pool.stop(grace=10)
        assert made.died == []
        made.desk.check()
    finally:
        made.close()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, object]]]:
    """What was logged as this event: the fields of each time."""
    caplog.set_level(logging.DEBUG)

    def fields(event: str) -> list[dict[str, object]]:
        return [record.__dict__["fields"] for record in list(caplog.records) if record.getMessage() == event]

    return fields
