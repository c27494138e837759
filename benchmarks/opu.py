"""Measures `load.opu` with a million rows: rows per second, and peak memory above the idle process.

    python -m benchmarks.opu [--rows 1000000] [--dsn …]

Takes about 1 minute.

Without --dsn it starts an embedded PostgreSQL. A separate process makes and streams the archive. For comparison, the
same run copies the loaded table to a file and loads that by plain COPY.
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

from dataloader.app.postgres import EmbeddedServer
from dataloader.pipelines import targets
from dataloader.pipelines.opu.load import OpuArguments, load_opu
from dataloader.pipelines.opu.table import TABLE
from tests.support_sources import RecordingContext, SourceServer
from tests.support_sources.gmap import archive, record, serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dsn")
    parser.add_argument("--part", choices=["source", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "source":
        serve_archive(options.rows)
    elif options.part == "load":
        load(options.url, options.dsn)
    elif options.dsn:
        compare(options.rows, options.dsn)
    else:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            with EmbeddedServer(Path(folder) / "postgres") as server:
                compare(options.rows, server.dsn)


def compare(rows: int, dsn: str) -> None:
    source = run_part("source", "--rows", str(rows))
    try:
        url = source.stdout.readline().strip() if source.stdout else ""
        loading = run_part("load", "--url", url, "--dsn", dsn)
        output, _ = loading.communicate()
        result = json.loads(output.splitlines()[-1])
    finally:
        source.kill()
        source.wait()
    plain = plain_copy(dsn)
    print(f"rows                      {result['rows']:>12,}")
    print(f"archive                   {result['archive_bytes'] / 1024**2:>12.1f} MB")
    print(f"export and download       {result['before_sec']:>12.1f} s")
    print(
        f"decode, load and swap     {result['load_sec']:>12.1f} s {result['rows'] / result['load_sec']:>12,.0f} rows/s"
    )
    print(f"the same by plain COPY    {plain:>12.1f} s {result['rows'] / plain:>12,.0f} rows/s")
    print(f"CPU of Python             {result['cpu_sec']:>12.1f} s {result['rows'] / result['cpu_sec']:>12,.0f} rows/s")
    print(f"ratio                     {plain / result['load_sec']:>12.2f}")
    print(f"memory above idle         {result['grown_mb']:>12.0f} MB")


def run_part(name: str, *args: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchmarks.opu", "--part", name, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def serve_archive(rows: int) -> None:
    source = SourceServer()
    serve(source, archive(map(record, range(rows))), rows=rows)
    print(source.url, flush=True)
    source.closing.wait()


def load(url: str, dsn: str) -> None:
    targets.configure({"gmap2brief": url}, {"opu": dsn})
    ctx = RecordingContext()
    loading_since: list[float] = []
    ctx.progress = lambda *_, stage, **__: loading_since.append(time.monotonic()) if stage == "load" else None
    began, idle = time.monotonic(), psutil.Process().memory_info().rss / 1024**2
    result = load_opu(OpuArguments(), ctx)
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
    """Return the peak memory of this process, which includes the imports."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plain_copy(dsn: str) -> float:
    """Return the seconds that a plain COPY of the same rows takes, with the key built at the end."""
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
