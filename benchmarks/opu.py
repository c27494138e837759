"""`load.opu` with a million rows: rows a second, and the most memory it took above the idle process.

    python -m benchmarks.opu [--rows 1000000] [--dsn …]

Without a DSN it starts an embedded PostgreSQL of its own. The archive is made by a process of its own and streamed.
For comparison the loaded table is copied out and in again by plain COPY from a file, in the same run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg2

from app.postgres import EmbeddedServer
from pipelines import targets
from pipelines.opu.load import load_opu
from pipelines.opu.table import TABLE
from tests.support_sources import SourceServer, Told
from tests.support_sources.gmap import archive, record, serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dsn")
    parser.add_argument("--part", choices=["source", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part == "source":
        serve_archive(asked.rows)
    elif asked.part == "load":
        load(asked.url, asked.dsn)
    elif asked.dsn:
        compare(asked.rows, asked.dsn)
    else:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            with EmbeddedServer(Path(folder) / "postgres") as server:
                compare(asked.rows, server.dsn)


def compare(rows: int, dsn: str) -> None:
    source = part("source", "--rows", str(rows))
    try:
        url = source.stdout.readline().strip() if source.stdout else ""
        loading = part("load", "--url", url, "--dsn", dsn)
        told, _ = loading.communicate()
        found = json.loads(told.splitlines()[-1])
    finally:
        source.kill()
        source.wait()
    plain = plain_copy(dsn)
    print(f"rows                      {found['rows']:>12,}")
    print(f"archive                   {found['archive_bytes'] / 1024**2:>12.1f} MB")
    print(f"export and download       {found['before_sec']:>12.1f} s")
    print(f"decode, load and swap     {found['load_sec']:>12.1f} s {found['rows'] / found['load_sec']:>12,.0f} rows/s")
    print(f"the same by plain COPY    {plain:>12.1f} s {found['rows'] / plain:>12,.0f} rows/s")
    print(f"CPU of Python             {found['cpu_sec']:>12.1f} s {found['rows'] / found['cpu_sec']:>12,.0f} rows/s")
    print(f"ratio                     {plain / found['load_sec']:>12.2f}")
    print(f"memory above idle         {found['grown_mb']:>12.0f} MB")


def part(name: str, *args: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchmarks.opu", "--part", name, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def serve_archive(rows: int) -> None:
    source = SourceServer()
    serve(source, archive(map(record, range(rows))), rows=rows)
    print(source.url, flush=True)
    source.closing.wait()


def load(url: str, dsn: str) -> None:
    targets.configure({"gmap2brief": url}, {"opu": dsn})
    ctx = Told()
    loading_since: list[float] = []
    ctx.progress = lambda *_, stage, **__: loading_since.append(time.monotonic()) if stage == "load" else None
    began, idle = time.monotonic(), psutil.Process().memory_info().rss / 1024**2
    result = load_opu({}, ctx)
    ended = time.monotonic()
    first_batch = loading_since[1] - loading_since[0] if len(loading_since) > 1 else 0.0
    load_began = loading_since[0] - first_batch
    print(
        json.dumps(
            {
                "rows": result["rows"],
                "archive_bytes": result["archive_bytes"],
                "before_sec": load_began - began,
                "load_sec": ended - load_began,
                "cpu_sec": time.process_time(),
                "grown_mb": peak_mb() - idle,
            }
        )
    )


def peak_mb() -> float:
    """The most this process ever took; before that, importing may have taken more than it does when idle."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plain_copy(dsn: str) -> float:
    """The same rows from a file into a table like it, with its key built at the end."""
    with tempfile.TemporaryFile() as file, psycopg2.connect(dsn) as conn, conn.cursor() as cur:
        cur.copy_expert(f"COPY {TABLE} TO STDOUT", file)
        file.seek(0)
        began = time.monotonic()
        cur.execute(f"CREATE TABLE opu.plain (LIKE {TABLE})")
        cur.copy_expert("COPY opu.plain FROM STDIN WITH (FREEZE)", file)
        cur.execute(
            "ALTER TABLE opu.plain ADD PRIMARY KEY (opu_id, region_code, field_code, object_code, section_code, "
            "indicator_code, period_start, revision)"
        )
        cur.execute("ANALYZE opu.plain")
        took = time.monotonic() - began
        conn.rollback()
    return took


if __name__ == "__main__":
    main()
