"""The account of a slow program names why it is slow, and where: twenty programs, each in a thread and in a process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import psycopg2
import pytest

from dataloader.app.features.where.account import Cause, decode_entries
from dataloader.app.features.where.accounts import Accounts, StoredAccount
from dataloader.app.features.where.sampler_options import SamplerOptions, WhereOptions
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.duties import MaintenanceOptions
from tests.app.features.where.conftest import isolated
from tests.support import Databases, slow_programs
from tests.support.databases import execute_sql
from tests.support.slow_programs import PROGRAMS, TARGET
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

pytestmark = [pytest.mark.full, pytest.mark.timeout(500)]
SEC, HOLDING_SEC = 4.0, 8.0  # of a program, and of one that holds the interpreter: it is seldom looked at
MIN_NAMED, MIN_ASSIGNED = 18, 0.95
SAMPLER = SamplerOptions(after_sec=0.05, interval_sec=0.1, write_interval_sec=1.0)
# Those that compute disturb each other: one at a time.
ALONE = (
    "C call that holds the interpreter", "regex that explodes", "huge JSON", "pandas row loop", "compression",
    "N+1 queries", "cursor that fetches one row", "swap-like memory", "fsync per line", "missing index",
)  # fmt: skip
HOLDING = ALONE[:4]
COMPUTES = ("python", "native")
# What the heaviest entry is: its kind, and a part of its words.
CAUSES: dict[str, tuple[tuple[str, ...], str]] = {
    "lock wait behind an open transaction": (("sql_lock",), "a lock on held held by slow-holder"),
    "missing index": (("sql",), "`SELECT count(*) FROM facts a JOIN facts b"),
    "N+1 queries": (("sql_short",), "`SELECT amount FROM sales WHERE id = …`"),
    "C call that holds the interpreter": (("native",), "holds the interpreter"),
    "slow HTTP peer": (("network",), "network"),
    "throttled API": (("sleep",), "after HTTPError"),
    "swap-like memory": (("memory",), "memory from disk"),
    "full disk that retries": (("sleep",), "after OSError ENOSPC"),
    "regex that explodes": (COMPUTES, "in match_exploding_pattern in"),
    "sleep loop": (("sleep",), "sleep"),
    "queue of its own threads": (("threads",), "sleep: serve_own_queue in"),
    "deadlock retried": (("sql_lock",), "a lock on crossed held by slow-partner"),
    "COPY to a slow server": (("sql", "sql_client"), "`COPY slow (id, amount) FROM STDIN`"),
    "DNS that times out": (("network", "dns"), ""),
    "huge JSON": (COMPUTES, " in json)"),
    "pandas row loop": (COMPUTES, "(DataFrame.iterrows in pandas)"),
    "cursor that fetches one row": (("sql_short",), "`FETCH FORWARD"),
    "fsync per line": (("file",), "fsync"),
    "compression": (COMPUTES, "(compress in lzma)"),
    "child that waits for input": (("input",), "cat waits for input"),
}


class SlowPeer(BaseHTTPRequestHandler):
    """Answers a byte at a time, or refuses."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/throttled":
            self.send_error(429)
            return
        self.send_response(200)
        self.end_headers()
        ends_at = time.monotonic() + float(parse_qs(url.query)["sec"][0])
        while time.monotonic() < ends_at:
            self.wfile.write(b".")
            time.sleep(0.2)

    def log_message(self, *_: Any) -> None:
        pass


