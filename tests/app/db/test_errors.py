"""What PostgreSQL says becomes an error of ours that a caller can act on; what is a bug stays loud."""

from __future__ import annotations

import psycopg2
import pytest

from dataloader.app.db.connection import translate_errors
from dataloader.app.errors import DatabaseUnavailable, InvalidJob, RightsMissing, SchemaMissing, SchemaOutdated


@pytest.mark.parametrize(
    ("sql", "ours"),
    [
        ("SELECT FROM dl_nothing", SchemaMissing),
        ("SELECT 'queued'::dl_nothing", SchemaMissing),
        ("SELECT nothing FROM dl_jobs", SchemaOutdated),
        ("SELECT dl_nothing()", SchemaOutdated),
        ("SELECT 'x'::int", InvalidJob),
        ("INSERT INTO dl_jobs (queue) VALUES ('q')", InvalidJob),
        ("SET LOCAL statement_timeout = 50; SELECT pg_sleep(60)", DatabaseUnavailable),
        ("SET LOCAL transaction_read_only = on; DELETE FROM dl_jobs", DatabaseUnavailable),
        ("SELECT pg_terminate_backend(pg_backend_pid())", DatabaseUnavailable),
        ("SELEKT", psycopg2.errors.SyntaxError),
        ("SET LOCAL ROLE pg_monitor", RightsMissing),
    ],
)
def test_each_error_has_one_meaning(queue_db, sql, ours):
    connection = queue_db.connect()

    with pytest.raises(ours) as caught, translate_errors(), connection.cursor() as cursor:
        cursor.execute(sql)

    assert str(caught.value).strip()
    assert isinstance(caught.value, psycopg2.Error) or isinstance(caught.value.__cause__, psycopg2.Error)
