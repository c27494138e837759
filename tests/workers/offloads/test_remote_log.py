"""The log of remote work is read by positions that any database can keep."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.pipelines.offload import OffloadFailed
from dataloader.workers.offloads.remote_log import read_log


class OneLine:
    """An executor of another package: each poll has one line more."""

    def __init__(self, position: str) -> None:
        self.position, self.asked = position, 0

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        self.asked += 1
        return ["a line"], self.position


@pytest.mark.parametrize("position", ["é", "a\nb", "a\0b", "x" * 1_001])
def test_log_with_a_position_that_cannot_be_kept_ends(position: str):
    engine: Any = OneLine(position)

    lines, after = read_log(engine, "dl-x-1", "")

    assert lines[0] == "a line"
    assert "is not read any further" in lines[1]
    assert read_log(engine, "dl-x-1", after) == ([], after)
    assert after.isascii()
    assert engine.asked == 1


def test_position_of_an_engine_is_passed_on():
    engine: Any = OneLine("2030-01-31T00:00:00Z 7")

    assert read_log(engine, "dl-x-1", "") == (["a line"], "2030-01-31T00:00:00Z 7")


class Unreadable:
    """Its engine answers, but not with this log."""

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        raise OffloadFailed("it has more than 32 MB")


def test_log_that_the_engine_cannot_send_ends():
    engine: Any = Unreadable()

    (line,), after = read_log(engine, "dl-x-1", "7")

    assert line == "… this log is not read any further: it has more than 32 MB …"
    assert read_log(engine, "dl-x-1", after) == ([], after)
