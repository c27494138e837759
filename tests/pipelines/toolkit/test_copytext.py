import ipaddress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg2.extensions import register_adapter
from psycopg2.extras import Json, UUID_adapter

from dataloader.pipelines.toolkit.copytext import Column, CopyEncoder
from dataloader.pipelines.toolkit.errors import TooManyRejects, UnsuitableValue
from dataloader.pipelines.toolkit.load import copy_rows
from dataloader.pipelines.toolkit.rejects import Rejects

register_adapter(UUID, UUID_adapter)  # for writing; how uuids are read is left as it is, for all the other tests

KINDS = {
    "a_text": "text",
    "a_bool": "boolean",
    "an_int": "bigint",
    "a_float": "double precision",
    "a_number": "numeric",
    "a_moment": "timestamptz",
    "a_wall_time": "timestamp",
    "a_date": "date",
    "a_time": "time",
    "a_uuid": "uuid",
    "some_bytes": "bytea",
    "a_pause": "interval",
    "some_json": "jsonb",
    "some_texts": "text[]",
    "some_numbers": "bigint[]",
}
storable = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
awkward = st.sampled_from(["", "\\", "\\.", "\\N", "\t", "\n", "\r\n", "\\\\\n", "NULL", "{}", "'", '"', "\x7f\b\f\v"])
texts = storable | awkward | st.lists(awkward | storable, max_size=4).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e15, 1e15) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
finite = st.decimals(allow_nan=True, allow_infinity=False, min_value=-(10**20), max_value=10**20)
a_row = st.tuples(
    *[
        st.none() | kind
        for kind in (
            texts,
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            finite,
            st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=offsets),  # noqa: DTZ001
            st.datetimes(),
            st.dates(),
            st.times(),
            st.uuids(),
            st.binary(max_size=20),
            st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
            st.dictionaries(texts, json_values, max_size=3) | st.lists(json_values, max_size=3),
            st.lists(st.none() | texts, max_size=3),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        )
    ]
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(a_row, min_size=1, max_size=6))
def test_copy_stores_what_a_plain_insert_would(db, rows):
    columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    marks = ", ".join(["%s"] * len(KINDS))
    with db.conn.cursor() as cur:
        cur.execute("ROLLBACK; BEGIN")  # an example before this one may have failed
        for table in ("copied", "inserted"):
            cur.execute(f"CREATE TEMP TABLE {table} (n serial, {columns}) ON COMMIT DROP")
        copy_rows(db.conn, "copied", list(KINDS), rows)
        for row in rows:
            values = [Json(v) if k == "some_json" and v is not None else v for k, v in zip(KINDS, row, strict=True)]
            cur.execute(f"INSERT INTO inserted ({', '.join(KINDS)}) VALUES ({marks})", values)
        cur.execute("SELECT count(*) FROM copied JOIN inserted USING (n) WHERE copied IS DISTINCT FROM inserted")
        (different,) = cur.fetchone()
        cur.execute("SELECT count(*) FROM copied")
        (copied,) = cur.fetchone()

    assert different == 0
    assert copied == len(rows)


class Pair(NamedTuple):
    a: int
    b: int


class Colour(StrEnum):
    RED = "red\t"


class Level(IntEnum):
    LOW = 1


class Shouted(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not me"


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        (Colour.RED, "text", r"red\t"),
        (Level.LOW, "int4", "1"),
        (Shouted("me"), "text", "me"),
        (Decimal("sNaN"), "numeric", "NaN"),
        (Decimal("-Infinity"), "numeric", "-Infinity"),
        (float("inf"), "float8", "inf"),
        (datetime(2024, 1, 31, tzinfo=UTC), "timestamptz", "2024-01-31T00:00:00+00:00"),
        (bytearray(b"\x00\xff"), "bytea", r"\\x00ff"),
        (memoryview(b"ab"), "bytea", r"\\x6162"),
        (b"ab", "bytea", r"\\x6162"),
        (ipaddress.ip_network("10.0.0.0/8"), "inet", "10.0.0.0/8"),
        ({"a": "b\\"}, "jsonb", r'{"a": "b\\\\"}'),
        ({"a": 1}, "text", '{"a": 1}'),
        ('{"already": "json"}', "jsonb", '{"already": "json"}'),
        (True, "jsonb", "true"),
        (5, "json", "5"),
        ("\\u0000", "text", r"\\u0000"),
        (["\\u0000"], "jsonb", r'["\\\\u0000"]'),
    ],
)
def test_a_value_is_written_the_same_alone_and_among_others(value, kind, written):
    column = Column("c", kind)

    assert CopyEncoder([column]).encode([(value,)]).decode() == written + "\n"
    assert CopyEncoder([column]).encode([(value,), (None,)]).decode() == written + "\n\\N\n"
    if not isinstance(value, str | dict | list):
        assert CopyEncoder([column]).encode([(value,), ("x",)]).decode() == written + "\nx\n"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ([["a", None], ["b", '"']], r'{{"a",NULL},{"b","\\""}}'),
        (("a",), '{"a"}'),
        ("{a,b}", "{a,b}"),
        ([], "{}"),
    ],
)
def test_lists_are_arrays_where_the_column_is_one(value, written):
    assert CopyEncoder([Column("c", "text", array=True)]).encode([(value,)]).decode() == written + "\n"


