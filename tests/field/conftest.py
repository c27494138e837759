"""The fixtures of the field matrix: what all places share, and the table of what was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.field.ground import Ground

pytest.register_assert_rewrite("tests.field.first_hour")  # before a test imports it


@pytest.fixture(scope="session")
def ground(run_folder: Path) -> Iterator[Ground]:
    made = Ground(run_folder)
    yield made
    made.close()
