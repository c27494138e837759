"""What all benchmarks share."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.rounds import in_turn, options, quantile, table, times


def test_sides_go_in_turn_and_warming_up_does_not_count():
    order: list[str] = []

    def one(name: str) -> int:
        order.append(name)
        return len(order)

    given = in_turn({name: partial(one, name) for name in ("a", "b")}, 2, warm_up=1)

    assert order == ["a", "b"] * 3
    assert given == {"a": [3, 5], "b": [4, 6]}


def test_a_table_is_markdown_with_words_left_and_figures_right():
    told = table(["what", "a second", "note"], [("x", 12_345.6, "good"), ("longer", None, "so so")], words=(0, 2))

    assert told.splitlines() == [
        "| what   | a second | note  |",
        "| ------ | -------: | ----- |",
        "| x      |   12,346 | good  |",
        "| longer |        – | so so |",
    ]


def test_figures_are_as_exact_as_they_are_worth():
    rows = table(["x", "y"], [("a", 1234.5), ("b", 12.34), ("c", 1.234), ("d", 7)]).splitlines()[2:]

    assert [row.split("|")[2].strip() for row in rows] == ["1,234", "12.3", "1.23", "7"]
    assert (times(0.5), times(12.3), times(1234.0)) == ("0.50 ×", "12 ×", "1,234 ×")


def test_a_single_sample_is_its_own_quantile():
    assert quantile([3.0], 99) == 3.0
    assert quantile([1.0, 2.0, 3.0], 50) == 2.0


def test_no_rounds_are_too_few(capsys):
    with pytest.raises(SystemExit):
        options("benchmarks.rounds", rounds=3).parse_args(["--rounds", "0"])

    assert "at least 1 is needed" in capsys.readouterr().err
