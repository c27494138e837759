"""What a request for a job may hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from dataloader.app.http.jobs.trigger_request import trigger_request_model
from dataloader.app.http.options import WebOptions
from dataloader.app.http.schemas import field_errors
from dataloader.app.queue.job import NewJob
from dataloader.pipelines.contract import Pipelines

OPTIONS = WebOptions(version="1", default_lease_ttl_sec=45, heartbeat_sec=7)
MODEL = trigger_request_model(OPTIONS, Pipelines())
NEEDED = {"queue": "etl", "task": "noop", "lock_key": "k"}


def faults(**fields: Any) -> dict[str, str]:
    try:
        MODEL.model_validate({**NEEDED, **fields})
    except ValidationError as error:
        return {fault.field: fault.message for fault in field_errors(error)}
    return {}


def test_missing_fields_have_the_documented_defaults():
    job = MODEL.model_validate(NEEDED).to_new_job()

    assert job == NewJob(queue="etl", task="noop", lock_key="k", lease_ttl_sec=45)


def test_everything_given_reaches_the_queue():
    job = MODEL.model_validate(
        {
            "queue": "q",
            "task": "t",
            "lock_key": "l",
            "args": {"a": [1]},
            "idempotency_key": "i",
            "partition_key": "p",
            "priority": 0,
            "available_at": "2030-01-31T08:00:00.25+03:00",
            "max_attempts": 1,
            "lease_ttl_sec": 14,
            "producer": "me",
            "consumer_group": "you",
        }
    ).to_new_job()

    assert job == NewJob(
        queue="q",
        task="t",
        lock_key="l",
        args={"a": [1]},
        idempotency_key="i",
        partition_key="p",
        priority=0,
        available_at=datetime(2030, 1, 31, 5, 0, 0, 250_000, tzinfo=UTC),
        max_attempts=1,
        lease_ttl_sec=14,
        producer="me",
        consumer_group="you",
    )


def test_null_is_the_default_where_the_default_is_null():
    nulls = dict.fromkeys(("idempotency_key", "available_at", "producer", "consumer_group"))

    assert faults(**nulls) == {}


@pytest.mark.parametrize("field", ["queue", "task", "lock_key", "args", "partition_key", "priority", "max_attempts"])
def test_null_is_refused_elsewhere(field):
    assert list(faults(**{field: None})) == [field]


@pytest.mark.parametrize("field", ["queue", "task", "lock_key", "idempotency_key"])
@pytest.mark.parametrize("value", ["", " ", "\t", "x\n", "\x01x", "x\x7f", "\x85x", "x" * 1001, 7, True, ["x"]])
def test_a_name_is_a_text_that_is_not_empty(field, value):
    assert list(faults(**{field: value})) == [field]


@pytest.mark.parametrize("value", ["x", " x ", "a\tb", "Очередь", "😀" * 500, "x" * 1000])
def test_a_name_may_be_any_other_text(value):
    assert faults(queue=value, task=value, lock_key=value, idempotency_key=value) == {}


def test_text_too_long_for_an_index_is_rejected_by_bytes():
    with pytest.raises(ValidationError) as refused:
        MODEL.model_validate({**NEEDED, "lock_key": "😀" * 501, "partition_key": "😀" * 501})

    assert {fault.field for fault in field_errors(refused.value)} == {"lock_key", "partition_key"}
    assert "2004 bytes" in field_errors(refused.value)[0].message


@pytest.mark.parametrize("field", ["partition_key", "producer", "consumer_group"])
def test_other_texts_may_be_empty_but_not_too_long(field):
    assert faults(**{field: ""}) == {}
    assert list(faults(**{field: "x" * 1001})) == [field]


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("priority", -1),
        ("max_attempts", 0),
        ("lease_ttl_sec", 0),
        ("lease_ttl_sec", -5),
        *((field, bad) for field in ("priority", "max_attempts", "lease_ttl_sec") for bad in (2**31, 1.0, "1", True)),
        ("priority", 10**300),
    ],
)
def test_a_number_is_a_whole_one_that_the_column_holds(field, bad):
    assert list(faults(**{field: bad})) == [field]


@pytest.mark.parametrize("field", ["priority", "max_attempts", "lease_ttl_sec"])
def test_the_largest_number_of_the_column_is_taken(field):
    assert faults(**{field: 2**31 - 1}) == {}


def test_lease_shorter_than_two_heartbeats_is_rejected():
    assert faults(lease_ttl_sec=14) == {}
    assert faults(lease_ttl_sec=13) == {
        "lease_ttl_sec": "a lease of 13 s is shorter than two heartbeats; the minimum is 14 s"
    }


@pytest.mark.parametrize(
    "bad",
    [
        "2030-01-31T08:00:00",
        "2030-01-31",
        "08:00:00Z",
        "2030-02-30T08:00:00Z",
        "2030-01-31T24:00:00Z",
        "2030-12-31T23:59:60Z",
        "2030-01-31T08:00Z",
        "2030-01-31T08:00:00+3",
        "2030-01-31T08:00:00+0300",
        "2030-W05-4T08:00:00Z",
        "20300131T080000Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "0001-12-31T23:59:59Z",
        "9999-12-31T23:59:59-12:00",
        "9999-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "-0044-03-15T12:00:00Z",
        "٢٠٣٠-01-31T08:00:00Z",
        "infinity",
        "now",
        "",
        "2030-01-31T08:00:00Z\n",
        0,
        1893456000,
        True,
        ["2030-01-31T08:00:00Z"],
    ],
)
def test_a_time_is_rfc_3339_with_a_zone(bad):
    assert list(faults(available_at=bad)) == ["available_at"]


@pytest.mark.parametrize(
    ("result", "meant"),
    [
        ("2030-01-31T08:00:00Z", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31t08:00:00z", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31 08:00:00+23:59", datetime(2030, 1, 30, 8, 1, tzinfo=UTC)),
        ("2030-01-31T08:00:00.123456789-00:00", datetime(2030, 1, 31, 8, 0, 0, 123456, tzinfo=UTC)),
        ("0002-01-01T00:00:00Z", datetime(2, 1, 1, tzinfo=UTC)),
        ("9998-12-31T23:59:59Z", datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_time_with_offset_is_converted_to_utc(result, meant):
    assert MODEL.model_validate({**NEEDED, "available_at": result}).to_new_job().available_at == meant


def test_an_unknown_field_is_refused_by_its_name():
    assert faults(queu="x") == {"queu": "is no field of this request; leave it out"}


@pytest.mark.parametrize("bad", [[], "{}", 1, [["a", 1]]])
def test_args_are_an_object(bad):
    assert list(faults(args=bad)) == ["args"]


def test_a_fault_never_repeats_the_callers_value():
    result = faults(queue=["s3cret"], priority="s3cret", available_at="s3cret", lock_key="s3cret" * 200)

    assert set(result) == {"queue", "priority", "available_at", "lock_key"}
    assert "s3cret" not in str(result)
