"""Measures how fast the toolkit loads rows, compared with psql's \\copy and psycopg2's helpers.

Takes about 3 minutes.

The variants load the same rows of ten columns in turn, round after round. The baseline is a COPY of a prepared file by
psql, or by psycopg2 where there is no psql. The toolkit's variants begin with Python values, or with a compressed
archive of JSON lines, as a pipeline does.

Ratios are of the medians: `of copy` is the share of the baseline's speed, `of execute_values` the multiple of the speed
of psycopg2's helper with pages of 5,000 rows.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import orjson
import psycopg2
import zstandard
from psycopg2.extensions import connection
from psycopg2.extras import execute_values

from benchmarks.place import benchmark_server, describe_environment, fresh_database
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, run_rounds
from dataloader.pipelines.toolkit.decode import json_lines
from dataloader.pipelines.toolkit.load import copy_rows, replace_table, upsert

COLUMNS = ["id", "code", "name", "note", "amount", "rate", "active", "day", "seen_at", "parent"]
TABLE = """
CREATE TABLE {name} (
    id bigint{key}, code text, name text, note text, amount numeric, rate float8, active bool, day date,
    seen_at timestamptz, parent bigint
)
"""
Row = tuple[object, ...]


@dataclass(frozen=True)
class LoadVariant:
    name: str
    load: Callable[[], None]
    target: float | None = None  # the goal, as a share of copy's speed


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args(argv)
    with (
        benchmark_server() as (server_dsn, _),
        fresh_database(server_dsn, empty=True) as dsn,
        tempfile.TemporaryDirectory() as folder,
        closing(psycopg2.connect(dsn)) as conn,
    ):
        print(describe_environment(dsn))
        ways, taken = measure(conn, dsn, Path(folder), options.rows, options.rounds)
    print_results(ways, taken, options.rows, options.rounds)


def measure(
    conn: connection, dsn: str, folder: Path, count: int, rounds: int
) -> tuple[list[LoadVariant], dict[str, list[float]]]:
    rows = list(random_rows(count))
    run(conn, "CREATE SCHEMA dl_bench; SET search_path = dl_bench, public")
    run(conn, TABLE.format(name="plain", key=""))
    run(conn, TABLE.format(name="keyed", key=" PRIMARY KEY"))
    run(conn, TABLE.format(name="filled", key=" PRIMARY KEY"))
    conn.commit()
    ways = all_variants(conn, dsn, folder, rows)

    def time_variant(variant: LoadVariant) -> float:
        prepare(conn, rows)
        began = time.perf_counter()
        variant.load()
        return time.perf_counter() - began

    return ways, run_rounds({way.name: partial(time_variant, way) for way in ways}, rounds, warm_up=1)


def prepare(conn: connection, rows: list[Row]) -> None:
    run(conn, "TRUNCATE plain, keyed")
    if run(conn, "SELECT count(*) FROM filled") != len(rows):
        copy_rows(conn, "dl_bench.filled", COLUMNS, rows)
        conn.commit()
        run(conn, "ANALYZE filled")
    run(conn, "CHECKPOINT")


def all_variants(conn: connection, dsn: str, folder: Path, rows: list[Row]) -> list[LoadVariant]:
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
        LoadVariant("copy", psql if shutil.which("psql") else committed(copy_file)),
        LoadVariant("execute_values(5000)", committed(values)),
        LoadVariant("copy_rows", committed(lambda: copy_rows(conn, "dl_bench.plain", COLUMNS, rows)), target=0.6),
        LoadVariant("zstd, JSON, copy_rows", committed(from_archive), target=0.4),
        LoadVariant("upsert, all new", committed(lambda: upsert(conn, "dl_bench.keyed", COLUMNS, ["id"], rows))),
        LoadVariant("upsert, nothing new", committed(lambda: upsert(conn, "dl_bench.filled", COLUMNS, ["id"], rows))),
        LoadVariant("upsert, all changed", undone),
        LoadVariant("replace_table, swapped", committed(lambda: replace_table(conn, "dl_bench.keyed", COLUMNS, rows))),
    ]


def random_rows(count: int) -> Iterator[Row]:
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
    """Write the rows in the format of COPY."""
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
        value = cur.fetchone()[0] if cur.description else None  # type: ignore[index]
    conn.commit()
    return value


def print_results(
    variants: Sequence[LoadVariant], seconds_by_variant: dict[str, list[float]], count: int, rounds: int
) -> None:
    medians = {name: median(seconds) for name, seconds in seconds_by_variant.items()}
    lines: list[Sequence[Cell]] = []
    for way in variants:
        middle, seconds = medians[way.name], seconds_by_variant[way.name]
        spread = f"{count / max(seconds) / 1000:.0f}–{count / min(seconds) / 1000:.0f} k"
        of_copy, of_values = (
            format_ratio(medians["copy"] / middle),
            format_ratio(medians["execute_values(5000)"] / middle),
        )
        goal = "" if way.target is None else f"≥ {way.target}"
        lines.append((way.name, round(count / middle), spread, of_copy, goal, of_values))
    yardstick = "psql \\copy" if shutil.which("psql") else "COPY of a prepared file (psql is not installed)"
    print(f"{count:,} rows of {len(COLUMNS)} columns, {rounds} rounds in turn, medians; copy = {yardstick}")
    print(format_table(["variant", "rows/s", "spread", "of copy", "goal", "of execute_values"], lines))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"\npeak memory of this process, with all rows held for the measurement: {peak} MB")


if __name__ == "__main__":
    main()
