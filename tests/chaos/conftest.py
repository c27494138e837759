"""A history that tests write line by line."""

from __future__ import annotations

import pytest

from tests.chaos.history_builder import HistoryBuilder


@pytest.fixture
def tale() -> HistoryBuilder:
    return HistoryBuilder()
