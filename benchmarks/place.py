"""Where a benchmark is run: a server with its usual safety, a fresh database, and what the processes cost.

DL_BENCH_DSN names a server whose account may create databases; without it an embedded one is started, and thrown away
at the end. Commits reach the disk either way: `fsync` and `synchronous_commit` are on, or the run says that they are
not.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import make_dsn

from app.postgres import EmbeddedServer
from app.queue.schema import migrate


@contextmanager
def some_server() -> Iterator[tuple[str, psutil.Process | None]]:
    """Its DSN, and its main process where it runs on this machine under our eyes."""
    named = os.environ.get("DL_BENCH_DSN")
    if named:
        yield named, None
        return
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-"))
    folder.chmod(0o755)  # as root the server has an account of its own, which must get there
    try:
        with EmbeddedServer(folder / "data") as server:
            yield server.dsn, psutil.Process(server.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server_dsn: str) -> Iterator[str]:
    """A database with our tables, dropped at the end."""
    name = f"dl_bench_{os.getpid()}"
    dsn = make_dsn(server_dsn, dbname=name)
    ask(server_dsn, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    ask(server_dsn, f'CREATE DATABASE "{name}" TEMPLATE template0')
    try:
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
    """One line on what was measured where."""
    ((version, fsync, synchronous),) = ask(
        dsn,
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')",
    )
    return (
        f"Python {platform.python_version()}, PostgreSQL {version} (fsync {fsync}, synchronous_commit {synchronous}), "
        f"{psutil.cpu_count()} CPUs, {platform.system()} {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )
