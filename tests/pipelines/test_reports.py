"""Data checks, datasets and links: their arguments, and what FakeContext records."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dataloader.pipelines.contract import Fail
from dataloader.pipelines.reports import Check, DatasetUse, parse_check, parse_dataset, parse_link
from dataloader.pipelines.testing import FakeContext


@pytest.mark.parametrize(
    ("value", "limits", "outcome"),
    [
        (5, {}, "passed"),
        (5, {"low": 5, "high": 5}, "passed"),
        (4.9, {"low": 5}, "failed"),
        (5.1, {"high": 5}, "failed"),
        (0, {"low": 1, "severity": "warn"}, "warned"),
        (Decimal("7.5"), {"high": 7}, "failed"),
        (True, {"low": 1}, "passed"),
    ],
)
def test_check_compares_with_its_limits(value, limits, outcome):
    assert parse_check("rows", value, **limits).evaluate([]).outcome == outcome


def test_median_limits_the_value_to_both_sides():
    request = parse_check("rows", 60, vs="median:7", tolerance=0.3)

    assert request.evaluate([100, 90, 110]) == Check(
        "rows", 60, "failed", 70, 130, 100,
        "60 is outside its limits: low 70, high 130, median of the last 3 100, tolerance 0.3",
    )  # fmt: skip
    assert parse_check("rows", 130, vs="median:7", tolerance=0.3).evaluate([100, 90, 110]).outcome == "passed"
    assert parse_check("rows", -130, vs="median:7", tolerance=0.3).evaluate([-100] * 3).outcome == "passed"


def test_narrower_of_limit_and_median_counts():
    request = parse_check("rows", 100, low=80, high=500, vs="median:3", tolerance=0.5)
    check = request.evaluate([100] * 3)

    assert (check.low, check.high) == (80, 150)


def test_too_little_history_passes_and_says_so():
    check = parse_check("rows", 1, vs="median:7", tolerance=0.3).evaluate([1000, 1000])

    assert check == Check("rows", 1, "passed", detail="too little history for a median: 2 of at least 3 values")
    assert parse_check("rows", 1, vs="median:1", tolerance=0).evaluate([1000]).outcome == "failed"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": "n" * 10_000}, "name has 10000 bytes in UTF-8, and may have 200"),
        ({"name": " "}, "name must be a text"),
        ({"name": "a\nb"}, "name must be a text"),
        ({"name": None}, "name must be a text"),
        ({"value": None}, "value must be a number, not None"),
        ({"value": "12"}, "value must be a number, not '12'"),
        ({"value": float("nan")}, "value must be a finite number, not nan"),
        ({"value": Decimal("sNaN")}, "value must be a finite number, not sNaN"),
        ({"value": 10**400}, "value must be a finite number"),
        ({"low": float("-inf")}, "min must be a finite number, not -inf"),
        ({"high": "9"}, "max must be a number"),
        ({"low": 2, "high": 1}, "min is 2, above max"),
        ({"vs": "mean:7", "tolerance": 0.1}, "vs must be 'median:N'"),
        ({"vs": "median:0", "tolerance": 0.1}, "vs must be 'median:N'"),
        ({"vs": "median:366", "tolerance": 0.1}, "vs must be 'median:N'"),
        ({"vs": "median:7"}, "vs and tolerance go together"),
        ({"tolerance": 0.3}, "vs and tolerance go together"),
        ({"vs": "median:7", "tolerance": -1}, "tolerance must not be negative"),
        ({"severity": "error"}, "severity must be 'fail' or 'warn', not 'error'"),
    ],
)
def test_bad_argument_of_check_is_named(arguments, problem):
    arguments = {"name": "rows", "value": 1} | arguments

    with pytest.raises(ValueError, match=problem):
        parse_check(arguments.pop("name"), arguments.pop("value"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"dataset": ""}, "dataset must be a text"),
        ({"dataset": "d" * 501}, "dataset has 501 bytes in UTF-8, and may have 500"),
        ({"dataset": "ü" * 251}, "dataset has 502 bytes"),
        ({"rows": -1}, "rows must be from 0"),
        ({"rows": 1.5}, "rows must be a whole number, not 1.5"),
        ({"rows": True}, "rows must be a whole number"),
        ({"rows": 2**63}, "rows must be from 0"),
        ({"partition": "p" * 1_001}, "partition has 1001 bytes"),
    ],
)
def test_bad_argument_of_dataset_is_named(arguments, problem):
    arguments = {"dataset": "warehouse.sales"} | arguments

    with pytest.raises(ValueError, match=problem):
        parse_dataset("produced", arguments.pop("dataset"), **arguments)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "//host/x", "ftp://host/x", "http://",
        "report", "https://host/a b", 'https://host/"onclick="x', "https://host/\nx", "http://[::1", "", None, 5,
        "https://h/" + "a" * 2_000,
    ],
)  # fmt: skip
def test_link_that_is_no_web_address_is_refused(url):
    with pytest.raises(ValueError, match=r"^url "):
        parse_link("report", url)


def test_link_of_a_web_address_is_accepted():
    assert parse_link("report", "HTTPS://host:8443/a?b=c#d") == ("report", "HTTPS://host:8443/a?b=c#d")
    with pytest.raises(ValueError, match=r"^name has"):
        parse_link("n" * 201, "https://host")


def test_fake_context_records_checks_and_compares_with_history():
    ctx = FakeContext(check_history={"rows": [100, 100, 100]})
    ctx.check()
    ctx.check("rows", 120, vs="median:7", tolerance=0.3)
    ctx.check("refused", 3, max=0, severity="warn")
    with pytest.raises(Fail, match="'rows' failed: 0 is outside its limits: low 70, high 130, median"):
        ctx.check("rows", 0, vs="median:7", tolerance=0.3)

    assert [(check.name, check.outcome) for check in ctx.checks] == [
        ("rows", "passed"), ("refused", "warned"), ("rows", "failed"),
    ]  # fmt: skip
    assert ctx.safe_points == 4


def test_fake_context_records_datasets_and_links():
    ctx = FakeContext()
    ctx.produced("warehouse.sales", rows=7, partition="2030-01-31", schema={"id": "int"})
    ctx.consumed("s3://raw/orders")
    ctx.link("report", "https://host/x")

    assert ctx.datasets == [
        DatasetUse("produced", "warehouse.sales", "2030-01-31", 7, {"id": "int"}),
        DatasetUse("consumed", "s3://raw/orders"),
    ]
    assert ctx.links == {"report": "https://host/x"}