def serve_peer() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowPeer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class CrossedTransactions:
    """Locks two rows in the other order than the task, again and again."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._done = dsn, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with closing(psycopg2.connect(self._dsn, application_name="slow-partner")) as connection:
            cursor = connection.cursor()
            while not self._done.is_set():
                with suppress(psycopg2.Error):
                    cursor.execute("UPDATE crossed SET amount = 2 WHERE id = 2")
                    self._done.wait(0.05)
                    cursor.execute("UPDATE crossed SET amount = 2 WHERE id = 1")
                    self._done.wait(0.3)
                connection.rollback()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(20)


@dataclass
class SlowPrograms:
    """Runs the programs, and keeps their accounts."""

    pools: WorkerPoolFixture
    target: str
    args: dict[str, Any]

    def run(self, isolation: str) -> dict[str, StoredAccount]:
        tasks: Pipelines = (
            slow_programs.in_threads()
            if isolation == "thread"
            else isolated(*(f"process.{task.__name__}" for task in PROGRAMS.values()))
        )
        options = MaintenanceOptions(features={"where": WhereOptions(sampler=SAMPLER)})
        pool = self.pools.listening_pool(
            {"q": 12}, pipelines=tasks, packages=(slow_programs.__name__,), targets={TARGET: self.target},
            maintenance=options, heartbeat_sec=0.05,
        )  # fmt: skip
        release = Path(self.args["line_file"]).with_name(f"release-{isolation}")
        if isolation == "thread":  # the sampler runs: a program that holds the interpreter delays its start by seconds
            self.pools.wait_for_status(self.pools.add_job("stay", args={"file": str(release)}), Status.RUNNING)
        else:  # processes are forked quickly once the first one was
            warm = self.pools.add_job("process.sleep_in_loop", args={"sec": 0})
            self.pools.wait_for_status(warm, Status.SUCCEEDED)
        found = self._run_batch(isolation, [name for name in PROGRAMS if name not in ALONE])
        for name in ALONE:
            found |= self._run_batch(isolation, [name])
        release.touch()
        pool.stop(grace=10)
        return found

    def _run_batch(self, isolation: str, names: list[str]) -> dict[str, StoredAccount]:
        crossed = CrossedTransactions(self.target)
        with closing(psycopg2.connect(self.target, application_name="slow-holder")) as holder:
            holder.cursor().execute("UPDATE held SET amount = 1 WHERE id = 1")
            jobs = {
                name: self.pools.add_job(
                    f"{isolation}.{PROGRAMS[name].__name__}",
                    args=self.args | ({"sec": HOLDING_SEC} if name in HOLDING else {}),
                    max_attempts=1,
                )
                for name in names
            }
            if slow_programs.wait_for_row in [PROGRAMS[name] for name in names]:
                eventually(lambda: self._is_waiting(holder), 60, message="the row is waited for")
                released_at = time.monotonic() + SEC
                eventually(lambda: time.monotonic() > released_at, message="the lock was held for long enough")
        found = {name: self._account(job_id) for name, job_id in jobs.items()}
        crossed.stop()
        return found

    @staticmethod
    def _is_waiting(connection: Any) -> bool:
        cursor = connection.cursor()
        cursor.execute("SELECT pid FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))")
        return bool(cursor.fetchall())

    def _account(self, job_id: UUID) -> StoredAccount:
        accounts = Accounts(self.pools.queue_fixture.queue.executor)

        def ended() -> StoredAccount | None:
            found = accounts.of_job(job_id)
            return found[0] if found and found[0].ended_at is not None else None

        account = eventually(
            ended, 60, lambda: f"the account is written; the job is {self.pools.queue_fixture.job(job_id)}"
        )
        assert account is not None
        job = self.pools.queue_fixture.job(job_id)
        assert job.error is None
        return account


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    server = serve_peer()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def accounts(
    databases: Databases, peer: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], StoredAccount]]:
    folder: Path = tmp_path_factory.mktemp("slow")
    big_file = folder / "big"
    big_file.write_bytes(b"x" * 32 * 1024**2)
    with (
        databases.fresh() as dsn,
        databases.fresh(schema=False) as target,
        closing(__import__("socket").socket(2, 2)) as silent,
    ):
        silent.bind(("127.0.0.1", 0))
        execute_sql(
            target,
            "CREATE TABLE held AS SELECT 1 AS id, 0 AS amount",
            "CREATE TABLE crossed AS SELECT id, 0 AS amount FROM generate_series(1, 2) id",
            "CREATE TABLE sales AS SELECT id, id AS amount FROM generate_series(1, 100) id",
            "CREATE TABLE facts AS SELECT id, md5(id::text) AS code FROM generate_series(1, 30000) id",
            "CREATE TABLE slow (id int, amount int)",
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END'",
            "CREATE TRIGGER wait BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        args = {
            "sec": SEC, "url": peer, "big_file": str(big_file), "line_file": str(folder / "lines"),
            "silent_port": silent.getsockname()[1],
        }  # fmt: skip
        pools = WorkerPoolFixture(dsn)
        try:
            programs = SlowPrograms(pools, target, args)
            yield {
                (isolation, name): account
                for isolation in ("thread", "process")
                for name, account in programs.run(isolation).items()
            }
            assert pools.crashes == []
        finally:
            pools.close()


def named(name: str, account: StoredAccount) -> tuple[bool, bool, Cause | None]:
    """Whether the heaviest entry names the cause, and the place, but for what a busy machine adds to each program."""
    found = decode_entries(account.account["entries"])
    entries = [entry for entry in found if entry[0].kind not in ("start", "queued")]
    if not entries:
        return False, False, None
    cause = entries[0][0]
    kinds, words = CAUSES[name]
    return (
        cause.kind in kinds and words in cause.text,
        (cause.place or "").startswith(f"{PROGRAMS[name].__name__} in support/slow_programs.py:"),
        cause,
    )


def assigned_share(account: StoredAccount) -> float:
    return float(account.account["watched_sec"]) / account.wall_sec


def test_causes_and_places_are_named(accounts: dict[tuple[str, str], StoredAccount]):
    lines, counts = [], {"thread": 0, "process": 0}
    for (isolation, name), account in accounts.items():
        is_cause_named, is_place_named, cause = named(name, account)
        counts[isolation] += is_cause_named and is_place_named
        marks = ["yes" if is_cause_named else "NO", "yes" if is_place_named else "NO"]
        share, text = assigned_share(account), "" if cause is None else cause.text
        lines.append(f"| {name} | {isolation} | {' | '.join(marks)} | {share:.1%} | {text} |")
    sys.stdout.write("\n".join(lines) + "\n")

    assert min(counts.values()) >= MIN_NAMED, "\n".join(lines)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_time_is_assigned(accounts: dict[tuple[str, str], StoredAccount], isolation: str):
    found = {name: account for (of, name), account in accounts.items() if of == isolation}
    total = sum(account.wall_sec for account in found.values())
    watched = sum(float(account.account["watched_sec"]) for account in found.values())

    assert len(found) == len(PROGRAMS)
    assert MIN_ASSIGNED <= watched / total <= 1.01, {name: assigned_share(account) for name, account in found.items()}
