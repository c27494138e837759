"""Differences between the services of DL_CELLS."""

from __future__ import annotations

from typing import Any

import pytest

from app.doctor.cells import CellFacts, UnavailableCell, check_cells
from app.doctor.findings import Severity


def cell(name: str, **changes: Any) -> CellFacts:
    facts = {"version": "1.0", "schema_version": 8, "cells": ("a", "b"), "clock_ahead_sec": 0.1}
    return CellFacts(name=name, url=f"http://{name}", **{**facts, **changes})


def problems_of(*cells: CellFacts | UnavailableCell) -> list[tuple[str, Severity, str]]:
    return [(f.check, f.severity, f.message) for f in check_cells(cells) if f.severity is not Severity.OK]


def test_cells_that_agree_have_passed_checks_only():
    findings = check_cells([cell("a"), cell("b", clock_ahead_sec=-0.4)])

    assert {finding.severity for finding in findings} == {Severity.OK}
    assert [finding.check for finding in findings] == [
        "cell_available", "cell_available", "cell_maps", "cell_versions", "cell_schema_versions", "cell_clocks",
    ]  # fmt: skip
    assert findings[-1].facts == {"ahead_sec": {"a": 0.1, "b": -0.4}}


@pytest.mark.parametrize(
    ("changes", "check", "message"),
    [
        ({"cells": ("a", "c")}, "cell_maps", "2 maps: a, b in this configuration, a; a, c in b"),
        ({"version": "1.1"}, "cell_versions", "2 versions: 1.0 in a; 1.1 in b"),
        ({"schema_version": 9}, "cell_schema_versions", "2 schema versions: 8 in a; 9 in b"),
        ({"clock_ahead_sec": -3.0}, "cell_clocks", "the clock of a is 3.10 s ahead of that of b"),
    ],
)
def test_difference_between_two_cells_is_a_warning(changes, check, message):
    assert problems_of(cell("a"), cell("b", **changes)) == [(check, Severity.WARNING, message)]


def test_names_in_another_order_are_the_same_map():
    assert problems_of(cell("a"), cell("b", cells=("b", "a"))) == []


def test_clock_that_is_half_a_minute_off_is_an_error():
    ((check, severity, _message),) = problems_of(cell("a"), cell("b", clock_ahead_sec=31.0))

    assert (check, severity) == ("cell_clocks", Severity.ERROR)


def test_cell_without_a_map_of_its_own_is_a_note():
    ((check, severity, message),) = problems_of(cell("a"), cell("b", cells=()))

    assert (check, severity) == ("cell_maps", Severity.INFO)
    assert "no DL_CELLS in b" in message


def test_unavailable_cell_is_an_error_with_its_reason():
    problems = problems_of(cell("a"), UnavailableCell("b", "http://b", "cannot connect"))

    assert problems == [("cell_available", Severity.ERROR, "cell b at http://b is unavailable: cannot connect")]


def test_no_answer_at_all_finds_nothing_else():
    away = [UnavailableCell(name, f"http://{name}", "away") for name in "ab"]

    assert [check for check, _, _ in problems_of(*away)] == ["cell_available", "cell_available"]


def test_configuration_without_cells_is_an_error():
    assert [(check, severity) for check, severity, _ in problems_of()] == [("cells", Severity.ERROR)]