def test_an_array_of_json_holds_json():
    assert CopyEncoder([Column("c", "jsonb", array=True)]).encode([([[1, "a"]],)]) == rb'{"[1, \\"a\\"]"}' + b"\n"


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        ("a\0b", Column("c", "text"), "NUL character"),
        ("\ud800", Column("c", "text"), "surrogate"),
        ({"a": "\0"}, Column("c", "jsonb"), "NUL character"),
        ({"a": float("nan")}, Column("c", "jsonb"), "no JSON"),
        ({"a": {1, 2}}, Column("c", "jsonb"), "no JSON"),
        pytest.param(10**5000, Column("c", "numeric"), "too many digits", id="huge"),
        (object(), Column("c", "text"), "a object cannot be written"),
        (datetime(2024, 1, 31, tzinfo=UTC), Column("c", "timestamp"), "has a zone"),
        (5, Column("c", "int4", array=True), "is no array"),
        (["\0"], Column("c", "text", array=True), "NUL character"),
    ],
)
def test_what_cannot_be_stored_is_named_by_row_and_column(value, column, reason):
    text = CopyEncoder([Column("id", "int4"), column])
    text.encode([(1, None)] * 10)

    with pytest.raises(UnsuitableValue, match=reason) as unfit:
        text.encode([(11, None), (12, value), (13, None)])

    assert (unfit.value.row, unfit.value.column) == (12, "c")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((1,), "1 values for 2 columns"),
        ((1, 2, 3), "3 values for 2 columns"),
        ({"a": 1}, "missing"),
        ("ab", "not a str"),
        (5, "not a int"),
    ],
)
def test_a_row_of_another_shape_is_named(row, reason):
    with pytest.raises(UnsuitableValue, match=reason):
        CopyEncoder([Column("a", "int4"), Column("b", "int4")]).encode([(1, 2), row])


@pytest.mark.parametrize(
    "rows",
    [
        [{"b": 2, "a": 1, "more": 3}],
        [MappingProxyType({"a": 1, "b": 2})],
        [Pair(1, 2)],
        [[1, 2]],
    ],
)
def test_rows_may_be_sequences_or_mappings(rows):
    assert CopyEncoder([Column("a", "int4"), Column("b", "int4")]).encode(rows) == b"1\t2\n"


def test_mappings_work_with_a_single_column_too():
    assert CopyEncoder([Column("a", "int4")]).encode([{"a": 1}, {"a": 2}]) == b"1\n2\n"


def test_unsuitable_rows_are_rejected_and_others_written():
    rejects = Rejects(limit=2)
    text = CopyEncoder([Column("a", "text")], rejects)

    assert text.encode([("one",), ("t\0o",), ("three",)]) == b"one\nthree\n"
    assert (text.row_count, text.rejected_count, rejects.count) == (3, 1, 1)
    assert str(rejects) == "row 2, column 'a': it holds a NUL character, which PostgreSQL cannot store"


def test_too_many_rejects_end_the_load_and_show_the_first():
    rejects = Rejects(limit=2, max_kept=1)

    with pytest.raises(TooManyRejects, match=r"more than 2 bad records; the first are line 1: bad; and 2 more"):
        for line in range(1, 9):
            rejects.add(f"line {line}", "bad")


def test_no_rejects_are_reported_as_none():
    assert str(Rejects(limit=0)) == "none"


def test_a_uuid_and_a_date_are_written_as_postgresql_reads_them(db):
    some = uuid4()
    row = (some, date(2024, 1, 31), time(1, 2, 3, 4))
    with db.conn.cursor() as cur:
        cur.execute("CREATE TEMP TABLE t (u uuid, d date, t time)")
        copy_rows(db.conn, "t", ["u", "d", "t"], [row])
        cur.execute("SELECT u::text, d, t FROM t")

        assert cur.fetchall() == [(str(some), *row[1:])]
