"""Values of ours, and of other services, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from dataloader.app.http.json_io import dump_json


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


@pytest.mark.parametrize("path", ["/health", "/info", "/openapi.json", "/api/v1/queues", "/api/v1/nothing", "/palette"])
def test_body_ends_with_a_line_feed(client, path):
    response = client.get(path)

    assert response.text.endswith("}\n")
    assert response.content_length == len(response.data)
    json.loads(response.text)


def test_body_with_an_etag_ends_with_a_line_feed(client, trigger):
    path = f"/api/v1/jobs/{trigger()}"
    first = client.get(path)

    assert (first.text.endswith("}\n"), first.content_length) == (True, len(first.data))
    assert client.get(path, headers={"If-None-Match": first.headers["ETag"]}).status_code == 304


def test_unknown_type_raises():
    with pytest.raises(TypeError, match="is not JSON serializable"):
        dump_json(object())
