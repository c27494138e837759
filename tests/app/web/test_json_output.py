"""Values of ours, and of other services, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from app.web.json_io import dump_json


@dataclass(frozen=True)
class Answer:
    first: object
    second: object = None


def test_values_keep_their_order_and_nest():
    result = dump_json(Answer(UUID(int=7), [Answer(1)]))

    assert result == ('{"first": "00000000-0000-0000-0000-000000000007", "second": [{"first": 1, "second": null}]}')


def test_times_are_encoded_in_utc():
    old_moscow = timezone(timedelta(hours=2, minutes=30, seconds=17))

    assert dump_json(datetime(1900, 1, 1, 2, 30, 17, tzinfo=old_moscow)) == '"1900-01-01T00:00:00Z"'
    assert dump_json(datetime(2030, 1, 1, 0, 0, 0, 120, tzinfo=UTC)) == '"2030-01-01T00:00:00.000120Z"'


def test_non_finite_numbers_are_encoded_as_strings():
    result = json.loads(dump_json(Answer({"a": [float("inf"), 1.5]}, float("-inf"))))

    assert result == {"first": {"a": ["inf", 1.5]}, "second": "-inf"}


def test_unknown_type_raises():
    with pytest.raises(TypeError, match="is not JSON serializable"):
        dump_json(object())
