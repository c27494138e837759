"""Connection strings, read as libpq reads them: the driver is the judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg2.extensions import parse_dsn

from dataloader.app.config import dsn

# What an environment variable can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1)


@given(TEXTS, TEXTS)
def test_any_password_is_written_so_that_libpq_reads_it_back(user, password):
    written = dsn.format_dsn({"host": "db", "user": user, "password": password})

    assert parse_dsn(written) == {"host": "db", "user": user, "password": password} == dsn.parse_dsn(written)


@pytest.mark.parametrize(
    "text",
    [
        "host=db port=5432 dbname=jobs",
        r"host=db password='it\'s \\ here' user = etl",
        r"password=a\ b\'c host=db",
        "postgresql://etl:s%40cret@db:5432/jobs?sslmode=require&application_name=a%20b",
        "postgres://db",
        "postgresql:///jobs?host=/var/run/postgresql",
        "postgresql://etl@one:1,two:2/jobs?target_session_attrs=read-write",
        "postgresql://etl:pw@[::1]:5432/jobs",
        "postgresql://etl:a:b@db/jobs",
        "postgresql://db/jobs?password=a+b%26c&user=",
    ],
)
def test_connection_strings_are_read_as_libpq_reads_them(text):
    assert dsn.parse_dsn(text) == {key: value for key, value in parse_dsn(text).items() if value}


@pytest.mark.parametrize(
    "text",
    [
        "host=db password='open",
        "host",
        "host=db password hunter2",
        "HOST=db",
        "postgresql://etl:p@hunter2@db:x/jobs",
        "postgresql://etl:hunter2",
        "mysql://etl:hunter2@db/jobs",
        "postgresql://db/jobs?hunter2",
    ],
)
def test_what_cannot_be_read_is_not_repeated(text):
    with pytest.raises(ValueError) as caught:
        dsn.parse_dsn(text)

    assert "hunter2" not in str(caught.value)
    assert dsn.mask_dsn(text) == "***"


@pytest.mark.parametrize(
    "text",
    [
        "host=db password=hunter2 user=etl",
        "host=db pasword=hunter2 user=etl",
        "host=db sslpassword=hunter2 user=etl",
        "postgresql://etl:hunter2@db",
        "postgresql://etl@db?password=hunter2",
        "postgresql://etl@db?pass=hunter2",
    ],
)
def test_only_what_is_known_to_be_harmless_is_shown(text):
    shown = dsn.mask_dsn(text)

    assert "hunter2" not in shown
    assert "host=db" in shown
    assert "user=etl" in shown
    assert "=***" in shown


PIECES = st.sampled_from([
    "postgresql://", "postgres://", "u", ":", "pw", "@", "host", "[", "]", "::1", "/", "db", "?", "&", "=", "%", "%zz",
    "%00", "%41", "%ff", "'", "\\", " ", "\t", "\n", "\v", "\xa0", "host=", "password=", "'a b'", "port=", "5432", ",",
    "sslmode=require", "ssl=true", "é", "%C3%A9", "user=", "options=-c", "#", ";", "dbname=", "99999", "HOST=",
    "\udcff",
])  # fmt: skip


@settings(max_examples=2000)
@given(
    st.sampled_from(["", "postgresql://", "postgresql://u:p@h", "host=h "]), st.lists(PIECES, min_size=1, max_size=9)
)
def test_accepted_dsn_is_what_libpq_reads(start, pieces):
    text = start + "".join(pieces)
    try:
        parameters = dsn.parse_dsn(text)
    except ValueError:
        return  # refused: libpq never sees it

    assert parameters == {key: value for key, value in parse_dsn(text).items() if value}
