"""The helpers that all benchmarks share."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.rounds import format_ratio, format_table, make_parser, quantile, run_rounds


def test_sides_take_turns_and_warm_up_is_dropped():
    order: list[str] = []

    def one(name: str) -> int:
        order.append(name)
        return len(order)

    results = run_rounds({name: partial(one, name) for name in ("a", "b")}, 2, warm_up=1)

    assert order == ["a", "b"] * 3
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_table_is_markdown_with_aligned_columns():
    output = format_table(
        ["what", "a second", "note"], [("x", 12_345.6, "good"), ("longer", None, "so so")], text_columns=(0, 2)
    )

    assert output.splitlines() == [
        "| what   | a second | note  |",
        "| ------ | -------: | ----- |",
        "| x      |   12,346 | good  |",
        "| longer |        – | so so |",
    ]


def test_numbers_have_three_significant_digits():
    rows = format_table(["x", "y"], [("a", 1234.5), ("b", 12.34), ("c", 1.234), ("d", 7)]).splitlines()[2:]

    assert [row.split("|")[2].strip() for row in rows] == ["1,234", "12.3", "1.23", "7"]
    assert (format_ratio(0.5), format_ratio(12.3), format_ratio(1234.0)) == ("0.50 ×", "12 ×", "1,234 ×")


def test_a_single_sample_is_its_own_quantile():
    assert quantile([3.0], 99) == 3.0
    assert quantile([1.0, 2.0, 3.0], 50) == 2.0


def test_zero_rounds_are_refused(capsys):
    with pytest.raises(SystemExit):
        make_parser("benchmarks.rounds", rounds=3).parse_args(["--rounds", "0"])

    assert "the minimum is 1" in capsys.readouterr().err
