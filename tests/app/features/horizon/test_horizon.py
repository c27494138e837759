"""Who holds the horizon: what is read of real holders, and what doctor, the metrics and the overview show of them."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.acts.findings import Finding, Severity
from dataloader.app.db.pool import Pool
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts, Transaction
from dataloader.app.features.doctor.queue import check_transactions
from dataloader.app.features.horizon import rows
from dataloader.app.features.horizon.checks import check_horizon
from dataloader.app.features.horizon.feature import FEATURE
from dataloader.app.features.horizon.metrics import horizon_metrics
from dataloader.app.features.horizon.notes import horizon_notes
from dataloader.app.features.horizon.rows import LONG_AGE_TRANSACTIONS, Holder, HolderKind, Horizon
from dataloader.app.features.horizon.sentences import describe_holder
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import Pipelines
from tests.app.features.horizon.walsender import send_feedback
from tests.support.databases import another_role, execute_sql
from tests.support.private_server import copy_data_dir
from tests.support.queue_fixture import QueueFixture
from tests.support.remedies import run_remedy
from tests.support.waiting import eventually

_ROLE = "plain_reader"
_WORKER_ID = UUID(int=7)
_SNAPSHOT = ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
_WRITE = ("BEGIN", "SELECT pg_current_xact_id()")


@pytest.fixture(scope="module")
def own_server(run_folder: Path, ready_made: Path, postgres_binaries: Choice) -> Iterator[str]:
    """A server without other sessions, which would hold its horizon too, and an ordinary role on it."""
    folder = copy_data_dir(ready_made, Path(tempfile.mkdtemp(prefix="horizon-", dir=run_folder)))
    settings = {"max_prepared_transactions": "2", "fsync": "off", "autovacuum": "off"}
    with (
        EmbeddedServer(folder, binaries=postgres_binaries, settings=settings) as server,
        another_role(server.dsn, _ROLE),
    ):
        execute_sql(server.dsn, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {_ROLE}", "CREATE DATABASE other")
        yield server.dsn
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def queue_db(own_server: str) -> Iterator[QueueFixture]:
    made = QueueFixture(own_server)
    made.sql("DELETE FROM dl_jobs; DELETE FROM dl_workers")
    yield made
    made.close()


@pytest.fixture
def pool(own_server: str) -> Iterator[Pool]:
    made = Pool(own_server, size=2)
    yield made
    made.close()


@pytest.fixture
def plain_pool(own_server: str) -> Iterator[Pool]:
    made = Pool(make_dsn(own_server, user=_ROLE, password="x"), size=1)
    yield made
    made.close()


@contextmanager
def held_session(dsn: str, *statements: str, **parameters: str) -> Iterator[int]:
    """Its transaction is open until the block ends. Yields the pid."""
    with closing(psycopg2.connect(make_dsn(dsn, **parameters))) as session, session.cursor() as cursor:
        session.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        yield session.info.backend_pid


@contextmanager
def prepared_transaction(dsn: str, gid: str) -> Iterator[None]:
    literal = "'" + gid.replace("'", "''") + "'"
    with held_session(dsn, *_WRITE, f"PREPARE TRANSACTION {literal}"):
        pass
    try:
        yield
    finally:
        with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
            session.autocommit = True
            cursor.execute("SELECT gid FROM pg_prepared_xacts")
            if cursor.fetchall():
                cursor.execute(f"ROLLBACK PREPARED {literal}")


@contextmanager
def attempt_session(queue_db: QueueFixture, *, has_ended: bool = False) -> Iterator[str]:
    run = queue_db.enqueue_and_claim("k", task="load.orders")
    name = attempt_application_name(run.id, run.run_id)
    with held_session(queue_db.dsn, *_WRITE, application_name=name):
        if has_ended:
            queue_db.settle(run)
        yield str(run.id)


@contextmanager
def worker_session(queue_db: QueueFixture) -> Iterator[None]:
    info = WorkerInfo(_WORKER_ID, "host:7", "1", ("q",), ("t",), 1)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    with held_session(queue_db.dsn, *_SNAPSHOT, application_name=f"dataloader-settle:{_WORKER_ID}"):
        yield


Opener = Callable[[QueueFixture], AbstractContextManager[Any]]
_HOLDERS: list[tuple[str, Opener, HolderKind, str]] = [
    (
        "write",
        lambda db: held_session(db.dsn, *_WRITE, application_name="console"),
        HolderKind.TRANSACTION,
        "a transaction of console (user dataloader, pid {pid}, idle in transaction) has been open for",
    ),
    (
        "snapshot",
        lambda db: held_session(db.dsn, *_SNAPSHOT, application_name="dump"),
        HolderKind.TRANSACTION,
        "a transaction of dump (user dataloader, pid {pid}, idle in transaction) has been open for",
    ),
    (
        "write in another database",
        lambda db: held_session(db.dsn, *_WRITE, dbname="other", application_name="console"),
        HolderKind.TRANSACTION,
        "a transaction of console (user dataloader, pid {pid}, idle in transaction, database other) has been open for",
    ),
    ("job", attempt_session, HolderKind.TRANSACTION, "the transaction of job {job} (load.orders, attempt 1) has been"),
    (
        "job that has ended",
        lambda db: attempt_session(db, has_ended=True),
        HolderKind.TRANSACTION,
        "the transaction of job {job} (load.orders, an attempt that has ended) has been open",
    ),
    (
        "worker",
        worker_session,
        HolderKind.TRANSACTION,
        "a transaction of the worker process host:7 (dataloader-settle, pid {pid}, idle in transaction) has been open",
    ),
    (
        "prepared",
        lambda db: prepared_transaction(db.dsn, "forgotten"),
        HolderKind.PREPARED,
        "the prepared transaction 'forgotten' (user dataloader) has been open for",
    ),
    (
        "standby",
        lambda db: send_feedback(db.dsn),
        HolderKind.STANDBY,
        "a query on the standby standby-1 (user dataloader, pid {pid}) needs the rows of 3 transactions ago",
    ),
]


@pytest.mark.parametrize(("opener", "kind", "sentence"), [case[1:] for case in _HOLDERS], ids=[c[0] for c in _HOLDERS])
def test_holder_is_named_to_any_role(queue_db, pool, plain_pool, opener, kind, sentence):
    with opener(queue_db) as opened:
        execute_sql(queue_db.dsn, *["SELECT pg_current_xact_id()"] * 3)
        (holder,) = eventually(lambda: Horizon(pool).holders())
        (seen_by_plain_role,) = Horizon(plain_pool).holders()

    note = describe_holder(holder)
    assert holder.kind is kind
    assert holder.transactions >= 3
    assert sentence.format(pid=holder.pid, job=opened) in note.text
    assert (holder.age_sec is None) == (kind is HolderKind.STANDBY)
    assert seen_by_plain_role.kind is kind
    assert seen_by_plain_role.job_id == holder.job_id == (opened if "{job}" in sentence else None)
    if kind is HolderKind.TRANSACTION:
        assert seen_by_plain_role.age_sec is None
        assert "transactions (this role may not see since when)" in describe_holder(seen_by_plain_role).text


def test_slot_whose_standby_has_gone_is_a_holder(queue_db, pool, monkeypatch):
    monkeypatch.setattr(rows, "LONG_AGE_TRANSACTIONS", 0)
    execute_sql(queue_db.dsn, "SELECT pg_create_physical_replication_slot('backup', true)")
    with send_feedback(queue_db.dsn, slot="backup"):
        (held,) = eventually(lambda: Horizon(pool).holders())
    (left,) = eventually(lambda: [holder for holder in Horizon(pool).holders() if holder.state == "inactive"])
    (finding,) = check_horizon(pool)

    run_remedy(queue_db.dsn, finding.remedy)

    assert (held.kind, held.name, held.state, held.age_sec) == (HolderKind.SLOT, "backup", "active", None)
    assert left.transactions == held.transactions
    assert finding.message.startswith("the replication slot backup (inactive) needs the rows of ")
    assert Horizon(pool).holders() == []


def test_only_what_delays_vacuum_here_is_a_holder(queue_db, pool):
    with ExitStack() as sessions:
        sessions.enter_context(held_session(queue_db.dsn, *_SNAPSHOT, dbname="other"))
        sessions.enter_context(held_session(queue_db.dsn, "BEGIN", "SELECT 1"))  # its snapshot has ended
        assert Horizon(pool).holders() == []

        sessions.enter_context(held_session(queue_db.dsn, *_WRITE, application_name="first"))
        execute_sql(queue_db.dsn, "SELECT pg_current_xact_id()")
        sessions.enter_context(held_session(queue_db.dsn, *_WRITE, application_name="second"))
        sessions.enter_context(held_session(queue_db.dsn, *_SNAPSHOT, application_name="follows"))
        sessions.enter_context(prepared_transaction(queue_db.dsn, "third"))
        found = Horizon(pool).holders()

    assert [(holder.kind, holder.name) for holder in found] == [("transaction", "first"), ("prepared", "third")]


def test_snapshot_outlives_the_transaction_that_it_follows(queue_db, pool):
    with ExitStack() as sessions:
        with held_session(queue_db.dsn, *_WRITE):
            sessions.enter_context(held_session(queue_db.dsn, *_SNAPSHOT, application_name="follows"))
        eventually(lambda: [holder.name for holder in Horizon(pool).holders()] == ["follows"])


def test_metrics_have_each_kind_of_holder(queue_db, pool, plain_pool):
    without = read_metrics(pool)
    with held_session(queue_db.dsn, *_WRITE):
        execute_sql(queue_db.dsn, *["SELECT pg_current_xact_id()"] * 3)
        held, hidden = read_metrics(pool), read_metrics(plain_pool)

    seconds, transactions = "dataloader_horizon_age_seconds", "dataloader_horizon_age_transactions"
    assert without == {
        seconds: {"transaction": 0, "prepared": 0},
        transactions: {"transaction": 0, "prepared": 0, "slot": 0, "standby": 0},
    }
    assert held[seconds]["transaction"] > 0
    assert held[transactions] == {**without[transactions], "transaction": 4}
    assert math.isnan(hidden[seconds]["transaction"])
    assert hidden[transactions] == held[transactions]


def test_doctor_informs_of_long_holders(queue_db, pool, monkeypatch):
    with held_session(queue_db.dsn, *_WRITE) as pid, prepared_transaction(queue_db.dsn, "it's"):
        (short,) = find_horizon(queue_db.dsn, pool)
        monkeypatch.setattr(rows, "LONG_AGE_SEC", 0.0)
        first, second = find_horizon(queue_db.dsn, pool)
        run_remedy(queue_db.dsn, first.remedy)
        run_remedy(queue_db.dsn, second.remedy)
        eventually(lambda: Horizon(pool).holders() == [])

    assert short.severity is Severity.OK
    assert [(finding.severity, finding.facts["kind"]) for finding in (first, second)] == [
        (Severity.INFO, "transaction"),
        (Severity.INFO, "prepared"),
    ]
    assert first.remedy.startswith(f"SELECT pg_terminate_backend({pid}); only if the queue gets slower")


def test_overview_has_a_line_that_is_no_problem(queue_db, pool, monkeypatch):
    with attempt_session(queue_db) as job_id:
        assert list(horizon_notes(pool)) == []
        monkeypatch.setattr(rows, "LONG_AGE_SEC", 0.0)
        client = create_app(JobQueue(pool), Pipelines(), WebOptions(version="1"), pool=pool).test_client()
        page = client.get("/").text

    line = page[page.index("The transaction of job") :].partition("</p>")[0]
    assert f'href="/jobs/{job_id}"' in line
    assert " (load.orders, attempt 1) has been open for " in line
    assert page.count('<li class="alert">') == 1  # that no worker lives
    assert '<li class="warning">' not in page


def test_role_without_rights_to_the_views_sees_nothing(queue_db, pool, plain_pool):
    execute_sql(queue_db.dsn, "REVOKE SELECT ON pg_stat_activity FROM PUBLIC")
    try:
        with held_session(queue_db.dsn, *_WRITE):
            assert Horizon(plain_pool).holders() == []
            assert Horizon(pool).holders() != []
    finally:
        execute_sql(queue_db.dsn, "GRANT SELECT ON pg_stat_activity TO PUBLIC")


_SLOT = Holder(HolderKind.SLOT, "s", "", "active", None, None, None, LONG_AGE_TRANSACTIONS)


@pytest.mark.parametrize(
    ("holder", "is_long", "sentence"),
    [
        (_SLOT, True, "the replication slot s (active) needs the rows of 10,000 transactions ago"),
        (replace(_SLOT, transactions=9_999), False, "the replication slot s (active) needs the rows of 9,999 "),
        (
            replace(_SLOT, kind=HolderKind.TRANSACTION, name="", state="", age_sec=7835.0, transactions=1),
            True,
            "a transaction of a process of the server has been open for 2 h 10 min; until it ends, vacuum",
        ),
        (
            replace(_SLOT, kind=HolderKind.TRANSACTION, name="", owner="ann", state="", age_sec=599.0),
            False,
            "a transaction of a session without a name (user ann) has been open for 9 min;",
        ),
    ],
)
def test_age_decides_whether_people_are_to_know(holder, is_long, sentence):
    assert holder.is_long is is_long
    assert describe_holder(holder).text.startswith(sentence)


def test_long_transaction_of_a_job_is_no_warning_of_doctor():
    transaction = Transaction("1", attempt_application_name(uuid4(), uuid4()), "etl", "active", 9e3, "DELETE", True)

    (of_job,) = check_transactions([transaction])
    (of_others,) = check_transactions([replace(transaction, name="psql")])

    assert (of_job.severity, of_others.severity) == (Severity.INFO, Severity.WARNING)


def find_horizon(dsn: str, pool: Pool) -> list[Finding]:
    found = run_checks(DatabaseFacts(pool), Connections(dsn, None, 5.0, 16), [FEATURE])
    return [finding for finding in found if finding.check == "horizon"]


def read_metrics(pool: Pool) -> dict[str, dict[str, float]]:
    return {
        family.name: {sample.labels["holder"]: sample.value for sample in family.samples}
        for family in horizon_metrics(pool)
    }
