"""Objects made of rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.db.encoding import decode_json, from_row

ID = UUID(int=7)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int

    @classmethod
    def from_json(cls, text: str) -> Point:
        return cls(decode_json(text)["x"])


@dataclass(frozen=True)
class Base:
    id: UUID
    colour: Colour | None


@dataclass(frozen=True)
class Row(Base):
    digest: bytes
    names: tuple[str, ...]
    colours: frozenset[Colour]
    points: list[Point] | None
    progress: dict[str, Any]
    result: Any
    total: int = 0


@pytest.mark.parametrize("row_id", [str(ID), ID])
def test_values_get_the_types_of_their_fields(row_id):
    row = (row_id, "red", memoryview(b"d"), ["a"], ["red"], ['{"x": 1}'], "{}", "[2]")

    assert from_row(Row, row, total=3) == Row(
        ID, Colour.RED, b"d", ("a",), frozenset({Colour.RED}), [Point(1)], {}, [2], 3
    )


def test_null_stays_none():
    row = from_row(Row, (ID, None, b"", [], [], None, "{}", None), total=0)

    assert (row.colour, row.points, row.result) == (None, None, None)


def test_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="longer|shorter"):
        from_row(Base, (ID,))
