"""The session locks of the keys: on a real connection, with attempts that run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import ClaimedJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.running_attempts import RunningAttempts
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually


@dataclass
class LockHolder:
    """The key locks of one process, and other sessions."""

    queue_db: QueueFixture
    session: Session
    keys: KeyLocks

    def attempt(self, key: str) -> Attempt:
        self.queue_db.enqueue(key)
        return Attempt(self.claimed(), claimed_at=clock(), settings=AttemptSettings())

    def claimed(self) -> ClaimedJob:
        (run,) = self.queue_db.claim()
        return run

    def pid(self) -> int:
        return int(self.session.execute_raw("SELECT pg_backend_pid()")[0][0])

    def cut(self) -> None:
        """The connection breaks, and its locks are gone."""
        self.queue_db.sql("SELECT pg_terminate_backend(%s)", self.pid())
        eventually(lambda: self.locks() == 0)

    def locks(self) -> int:
        return int(
            self.queue_db.fetch_row(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )


@pytest.fixture
def lock_holder(dsn: str) -> Iterator[LockHolder]:
    queue_db = QueueFixture(dsn)
    session = queue_db.new_session()
    yield LockHolder(queue_db, session, KeyLocks(session, JobQueue(session)))
    queue_db.close()


def test_key_is_locked_for_the_session_until_unlocked(lock_holder: LockHolder):
    one, other = lock_holder.attempt("one"), lock_holder.attempt("other")

    assert lock_holder.keys.lock([one, other]) == [one, other]
    assert lock_holder.locks() == 2
    lock_holder.keys.unlock([one])
    assert lock_holder.locks() == 1
    assert lock_holder.keys.hashes_of([one, other]) == [other.job.key_hash]


def test_key_locked_by_another_session_refuses_attempt(lock_holder: LockHolder):
    attempt = lock_holder.attempt("taken")
    lock_holder.queue_db.sql("SELECT pg_advisory_lock(hashtext('taken'))")

    assert lock_holder.keys.lock([attempt]) == []
    assert lock_holder.keys.hashes_of([attempt]) == []


def test_key_held_by_zombie_of_same_process_refuses_successor(lock_holder: LockHolder):
    zombie = lock_holder.attempt("k")
    lock_holder.keys.lock([zombie])
    lock_holder.queue_db.lose_attempt(zombie.job)
    successor = Attempt(lock_holder.claimed(), claimed_at=clock(), settings=AttemptSettings())

    assert lock_holder.keys.lock([successor]) == []
    lock_holder.keys.unlock([zombie])
    assert lock_holder.keys.lock([successor]) == [successor]


def test_attempt_that_lost_its_job_locks_nothing(lock_holder: LockHolder):
    attempt = lock_holder.attempt("k")
    lock_holder.queue_db.lose_attempt(attempt.job)

    assert lock_holder.keys.lock([attempt]) == []
    assert lock_holder.locks() == 0


def test_of_two_keys_with_one_hash_one_attempt_starts(lock_holder: LockHolder):
    one, other = lock_holder.queue_db.sql(
        "SELECT min(n), max(n) FROM generate_series(1, 400000) n"
        " GROUP BY hashtext('key ' || n) HAVING count(*) > 1 LIMIT 1"
    )[0]
    attempts = [lock_holder.attempt(f"key {n}") for n in (one, other)]
    assert attempts[0].job.key_hash == attempts[1].job.key_hash

    (started,) = lock_holder.keys.lock(attempts)
    lock_holder.keys.unlock([started])

    assert lock_holder.locks() == 0


def test_lost_connection_relocks_all_keys(lock_holder: LockHolder):
    attempts = [lock_holder.attempt(key) for key in "abc"]
    lock_holder.keys.lock(attempts)
    lock_holder.cut()
    with pytest.raises(DatabaseUnavailable):
        lock_holder.session.execute_raw("SELECT 1")

    assert lock_holder.keys.hashes_of(attempts) == [], "they are not held now"
    lock_holder.keys.relock_all()

    assert lock_holder.locks() == 3
    assert lock_holder.keys.hashes_of(attempts) == [attempt.job.key_hash for attempt in attempts]
    assert [attempt.stop_reason for attempt in attempts] == [None, None, None]


def test_session_the_server_still_holds_keeps_no_key(dsn: str):
    """After a timeout the server continues with the statement, and its session keeps the locks."""
    queue_db = QueueFixture(dsn)
    session = queue_db.new_session(application_name="dataloader-claim:it", command_timeout_sec=1)
    lock_holder = LockHolder(queue_db, session, KeyLocks(session, JobQueue(session)))
    attempt = lock_holder.attempt("k")
    lock_holder.keys.lock([attempt])
    former_pid = lock_holder.pid()
    session.execute_raw("SET statement_timeout = 0")
    with pytest.raises(DatabaseUnavailable):
        session.execute_raw("SELECT pg_sleep(60)")
    assert queue_db.fetch_row("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", former_pid) == 1

    lock_holder.keys.relock_all()

    assert (attempt.stop_reason, lock_holder.locks()) == (None, 1)
    assert lock_holder.keys.hashes_of([attempt]) == [attempt.job.key_hash]
    queue_db.close()


def test_attempt_is_stopped_if_its_key_cannot_be_relocked(lock_holder: LockHolder, logged):
    robbed, other = lock_holder.attempt("robbed"), lock_holder.attempt("other")
    lock_holder.keys.lock([robbed, other])
    lock_holder.cut()
    lock_holder.queue_db.sql("SELECT pg_advisory_lock(hashtext('robbed'))")
    with pytest.raises(DatabaseUnavailable):
        lock_holder.session.execute_raw("SELECT 1")

    lock_holder.keys.relock_all()

    assert robbed.stop_reason is not None
    assert other.stop_reason is None
    assert [line["lock_key"] for line in logged("key_lock.lost")] == ["robbed"]


def warnings(lock_holder: LockHolder) -> list[str]:
    """What the server has warned the present connection of since `warn`."""
    assert lock_holder.session._connection is not None
    return [notice for notice in lock_holder.session._connection.notices if "WARNING" in notice]


def test_key_lost_with_its_connection_is_not_given_back(lock_holder: LockHolder):
    """The server would log a warning for each: "you don't own a lock of type ExclusiveLock"."""
    lost, kept = lock_holder.attempt("lost"), lock_holder.attempt("kept")
    lock_holder.keys.lock([lost, kept])
    lock_holder.cut()
    lock_holder.queue_db.sql("SELECT pg_advisory_lock(hashtext('lost'))")
    with pytest.raises(DatabaseUnavailable):
        lock_holder.session.execute_raw("SELECT 1")
    lock_holder.keys.relock_all()
    lock_holder.session.execute_raw("SET client_min_messages = warning")

    assert lock_holder.keys.hashes_of([lost, kept]) == [kept.job.key_hash]
    lock_holder.keys.unlock([lost, kept])
    assert warnings(lock_holder) == []
    lock_holder.session.execute("unlock_keys", {"key_hashes": "{1}"})
    assert len(warnings(lock_holder)) == 1, "warnings are seen"


def test_locking_on_a_new_connection_relocks_the_old_keys(lock_holder: LockHolder):
    first = lock_holder.attempt("first")
    lock_holder.keys.lock([first])
    lock_holder.session.close()
    eventually(lambda: lock_holder.locks() == 0)

    lock_holder.keys.lock([lock_holder.attempt("second")])

    assert lock_holder.locks() == 2


def test_giving_back_on_a_broken_connection_forgets_the_keys(lock_holder: LockHolder):
    attempt = lock_holder.attempt("k")
    lock_holder.keys.lock([attempt])
    lock_holder.cut()

    lock_holder.keys.unlock([attempt])

    assert lock_holder.keys.lock([attempt]) == [attempt]
    assert lock_holder.locks() == 1


def test_while_the_database_is_away_no_run_may_start(lock_holder: LockHolder, empty_dsn: str):
    attempt = lock_holder.attempt("k")
    nowhere = Session(empty_dsn + " port=1", application_name="nowhere", connect_timeout_sec=0.5)
    keys = KeyLocks(nowhere, JobQueue(nowhere))

    with pytest.raises(DatabaseUnavailable):
        keys.lock([attempt])

    assert keys.hashes_of([attempt]) == []


def test_running_attempt_is_listed_until_removed(lock_holder: LockHolder):
    roster, attempt = RunningAttempts(), lock_holder.attempt("k")

    roster.add([attempt])
    assert (roster.get(attempt.job.run_id), len(roster), roster.all()) == (attempt, 1, [attempt])
    roster.remove([attempt])
    roster.remove([attempt])
    assert (roster.get(attempt.job.run_id), len(roster), roster.all()) == (None, 0, [])


def test_lost_lease_replaces_first_stop_reason(lock_holder: LockHolder):
    attempt = lock_holder.attempt("k")

    reasons = []
    for reason in (StopReason.CANCEL, StopReason.SHUTDOWN, StopReason.LEASE_LOST):
        attempt.stop(reason)
        reasons.append(attempt.stop_reason)

    assert reasons == [StopReason.CANCEL, StopReason.CANCEL, StopReason.LEASE_LOST]
