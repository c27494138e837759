"""Values of ours, and of other services, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from app.web.answers import json_text


@dataclass(frozen=True)
class Answer:
    first: object
    second: object = None


def test_values_keep_their_order_and_nest():
    told = json_text(Answer(UUID(int=7), [Answer(1)]))

    assert told == ('{"first": "00000000-0000-0000-0000-000000000007", "second": [{"first": 1, "second": null}]}')


def test_times_are_told_in_utc_whatever_offset_they_came_with():
    old_moscow = timezone(timedelta(hours=2, minutes=30, seconds=17))

    assert json_text(datetime(1900, 1, 1, 2, 30, 17, tzinfo=old_moscow)) == '"1900-01-01T00:00:00Z"'
    assert json_text(datetime(2030, 1, 1, 0, 0, 0, 120, tzinfo=UTC)) == '"2030-01-01T00:00:00.000120Z"'


def test_numbers_that_json_has_no_word_for_are_told_as_texts():
    told = json.loads(json_text(Answer({"a": [float("inf"), 1.5]}, float("-inf"))))

    assert told == {"first": {"a": ["inf", 1.5]}, "second": "-inf"}


def test_what_has_no_form_is_a_bug_and_loud():
    with pytest.raises(TypeError, match="object has no form in JSON"):
        json_text(object())
