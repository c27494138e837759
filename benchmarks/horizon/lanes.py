"""What keeps vacuum from removing dead rows, each as a context that is open while the queue works."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import psycopg2

from benchmarks.place import query_value
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import ServerAccount, choose_binaries

_SLOT = "bench_horizon"
_SLOT_STATE = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
_COPY_TIMEOUT_SEC, _FEEDBACK_TIMEOUT_SEC = 120.0, 60.0
_STANDBY_SETTINGS = {
    "hot_standby_feedback": "on",
    "wal_receiver_status_interval": "1s",
    "max_standby_streaming_delay": "-1",
    "fsync": "off",
}


class LaneUnavailable(Exception):
    """The server or its programs do not allow this lane."""


def open_write(dsn: str) -> AbstractContextManager[None]:
    """A load between two of its statements: the transaction has an id and no snapshot."""
    return _open_transaction(dsn, "CREATE TABLE bench_target (n int); INSERT INTO bench_target VALUES (1)")


def open_snapshot(dsn: str) -> AbstractContextManager[None]:
    """A dump: the transaction keeps its snapshot."""
    return _open_transaction(dsn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dl_schema")


@contextmanager
def _open_transaction(dsn: str, statement: str) -> Iterator[None]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        yield


@contextmanager
def idle_slot(dsn: str) -> Iterator[None]:
    """The slot of a standby that sent feedback and was stopped: it keeps the last xmin that the standby reported."""
    with _standby(dsn) as server:
        server.stop()
        yield


@contextmanager
def standby_query(dsn: str) -> Iterator[None]:
    """A standby that sends feedback, with an open query."""
    with _standby(dsn) as server:
        name = psycopg2.extensions.parse_dsn(dsn)["dbname"]
        with open_snapshot(psycopg2.extensions.make_dsn(server.dsn, dbname=name)):
            yield


@contextmanager
def _standby(dsn: str) -> Iterator[EmbeddedServer]:
    """A standby of the whole server, once its slot has an xmin."""
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-standby-"))
    folder.chmod(0o755)
    try:
        _copy_server(dsn, folder)
        with EmbeddedServer(folder, settings={**_STANDBY_SETTINGS, "primary_slot_name": _SLOT}) as server:
            deadline = time.monotonic() + _FEEDBACK_TIMEOUT_SEC
            while not query_value(dsn, _SLOT_STATE + " AND xmin IS NOT NULL", _SLOT):
                if time.monotonic() > deadline:
                    raise LaneUnavailable("the standby has sent no feedback")
                time.sleep(0.1)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _drop_slot(dsn)


def _copy_server(dsn: str, folder: Path) -> None:
    account = ServerAccount.choose(folder / "cluster")
    ((major,),) = query_value(dsn, "SELECT current_setting('server_version_num')::int / 10000")
    binaries = choose_binaries("auto", account=account, data_folder=folder, major=major)
    if not binaries.program("pg_basebackup").exists():
        raise LaneUnavailable(f"{binaries} has no pg_basebackup")
    cluster = folder / "cluster"
    cluster.mkdir(mode=0o700)
    account.take_ownership(cluster)
    options: list[str | Path] = [
        "-D",
        cluster,
        "--checkpoint=fast",
        "-X",
        "stream",
        "-R",
        "--no-sync",
        "-C",
        "-S",
        _SLOT,
    ]
    done = binaries.run("pg_basebackup", "-d", dsn, *options, timeout_sec=_COPY_TIMEOUT_SEC)
    if done.returncode != 0:
        raise LaneUnavailable(f"pg_basebackup failed: {done.stderr.strip()}")


def _drop_slot(dsn: str) -> None:
    deadline = time.monotonic() + _FEEDBACK_TIMEOUT_SEC
    while query_value(dsn, _SLOT_STATE + " AND active", _SLOT):
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
    query_value(dsn, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", _SLOT)


LANES: dict[str, Callable[[str], AbstractContextManager[None]]] = {
    "nothing": lambda _: nullcontext(),
    "write": open_write,
    "snapshot": open_snapshot,
    "slot": idle_slot,
    "standby": standby_query,
}
