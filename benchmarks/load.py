"""How fast the toolkit loads, against what PostgreSQL's own client and psycopg2's helpers do in the same run.

    python benchmarks/load.py [--rows 200000] [--rounds 5]

Every way loads the same rows in turn, round after round, so that a busy machine slows all of them alike; what counts
are the ratios of the medians. DL_BENCH_DSN names a server; without it an embedded one is started, with its usual
safety (fsync, synchronous_commit).
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import orjson
import psycopg2
import zstandard
from psycopg2.extensions import connection
from psycopg2.extras import execute_values

from app.postgres import EmbeddedServer
from pipelines.toolkit.decode import json_lines
from pipelines.toolkit.load import copy_rows, replace_table, upsert

COLUMNS = ["id", "code", "name", "note", "amount", "rate", "active", "day", "seen_at", "parent"]
TABLE = """
CREATE TABLE {name} (
    id bigint{key}, code text, name text, note text, amount numeric, rate float8, active bool, day date,
    seen_at timestamptz, parent bigint
)
"""
Row = tuple[object, ...]


@dataclass(frozen=True)
class Way:
    name: str
    load: Callable[[], None]
    target: float | None = None  # the share of copy's speed that is wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with server() as dsn, tempfile.TemporaryDirectory() as folder:
        conn = psycopg2.connect(dsn)
        try:
            measure(conn, dsn, Path(folder), asked.rows, asked.rounds)
        finally:
            with conn.cursor() as cur:
                cur.execute("ROLLBACK; DROP SCHEMA IF EXISTS dl_bench CASCADE")
            conn.commit()
            conn.close()


@contextmanager
def server() -> Iterator[str]:
    named = os.environ.get("DL_BENCH_DSN")
    if named:
        yield named
        return
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-"))
    folder.chmod(0o755)  # as root the server runs under another account
    try:
        with EmbeddedServer(folder / "data") as embedded:
            yield embedded.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(conn: connection, dsn: str, folder: Path, count: int, rounds: int) -> None:
    rows = list(made_up(count))
    run(conn, "DROP SCHEMA IF EXISTS dl_bench CASCADE; CREATE SCHEMA dl_bench; SET search_path = dl_bench, public")
    run(conn, TABLE.format(name="plain", key=""))
    run(conn, TABLE.format(name="keyed", key=" PRIMARY KEY"))
    run(conn, TABLE.format(name="filled", key=" PRIMARY KEY"))
    conn.commit()
    ways = all_ways(conn, dsn, folder, rows)
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(rounds + 1):
        for way in ways:
            prepare(conn, rows)
            began = time.perf_counter()
            way.load()
            if turn:  # the first round warms everything up
                taken[way.name].append(time.perf_counter() - began)
    show(conn, ways, taken, count, rounds)


def prepare(conn: connection, rows: list[Row]) -> None:
    run(conn, "TRUNCATE plain, keyed")
    if run(conn, "SELECT count(*) FROM filled") != len(rows):
        copy_rows(conn, "dl_bench.filled", COLUMNS, rows)
        conn.commit()
        run(conn, "ANALYZE filled")
    run(conn, "CHECKPOINT")


def all_ways(conn: connection, dsn: str, folder: Path, rows: list[Row]) -> list[Way]:
    text, packed = folder / "rows.tsv", folder / "rows.jsonl.zst"
    write_text(text, conn, rows)
    write_packed(packed, rows)
    changed = [(row[0], "changed", *row[2:]) for row in rows]

    def committed(load: Callable[[], object]) -> Callable[[], None]:
        def whole() -> None:
            load()
            conn.commit()

        return whole

    def psql() -> None:
        command = f"\\copy dl_bench.plain FROM '{text}'"
        subprocess.run(["psql", "-qX", "-d", dsn, "-c", command], check=True)

    def values() -> None:
        with conn.cursor() as cur:
            execute_values(cur, f"INSERT INTO plain ({', '.join(COLUMNS)}) VALUES %s", rows, page_size=5000)

    def copy_file() -> None:
        with conn.cursor() as cur, text.open("rb") as file:
            cur.copy_expert("COPY plain FROM STDIN", file, size=128 * 1024)

    def undone() -> None:
        upsert(conn, "dl_bench.filled", COLUMNS, ["id"], changed)
        conn.rollback()

    def from_archive() -> object:
        return copy_rows(conn, "dl_bench.plain", COLUMNS, json_lines(packed))

    return [
        Way("copy", psql if shutil.which("psql") else committed(copy_file)),
        Way("execute_values(5000)", committed(values)),
        Way("copy_rows", committed(lambda: copy_rows(conn, "dl_bench.plain", COLUMNS, rows)), target=0.6),
        Way("zstd, JSON, copy_rows", committed(from_archive), target=0.4),
        Way("upsert, all new", committed(lambda: upsert(conn, "dl_bench.keyed", COLUMNS, ["id"], rows))),
        Way("upsert, nothing new", committed(lambda: upsert(conn, "dl_bench.filled", COLUMNS, ["id"], rows))),
        Way("upsert, all changed", undone),
        Way("replace_table, swapped", committed(lambda: replace_table(conn, "dl_bench.keyed", COLUMNS, rows))),
    ]


def made_up(count: int) -> Iterator[Row]:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    for n in range(count):
        yield (
            n,
            f"CODE-{n * 7919 % 99_991:05d}",
            f"Имя номер {n}",
            "tab\there" if n % 50 == 0 else "an ordinary note of some length",
            round(n * 1.37, 2),
            n / 7,
            n % 3 == 0,
            date(2024, 1, 1) + timedelta(days=n % 365),
            begin + timedelta(seconds=n),
            None if n % 4 else n // 4,
        )


def write_text(path: Path, conn: connection, rows: list[Row]) -> None:
    """The rows as PostgreSQL itself writes them."""
    with conn.cursor() as cur, path.open("wb") as file:
        execute_values(cur, f"INSERT INTO plain ({', '.join(COLUMNS)}) VALUES %s", rows, page_size=5000)
        cur.copy_expert("COPY plain TO STDOUT", file)
    conn.rollback()


def write_packed(path: Path, rows: list[Row]) -> None:
    lines = [orjson.dumps(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    path.write_bytes(zstandard.ZstdCompressor().compress(b"\n".join(lines)))


def run(conn: connection, statement: str) -> object:
    with conn.cursor() as cur:
        if statement == "CHECKPOINT":
            conn.commit()
        cur.execute(statement)
        found = cur.fetchone()[0] if cur.description else None  # type: ignore[index]
    conn.commit()
    return found


def show(conn: connection, ways: list[Way], taken: dict[str, list[float]], count: int, rounds: int) -> None:
    medians = {name: statistics.median(times) for name, times in taken.items()}
    version = str(run(conn, "SHOW server_version"))
    kept = f"fsync {run(conn, 'SHOW fsync')}, synchronous_commit {run(conn, 'SHOW synchronous_commit')}"
    yardstick = "psql \\copy" if shutil.which("psql") else "COPY of a ready file (there is no psql here)"
    print(f"{count:,} rows of {len(COLUMNS)} columns, median of {rounds} interleaved rounds; copy = {yardstick}")
    print(f"PostgreSQL {version} ({kept}), Python {platform.python_version()}, {os.cpu_count()} processors")
    print()
    print(f"{'way':24} {'rows/s':>9} {'spread':>13} {'of copy':>8} {'of execute_values':>18}")
    slow = medians["execute_values(5000)"]
    for way in ways:
        middle = medians[way.name]
        spread = f"{count / max(taken[way.name]) / 1000:.0f}-{count / min(taken[way.name]) / 1000:.0f} k"
        goal = "" if way.target is None else f"  (wanted: {way.target})"
        print(
            f"{way.name:24} {count / middle:9,.0f} {spread:>13} {medians['copy'] / middle:8.2f} "
            f"{slow / middle:18.2f}{goal}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"\npeak memory of this process, with all rows held for the measurement: {peak} MB")


if __name__ == "__main__":
    main()
