from datetime import UTC, datetime

import pytest

from dataloader.pipelines.opu.table import COLUMNS, TABLE, Column, FieldKind, RowDecoder, create_statements
from dataloader.pipelines.toolkit.errors import TooManyRejects
from dataloader.pipelines.toolkit.rejects import Rejects
from tests.support_sources.gmap import record


def test_the_table_has_23_columns_and_a_key_of_8():
    assert len({column.name for column in COLUMNS}) == len(COLUMNS) == 23
    assert sum(column.key for column in COLUMNS) == 8


def test_the_statements_follow_from_the_columns(rows):
    rows(create_statements())

    columns = rows(
        "SELECT attname, format_type(atttypid, atttypmod) AS kind, attnotnull FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        TABLE,
    )
    kinds = {FieldKind.TIMESTAMP: "timestamp with time zone"}
    assert columns == [
        {"attname": column.name, "kind": kinds.get(column.kind, column.kind.value), "attnotnull": column.key}
        for column in COLUMNS
    ]


def test_a_field_may_have_another_name_than_its_column():
    assert Column("unit", FieldKind.TEXT, field="Ед. изм.").source == "Ед. изм."
    assert Column("unit", FieldKind.TEXT).source == "unit"


SOME = (
    Column("id", FieldKind.INTEGER, key=True, field="ID"),
    Column("value", FieldKind.NUMBER),
    Column("day", FieldKind.DAY),
    Column("at", FieldKind.TIMESTAMP),
    Column("ok", FieldKind.BOOLEAN),
)
GOOD = {"ID": 7, "value": 1.5, "day": "2024-01-31", "at": "2024-01-31T10:00:00+03:00", "ok": True}


def read(record, columns=SOME, *, rejects=None):
    return list(RowDecoder(columns, rejects or Rejects(0)).decode([(1, record)]))


def test_a_record_is_a_row_in_the_order_of_the_columns():
    (row,) = read(GOOD)

    assert row == (7, 1.5, "2024-01-31", datetime.fromisoformat("2024-01-31T10:00:00+03:00"), True)
    assert len(read(record(12), COLUMNS)[0]) == 23


def test_what_is_not_in_the_key_may_be_null():
    assert read({"ID": 7, "value": None, "day": None, "at": None, "ok": None}) == [(7, None, None, None, None)]


def test_a_record_that_needs_no_reading_is_taken_as_it_is():
    assert read({"value": 1, "ok": None}, (Column("value", FieldKind.NUMBER), Column("ok", FieldKind.BOOLEAN))) == [
        (1, None)
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2024-01-31T07:00:00Z", datetime(2024, 1, 31, 7, tzinfo=UTC)),
        ("2024-01-31T10:00:00", datetime(2024, 1, 31, 7, tzinfo=UTC)),  # Moscow's
        ("1706684400", datetime(2024, 1, 31, 7, tzinfo=UTC)),
        (1706684400, datetime(2024, 1, 31, 7, tzinfo=UTC)),
        (1706684400000.0, datetime(2024, 1, 31, 7, tzinfo=UTC)),
    ],
)
def test_moments_come_in_several_forms(written, meant):
    assert read({**GOOD, "at": written})[0][3] == meant


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"ID": None}, "'ID' is null; expected int"),
        ({"ID": 1.0}, "'ID' is a float"),
        ({"ID": True}, "'ID' is a bool"),
        ({"ID": 2**63}, "'ID': has more digits"),
        ({"value": "1,5"}, "'value' is a str; expected int or float"),
        ({"day": "31.01.2024"}, "'day': '31.01.2024' is no date"),
        ({"day": "2024-W05-1"}, "'day': '2024-W05-1' is no date"),
        ({"day": "20240131"}, "'day': '20240131' is no date"),
        ({"day": "2024-02-30"}, "'day': '2024-02-30' is no date"),
        ({"at": "yesterday"}, "'at': 'yesterday' is no time"),
        ({"at": 9e99}, "'at'"),
        ({"ok": "yes"}, "'ok' is a str"),
        ({"ok": {"deep": []}}, "'ok' is a dict"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_line(other, reason):
    rejects = Rejects(9)

    rows = list(RowDecoder(SOME, rejects).decode([(4, {**GOOD, **other}), (5, GOOD)]))

    assert len(rows) == 1
    assert rejects.first[0].place == "line 4"
    assert reason in rejects.first[0].reason


def test_a_missing_field_is_named():
    rejects = Rejects(1)

    read({"ID": 1, "value": 2}, rejects=rejects)

    assert rejects.first[0].reason == "field 'day' is missing; an empty one is null"


def test_more_bad_records_than_allowed_end_the_reading():
    with pytest.raises(TooManyRejects, match="line 1: field 'ok'"):
        read({**GOOD, "ok": 1})


def test_undeclared_fields_are_reported():
    rows = RowDecoder(SOME, Rejects(0))

    list(rows.decode([(1, {**GOOD, "new": 1, "also": 2}), (2, {**GOOD, "late": 1})]))

    assert rows.unknown_fields == ("also", "new")
