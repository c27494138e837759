"""The server and databases of a benchmark, and the CPU time of processes.

DL_BENCH_DSN names a server whose account may create databases. Without it, an embedded server is started and deleted
afterwards. Commits reach the disk either way: the embedded server has `fsync` and `synchronous_commit` on, and the
first lines of the output show the settings.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db.schema import migrate
from dataloader.app.postgres import EmbeddedServer

# Settings that change the results; printed with each run.
_NUMBERS = itertools.count(1)
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_compression")
LISTED_PACKAGES = ("dataloader", "psycopg2-binary", "flask", "gunicorn")


@contextmanager
def benchmark_server(settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, psutil.Process | None]]:
    """Yield the server's DSN, and the main process of an embedded server; only that one gets the settings."""
    named = os.environ.get("DL_BENCH_DSN")
    if named:
        yield named, None
        return
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupted run stops its server
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-"))
    folder.chmod(0o755)  # under root the server runs as another account
    try:
        with EmbeddedServer(folder / "data", settings=settings) as server:
            yield server.dsn, psutil.Process(server.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server_dsn: str, label: str = "", *, like: str | None = None, empty: bool = False) -> Iterator[str]:
    """Create a database with our tables and drop it afterwards.

    `like` is the DSN of a database to copy. With `empty` there are no
    tables.
    """
    # A name of its own each time: a process refuses another queue under a known connection string.
    name = f"dl_bench_{os.getpid()}_{next(_NUMBERS)}{label and '_'}{label}"
    dsn = make_dsn(server_dsn, dbname=name)
    template = "template0" if like is None else parse_dsn(like)["dbname"]
    query_value(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    query_value(server_dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        if like is None and not empty:
            migrate(dsn)
        yield dsn
    finally:
        query_value(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def query_value(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def commit_count(dsn: str) -> int:
    """Transactions of the whole server that have written: statistics of commits come late."""
    return int(query_value(dsn, "SELECT txid_snapshot_xmax(txid_current_snapshot())")[0][0])


def cpu_sec_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of all its children, past and present."""
    times = process.cpu_times()
    live = sum(_own_cpu_sec(child) for child in process.children(recursive=True))
    return float(times.user + times.system + times.children_user + times.children_system + live)


def own_cpu_sec(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of live processes, without their children."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _own_cpu_sec(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def describe_environment(dsn: str) -> str:
    """Describe the machine, the versions and the server's settings."""
    shown = ", ".join(f"{name} {query_value(dsn, f'SHOW {name}')[0][0]}" for name in SETTINGS)
    ((version,),) = query_value(dsn, "SHOW server_version")
    ours = ", ".join(f"{name} {version_of(name) or '(this checkout)'}" for name in LISTED_PACKAGES)
    return (
        f"{psutil.cpu_count()} CPUs ({cpu_model()}), {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"{platform.system()} {platform.machine()}, load {os.getloadavg()[0]:.1f} at the start\n"
        f"PostgreSQL {version}: {shown}\n"
        f"Python {platform.python_version()}, {ours}\n"
    )


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the CPU's model as the system reports it; many virtual machines hide it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown model"
