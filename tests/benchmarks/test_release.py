"""The comparison of a checkout with the last release."""

from __future__ import annotations

import pytest

from benchmarks.release.__main__ import compare, write_table


@pytest.mark.parametrize(
    ("figure", "release", "checkout", "is_met", "is_steady_cost"),
    [
        ("drain, 1 process, jobs/s", 100.0, 101.0, True, False),
        ("drain, 1 process, jobs/s", 100.0, 90.0, False, False),
        ("INSERT of one, server µs", 100.0, 90.0, True, True),
        ("drain, 1 process, client µs a job", 100.0, 130.0, False, True),
        ("idle service, commits/s", 4.0, 5.0, False, False),
        ("start to /health, ms", 500.0, 400.0, True, False),
    ],
)
def test_rates_reach_the_release_and_costs_stay_below(figure, release, checkout, is_met, is_steady_cost):
    (comparison,) = compare([({figure: release}, {figure: checkout})])

    assert (comparison.is_met, comparison.is_steady_cost) == (is_met, is_steady_cost)


def test_ratio_is_the_median_of_the_rounds():
    rounds = [({"cost": base}, {"cost": cost}) for base, cost in ((1.0, 1.0), (10.0, 30.0), (1.0, 2.0))]

    assert compare(rounds)[0].ratio == 2.0


def test_table_replaces_the_former_one(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- compared with the last release -->\n", encoding="utf-8")

    write_table(page, "first\n")
    write_table(page, "second\n")

    text = page.read_text(encoding="utf-8")
    assert "first" not in text
    assert text.startswith("above\n")
    assert text.count("second") == 1
