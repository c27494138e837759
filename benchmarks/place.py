"""Where a benchmark is run: a server with its usual safety, a fresh database, and what the processes cost.

DL_BENCH_DSN names a server whose account may create databases; without it an embedded one is started, and thrown away
at the end. Commits reach the disk either way: `fsync` and `synchronous_commit` are on, or the run says that they are
not.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from app.postgres import EmbeddedServer
from app.queue.schema import migrate

# What changes a figure, and what nobody believes without seeing it.
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_compression")
PACKAGES = ("dataloader", "psycopg2-binary", "flask", "gunicorn")


@contextmanager
def some_server(settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, psutil.Process | None]]:
    """Its DSN, and its main process where it runs on this machine under our eyes. The settings are for our own only."""
    named = os.environ.get("DL_BENCH_DSN")
    if named:
        yield named, None
        return
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is ended leaves no server behind
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-"))
    folder.chmod(0o755)  # as root the server has an account of its own, which must get there
    try:
        with EmbeddedServer(folder / "data", settings=settings) as server:
            yield server.dsn, psutil.Process(server.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server_dsn: str, label: str = "", *, like: str | None = None, empty: bool = False) -> Iterator[str]:
    """A database with our tables, dropped at the end. Several at a time need labels; `like` is another one's DSN, whose
    content is copied; an empty one has no tables either."""
    name = f"dl_bench_{os.getpid()}{label and '_'}{label}"
    dsn = make_dsn(server_dsn, dbname=name)
    template = "template0" if like is None else parse_dsn(like)["dbname"]
    ask(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    ask(server_dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        if like is None and not empty:
            migrate(dsn)
        yield dsn
    finally:
        ask(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def ask(dsn: str, question: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(question, parameters or None)
        return cursor.fetchall() if cursor.description else []


def cpu_of(process: psutil.Process) -> float:
    """Seconds that a process and all it has ever started have used."""
    times = process.cpu_times()
    live = sum(_own(child) for child in process.children(recursive=True))
    return float(times.user + times.system + times.children_user + times.children_system + live)


def _own(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def environment(dsn: str) -> str:
    """What was measured where: the machine, the versions, the server's settings."""
    shown = ", ".join(f"{name} {ask(dsn, f'SHOW {name}')[0][0]}" for name in SETTINGS)
    ((version,),) = ask(dsn, "SHOW server_version")
    ours = ", ".join(f"{name} {version_of(name) or 'of this checkout'}" for name in PACKAGES)
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
    """As the system calls it; many virtual machines hide it."""
    told = Path("/proc/cpuinfo")
    if told.exists():
        for line in told.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "of an unnamed kind"
