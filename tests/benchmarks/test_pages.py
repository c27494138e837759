"""The benchmark of pages requests all of them, with rows in every table that they show."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from psycopg2.extensions import make_dsn

from benchmarks import pages
from benchmarks.place import query_value
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.routing import HTML

pytestmark = pytest.mark.superuser("benchmarks make databases of their own")


def test_addresses_cover_every_page(server_dsn):
    pool = Pool(server_dsn)
    operations = pages.make_client(pool, server_dsn).application.extensions[OPERATIONS]
    paths = {operation.path for operation in operations if (operation.method, operation.media_type) == ("GET", HTML)}

    measured = [address.partition("?")[0] for address in pages.ADDRESSES]
    patterns = {path: "[^/]+".join(map(re.escape, re.split("<[^>]+>", path))) for path in paths}
    missing = {path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, each) for each in measured)}
    pool.close()
    assert len(paths) > 30
    assert missing == set()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_page_answers_with_rows_in_every_table(server_dsn, monkeypatch, capsys):
    monkeypatch.setenv("DL_BENCH_DSN", server_dsn)
    monkeypatch.setattr(pages, "KEPT_SEC", 0.0)
    name = f"pages_{uuid4().hex}"
    try:
        pages.main(["--rows", "20000", "--ready", "100", "--rounds", "1", "--keep", name])
        empty = empty_tables(make_dsn(server_dsn, dbname=name))
    finally:
        query_value(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| /")]
    assert len(lines) >= len(pages.ADDRESSES)
    assert empty <= {
        "dl_dataset_updates", "dl_failure_handlers", "dl_fair_weights", "dl_graph_work", "dl_limit_looks",
        "dl_limit_starts", "dl_lineage_state", "dl_notify_state", "dl_signing_secrets", "dl_stalled_progress",
        "dl_where",
    }  # fmt: skip


def empty_tables(dsn: str) -> set[str]:
    tables = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'dl\\_%' AND NOT relispartition"
    return {table for (table,) in query_value(dsn, tables) if not query_value(dsn, f"SELECT 1 FROM {table} LIMIT 1")}
