"""Values that pipelines report, as JSON that PostgreSQL can store."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest

from dataloader.pipelines.json_values import sanitize_json
from dataloader.workers.reports.secrets import Redactor
from tests.support.processes import ROOT


def stored(value: object, max_bytes: int = 1_000_000) -> object:
    return json.loads(sanitize_json(value, max_bytes))


NUMPY_VALUES = [
    (np.int64(7), 7),
    (np.uint8(255), 255),
    (np.bool_(True), True),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.array([1, 2]), [1, 2]),
    (np.array([[1.5], [2.5]]), [[1.5], [2.5]]),
    (np.array([True, False]), [True, False]),
    (np.array(["a", "b"]), ["a", "b"]),
    ({"rows": np.int32(7), "sums": (np.float16(1), 2)}, {"rows": 7, "sums": [1.0, 2]}),
    ([np.array([]), {"day": np.array([np.datetime64("2030-01-02")])}], [[], {"day": ["2030-01-02"]}]),
]


@pytest.mark.parametrize(("value", "expected"), NUMPY_VALUES, ids=[repr(value) for value, _ in NUMPY_VALUES])
def test_numbers_of_numpy_are_numbers(value: object, expected: object):
    shown = stored(value)

    assert shown == expected
    assert type(shown) is type(expected)


def test_array_without_dimensions_is_its_number():
    assert stored(np.array(3)) == 3


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan"), np.array(float("nan"))])
def test_nan_is_a_text_by_whatever_type(value: object):
    assert stored(value) == "nan"
    assert stored(np.array([1.0, float("inf"), float("nan")])) == [1.0, "inf", "nan"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("0.10"), "0.10"),
        (date(2030, 1, 2), "2030-01-02"),
        (datetime(2030, 1, 2, 3, tzinfo=UTC), "2030-01-02T03:00:00+00:00"),
        (time(3, 4), "03:04:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (np.datetime64("2030-01-02T03:04"), "2030-01-02T03:04"),
        (np.complex128(1 + 2j), repr(np.complex128(1 + 2j))),
    ],
)
def test_other_values_are_texts(value: object, expected: str):
    assert stored(value) == expected


def test_array_with_too_many_values_is_named_in_its_place():
    assert stored({"rows": 7, "all": np.zeros(500_001)}) == {
        "rows": 7,
        "all": "… an array of 500001 values, more than can be stored …",
    }


def test_secret_within_an_array_is_masked():
    secrets = Redactor({"partner": "s3cret-text"})

    shown = secrets.redact_value({"names": np.array(["a"] * 2_000 + ["s3cret-text"])})

    assert "s3cret-text" not in sanitize_json(shown, 1_000_000)


def test_nothing_of_ours_imports_numpy():
    code = (
        "import sys, dataloader.app.__main__, dataloader.workers.isolation.child_main, dataloader.app.db.encoding; "
        "sys.exit('numpy' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
