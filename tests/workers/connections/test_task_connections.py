"""What a run writes through its own connections, and that it cannot once the job is someone else's."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from uuid import uuid4

import psycopg2
import pytest
from psycopg2 import extensions as ext

from dataloader.app.errors import AttemptLost, UnknownTarget
from dataloader.app.queue import attempt_sessions
from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name, end_sessions
from dataloader.app.queue.job import ClaimedJob, NewJob, Settlement, Status
from dataloader.app.queue.parameters import settle_parameters
from dataloader.workers.connections.task_connections import TaskConnections, is_connection_loss
from tests.support import eventually
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall, QueueFixture


def count_sessions(queue_db: QueueFixture, job: ClaimedJob, condition: str = "") -> int:
    query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = %s {condition}"
    return int(queue_db.fetch_row(query, attempt_application_name(job.id, job.run_id)))


@pytest.fixture
def connection_settings(queue_db):
    return ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={"here": queue_db.dsn})


@pytest.fixture
def run(queue_db, connection_settings):
    """A claimed job, and the effects of its run."""
    queue_db.sql("CREATE TABLE IF NOT EXISTS witness (said text); TRUNCATE witness")
    queue_db.enqueue("key")
    (job,) = queue_db.claim()
    effects = TaskConnections(connection_settings, job.id, job.run_id)
    yield job, effects
    effects.close()


def logged(queue_db):
    return [row[0] for row in queue_db.sql("SELECT said FROM witness ORDER BY 1")]


def write(connection, text):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO witness VALUES (%s)", (text,))


def none():
    return None


def success(job, result):
    end = Settlement(Status.SUCCEEDED, result=result)
    return settle_parameters([(job.id, job.run_id, job.key_hash, end)], max_result_bytes=1000)


def take_away(queue_db, job):
    queue_db.expire_lease(job.id)
    queue_db.queue.reap([(job.id, job.run_id, job.lock_key)], pause_sec=0)


def test_writes_and_checkpoint_commit_together(queue_db, run):
    job, effects = run
    with effects.transaction(checkpoint=lambda: {"at": 5}, final=None) as connection:
        write(connection, "a")

    assert logged(queue_db) == ["a"]
    assert queue_db.job(job.id).checkpoint == {"at": 5}


def test_an_error_within_takes_everything_back(queue_db, run):
    job, effects = run
    with (
        pytest.raises(ValueError, match="no"),
        effects.transaction(checkpoint=lambda: 1, final=None) as connection,
    ):
        write(connection, "a")
        raise ValueError("no")
    with effects.transaction(checkpoint=none, final=None) as connection:
        write(connection, "b")

    assert logged(queue_db) == ["b"]
    assert queue_db.job(job.id).checkpoint is None


@pytest.mark.parametrize("checkpoint", [None, {"at": 1}])
def test_a_run_that_lost_its_job_cannot_commit(queue_db, run, checkpoint):
    job, effects = run
    with (
        pytest.raises(AttemptLost),
        effects.transaction(checkpoint=lambda: checkpoint, final=None) as connection,
    ):
        write(connection, "a zombie's")
        take_away(queue_db, job)

    assert logged(queue_db) == []
    assert queue_db.job(job.id).checkpoint is None


def test_a_run_that_lost_its_job_cannot_end_it(queue_db, run):
    job, effects = run
    with pytest.raises(AttemptLost), effects.transaction(checkpoint=none, final=lambda: success(job, 1)) as connection:
        write(connection, "a zombie's")
        take_away(queue_db, job)

    assert logged(queue_db) == []
    assert queue_db.job(job.id).status is Status.QUEUED
    assert not effects.settled


def test_the_last_writes_and_the_success_are_one(queue_db, run):
    job, effects = run
    with effects.transaction(checkpoint=none, final=lambda: success(job, {"rows": 3})) as connection:
        write(connection, "a")
        assert queue_db.job(job.id).status is Status.RUNNING

    assert queue_db.job(job.id).status is Status.SUCCEEDED
    assert queue_db.job(job.id).result == {"rows": 3}
    assert effects.settled


def test_a_follow_up_is_there_only_if_the_transaction_is(queue_db, run):
    _, effects = run
    new = NewJob(queue="q", task="next", lock_key="n", idempotency_key="follow")
    with (
        pytest.raises(ValueError, match="no"),
        effects.transaction(checkpoint=none, final=None),
    ):
        effects.enqueue(new)
        raise ValueError("no")
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE task = 'next'") == 0

    with effects.transaction(checkpoint=none, final=None):
        first = effects.enqueue(new)
    second = effects.enqueue(new)

    assert (first.created, second.created) == (True, False)
    assert first.job_id == second.job_id


def test_transactions_do_not_nest(run):
    _, effects = run
    with (
        effects.transaction(checkpoint=none, final=None),
        pytest.raises(RuntimeError, match="do not nest"),
        effects.transaction(checkpoint=none, final=None),
    ):
        pass


def test_a_lost_connection_is_replaced_for_the_next_transaction(queue_db, run, connection_settings):
    job, effects = run
    with effects.transaction(checkpoint=none, final=None) as connection:
        write(connection, "a")
    end_sessions(attempt_sessions.server_dsns(connection_settings), [attempt_application_name(job.id, job.run_id)])
    with pytest.raises(psycopg2.Error), effects.transaction(checkpoint=none, final=None) as connection:
        write(connection, "b")
    with effects.transaction(checkpoint=none, final=None) as connection:
        write(connection, "c")

    assert logged(queue_db) == ["a", "c"]


def test_sessions_carry_the_job_and_can_be_cancelled_and_ended(queue_db, run):
    job, effects = run
    connection = effects.connect("here")

    assert connection.info.dsn_parameters["application_name"] == attempt_application_name(job.id, job.run_id)
    assert effects.in_use
    assert effects.cancel() == 1
    assert effects.terminate().ended == 1
    eventually(lambda: not count_sessions(queue_db, job))
    with pytest.raises(psycopg2.Error):
        connection.cursor().execute("SELECT 1")


def test_closing_leaves_no_session(queue_db, run):
    job, effects = run
    effects.connect("here").cursor().execute("SELECT 1")
    with effects.transaction(checkpoint=none, final=None):
        pass
    effects.close()

    assert not effects.in_use
    eventually(lambda: not count_sessions(queue_db, job))


def test_an_unknown_target_is_named_with_those_there_are(run):
    effects = TaskConnections(
        ConnectionSettings(dsn="", schema="public", targets={"here": "host=/nowhere"}), uuid4(), uuid4()
    )
    with pytest.raises(UnknownTarget, match="no target 'elsewhere' among here; name it in DL_TARGETS, such as {"):
        effects.connect("elsewhere")


def test_unnamed_target_is_the_queue_database(queue_db):
    for name in ("default", "any"):
        effects = TaskConnections(ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={}), uuid4(), uuid4())
        cursor = effects.connect(name).cursor()
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone() == (queue_db.fetch_row("SELECT current_database()"),)
        effects.close()


def test_stopping_absent_server_signals_no_process():
    effects = TaskConnections(ConnectionSettings(dsn="host=/nowhere", schema="public", targets={}), uuid4(), uuid4())

    assert (effects.cancel(), effects.terminate().ended, effects.in_use) == (0, 0, False)


# ── commits that no one learned of ───────────────────────────────────────────────────────────────────────────────────


def cut_after_commit(effects):
    """As when the server is restarted the moment it has committed: the answer is lost."""

    class Lossy(type(effects._open_queue_connection())):  # type: ignore[misc]
        def commit(self):
            super().commit()
            raise psycopg2.OperationalError("server closed the connection unexpectedly")

    effects._queue_connection.close()
    effects._queue_connection = effects._connect(effects._connection_settings.dsn, Lossy)


def test_last_commit_with_lost_answer_is_found_and_kept(queue_db, run):
    job, effects = run
    cut_after_commit(effects)
    with (
        pytest.raises(psycopg2.OperationalError),
        effects.transaction(checkpoint=none, final=lambda: success(job, 1)) as connection,
    ):
        write(connection, "once")
    (fate,) = queue_db.queue.settle([(job, Settlement(Status.QUEUED, error="lost the connection"))])

    assert (fate.outcome, fate.status) == ("already", Status.SUCCEEDED)
    assert queue_db.job(job.id).result == 1
    assert logged(queue_db) == ["once"]


def test_pipeline_repeating_its_last_transaction_succeeds(queue_db, run):
    job, effects = run
    cut_after_commit(effects)
    for again in (False, True):
        try:
            with effects.transaction(checkpoint=none, final=lambda: success(job, 1)) as connection:
                write(connection, "once")
        except psycopg2.OperationalError:
            assert not again
            connection.close()

    assert effects.settled
    assert logged(queue_db) == ["once"]


# ── what a pipeline may do with its connection ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "beside",
    [
        lambda c: c.commit(),
        lambda c: setattr(c, "autocommit", True),
        lambda c: c.set_session(autocommit=True),
        lambda c: c.set_isolation_level(0),
    ],
)
def test_nothing_is_committed_outside_the_fence(queue_db, run, beside):
    _, effects = run
    with (
        pytest.raises(RuntimeError, match="it commits at the end"),
        effects.transaction(checkpoint=none, final=None) as connection,
    ):
        beside(connection)

    assert logged(queue_db) == []


def test_session_changes_do_not_reach_next_transaction(queue_db, run):
    _, effects = run
    with effects.transaction(checkpoint=none, final=None) as connection:
        pass
    connection.set_isolation_level(0)
    connection.autocommit = True
    with pytest.raises(ValueError, match="no"), effects.transaction(checkpoint=none, final=None) as same:
        write(same, "a")
        raise ValueError("no")
    write(connection, "beside")
    with effects.transaction(checkpoint=none, final=None) as same:
        write(same, "b")

    assert same is connection
    assert logged(queue_db) == ["b"]


def test_a_transaction_with_a_failed_statement_says_so(run):
    _, effects = run
    with (
        pytest.raises(RuntimeError, match="a statement of this transaction has failed"),
        effects.transaction(checkpoint=none, final=None) as connection,
        suppress(psycopg2.Error),
    ):
        connection.cursor().execute("SELECT 1/0")


def test_the_fence_is_found_whatever_the_search_path(queue_db, run):
    _, effects = run
    with effects.transaction(checkpoint=lambda: 3, final=None) as connection:
        connection.cursor().execute("SET search_path = pg_catalog")

    assert effects.enqueue(NewJob(queue="q", task="next", lock_key="n")).created


# ── servers that watch their clients ───────────────────────────────────────────────────────────────────────────────


def setting(connection, name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", (name,))
        return cursor.fetchone()[0]


def test_session_watches_its_client_even_after_a_rollback(run):
    _, effects = run
    with pytest.raises(ValueError, match="no"), effects.transaction(checkpoint=none, final=None) as home:
        raise ValueError("no")
    target = effects.connect("here")
    target.rollback()

    for connection in (home, target):
        assert setting(connection, "client_connection_check_interval") == "2s"
        assert not connection.autocommit


def test_server_that_refuses_the_check_is_done_without_it(monkeypatch, queue_db, run):
    job, _ = run
    refused = []
    monkeypatch.setattr(
        "dataloader.workers.connections.task_connections._SET_CLIENT_CHECK", "SET no_such_setting = '2s'"
    )
    places = ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={"here": queue_db.dsn})
    effects = TaskConnections(
        places, job.id, job.run_id, on_check_refused=lambda target, error: refused.append((target, error))
    )

    effects.connect("here").cursor().execute("SELECT 1")
    effects.close()

    assert refused == [("here", 'unrecognized configuration parameter "no_such_setting"')]


def test_statement_of_a_broken_connection_is_gone_after_close(monkeypatch, queue_db, run):
    """Its pipeline has even closed it: the server continues until it is made to end."""
    job, effects = run
    monkeypatch.setattr(
        "dataloader.workers.connections.task_connections._SET_CLIENT_CHECK", "SELECT 1"
    )  # else that would end it, a moment later
    connection = effects.connect("here")
    statement = BackgroundCall(connection.cursor().execute, "SELECT pg_sleep(60)")
    eventually(lambda: count_sessions(queue_db, job, "AND wait_event = 'PgSleep'"))
    with socket.socket(fileno=socket.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
    with pytest.raises(psycopg2.Error):
        statement.result()
    connection.close()
    assert count_sessions(queue_db, job) == 1

    assert effects.close().ended == 1

    assert count_sessions(queue_db, job) == 0


# ── stopping what is at work ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_seen", [True, False], ids=["", "begins-just-then"])
def test_session_of_abandoned_thread_does_not_delay_exit(queue_db, run, monkeypatch, is_seen):
    job, effects = run
    if not is_seen:
        monkeypatch.setattr("dataloader.workers.connections.task_connections._is_active", lambda connection: False)
    connection = effects.connect("here")
    broken = []

    def ask():
        try:
            connection.cursor().execute("SELECT pg_sleep(60)")
        except psycopg2.Error as error:
            broken.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: connection.info.transaction_status == ext.TRANSACTION_STATUS_ACTIVE)
    effects.close()
    thread.join(20)

    assert broken
    eventually(lambda: not count_sessions(queue_db, job))


def test_the_sessions_of_another_run_of_the_job_are_spared(run, connection_settings):
    job, effects = run
    successor = TaskConnections(connection_settings, job.id, uuid4())
    theirs = successor.connect("here")
    effects.connect("here")

    servers = attempt_sessions.server_dsns(connection_settings)
    assert end_sessions(servers, [attempt_application_name(job.id, job.run_id)]).ended >= 1
    theirs.cursor().execute("SELECT 1")
    successor.close()


def test_silent_server_times_out(monkeypatch, queue_db, run):
    job, _ = run
    monkeypatch.setattr("dataloader.workers.connections.task_connections._SIGNAL_TIMEOUT_SEC", 0.1)
    with SilentProxy(queue_db.dsn) as proxy:
        settings = ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={"here": proxy.dsn})
        effects = TaskConnections(settings, job.id, job.run_id)
        effects.connect("here")
        proxy.silence()  # it takes the connection, and that is all

        assert effects.cancel() == 0
    effects.close()


@pytest.mark.parametrize(
    ("error", "broke"),
    [(psycopg2.OperationalError("gone"), True), (psycopg2.DataError("odd"), False), (OSError(), False)],
)
def test_broken_connection_differs_from_other_errors(error, broke):
    assert is_connection_loss(error) is broke
