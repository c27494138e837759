"""How the LISTEN connection proves that notifications arrive, and that idle ones notify no process; none at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataloader.app.db.connection import Row, Session
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Exponential
from dataloader.workers import listener as listener_module
from dataloader.workers.claimer import Claimer
from dataloader.workers.listener import Listener, ListenMode, ListenState
from dataloader.workers.threads import WakeupPipe
from tests.support import eventually
from tests.support.queue_fixture import QueueFixture
from tests.support.recording import record_calls


@pytest.fixture
def wakeup() -> Iterator[WakeupPipe]:
    made = WakeupPipe()
    yield made
    made.close()


@pytest.fixture
def session(queue_db: QueueFixture) -> Session:
    return queue_db.new_session()


@pytest.fixture
def listener(session: Session) -> Listener:
    return Listener(session, heartbeat_sec=0.0)


def test_self_tests_of_an_idle_listener_notify_no_process(session, listener, wakeup, monkeypatch):
    sent: list[str] = []
    execute = session.execute_raw

    def record(sql: str) -> list[Row]:
        sent.append(sql)
        rows: list[Row] = execute(sql)
        return rows

    monkeypatch.setattr(session, "execute_raw", record)
    for _ in range(4):
        listener.listen(0.0, wakeup)

    assert listener.state is ListenState.LISTENING
    (channel,) = [sql.rpartition(" ")[2] for sql in sent if "LISTEN dl_jobs" in sql]
    assert [sql for sql in sent if "pg_notify" in sql] == [f"SELECT pg_notify('{channel}', '')"]
    assert len([sql for sql in sent if "pg_listening_channels" in sql]) == 3


def test_session_that_stopped_listening_is_found_and_replaced(queue_db, session, listener, wakeup, monkeypatch):
    """As behind a pooler that gives each transaction another session."""
    assert listener.listen(0.0, wakeup).reconnected
    session.execute_raw("UNLISTEN *")

    listener.listen(0.0, wakeup)
    assert listener.state.value == "unresponsive"

    monkeypatch.setattr(listener_module, "clock", lambda: clock() + 2.0)  # it connects no more often than once a second
    assert listener.listen(0.0, wakeup).reconnected
    queue_db.enqueue(queue="x")
    assert listener.listen(5.0, wakeup).queues == {"x"}
    assert listener.state.value == "listening"


def test_notification_that_comes_with_a_self_test_is_returned(queue_db, listener, wakeup):
    listener.listen(0.0, wakeup)
    queue_db.enqueue(queue="x")

    assert listener.listen(5.0, wakeup).queues == {"x"}


def test_without_listening_jobs_are_found_by_polling(worker_pools):
    pool = worker_pools.pool({"q": 1}, listen=ListenMode.OFF, claim_backoff_sec=0.3)
    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)
    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)

    # No INSERT notifies it; the maintenance leader may still notify a queue with waiting jobs, once a second.
    assert worker_pools.queue_fixture.sql("SELECT queue, needs_notification FROM dl_notify_state") == [("q", False)]
    assert pool.state().listener == "off"
    assert pool.state().consuming
    sessions = worker_pools.queue_fixture.fetch_row(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'dataloader-listen%%'"
    )
    assert int(sessions) == 0


def test_queue_is_polled_by_its_own_policy(worker_pools, monkeypatch):
    claims = record_calls(monkeypatch, Claimer, "claim")
    polls = {"q": Exponential(base=0.1, cap=0.4, jitter=0.0)}
    rare = worker_pools.add_job(queue="rare")
    pool = worker_pools.pool({"q": 1, "rare": 1}, listen=ListenMode.OFF, claim_backoff_sec=3600, polls=polls)
    worker_pools.wait_for_all([rare], timeout=20)  # by the first claim of the start
    eventually(lambda: [queue for _, queue, *_ in claims].count("q") >= 5, message="polls found nothing")

    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)

    assert pool.state().consuming
