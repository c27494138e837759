"""The session locks of the keys: on a real connection, with attempts that run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from app.db.connection import Session
from app.errors import DatabaseUnavailable
from app.queue.job import ClaimedJob
from app.queue.jobs import JobQueue
from pipelines.contract import StopReason
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from workers.attempt import Attempt, RunningAttempts
from workers.claimer import KeyLocks
from workers.threads import clock


@dataclass
class Office:
    """The keys of one process, and a desk beside it."""

    desk: QueueFixture
    session: Session
    keys: KeyLocks

    def attempt(self, key: str) -> Attempt:
        self.desk.enqueue(key)
        return Attempt(self._claimed(), claimed_at=clock())

    def _claimed(self) -> ClaimedJob:
        (run,) = self.desk.claim()
        return run

    def pid(self) -> int:
        return int(self.session.execute_raw("SELECT pg_backend_pid()")[0][0])

    def cut(self) -> None:
        """The connection breaks, and its locks are gone."""
        self.desk.sql("SELECT pg_terminate_backend(%s)", self.pid())
        eventually(lambda: self.locks() == 0)

    def locks(self) -> int:
        return int(
            self.desk.fetch_row(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )


@pytest.fixture
def office(dsn: str) -> Iterator[Office]:
    desk = QueueFixture(dsn)
    session = desk.new_session()
    yield Office(desk, session, KeyLocks(session, JobQueue(session)))
    desk.close()


def test_key_is_locked_for_the_session_until_unlocked(office: Office):
    one, other = office.attempt("one"), office.attempt("other")

    assert office.keys.lock([one, other]) == [one, other]
    assert office.locks() == 2
    office.keys.unlock([one])
    assert office.locks() == 1
    assert office.keys.hashes_of([one, other]) == [other.job.key_hash]


def test_key_locked_by_another_session_refuses_attempt(office: Office):
    attempt = office.attempt("taken")
    office.desk.sql("SELECT pg_advisory_lock(hashtext('taken'))")

    assert office.keys.lock([attempt]) == []
    assert office.keys.hashes_of([attempt]) == []


def test_key_held_by_zombie_of_same_process_refuses_successor(office: Office):
    zombie = office.attempt("k")
    office.keys.lock([zombie])
    office.desk.lose_attempt(zombie.job)
    successor = Attempt(office._claimed(), claimed_at=clock())

    assert office.keys.lock([successor]) == []
    office.keys.unlock([zombie])
    assert office.keys.lock([successor]) == [successor]


def test_attempt_that_lost_its_job_locks_nothing(office: Office):
    attempt = office.attempt("k")
    office.desk.lose_attempt(attempt.job)

    assert office.keys.lock([attempt]) == []
    assert office.locks() == 0


def test_of_two_keys_with_one_hash_one_attempt_starts(office: Office):
    one, other = office.desk.sql(
        "SELECT min(n), max(n) FROM generate_series(1, 400000) n"
        " GROUP BY hashtext('key ' || n) HAVING count(*) > 1 LIMIT 1"
    )[0]
    attempts = [office.attempt(f"key {n}") for n in (one, other)]
    assert attempts[0].job.key_hash == attempts[1].job.key_hash

    (started,) = office.keys.lock(attempts)
    office.keys.unlock([started])

    assert office.locks() == 0


def test_lost_connection_relocks_all_keys(office: Office):
    attempts = [office.attempt(key) for key in "abc"]
    office.keys.lock(attempts)
    office.cut()
    with pytest.raises(DatabaseUnavailable):
        office.session.execute_raw("SELECT 1")

    assert office.keys.hashes_of(attempts) == [], "they are not held now"
    office.keys.relock_all()

    assert office.locks() == 3
    assert office.keys.hashes_of(attempts) == [attempt.job.key_hash for attempt in attempts]
    assert [attempt.stop_reason for attempt in attempts] == [None, None, None]


def test_session_the_server_still_holds_keeps_no_key(dsn: str):
    """After a timeout the server goes on with the statement, and its session keeps the locks."""
    desk = QueueFixture(dsn)
    session = desk.new_session(application_name="dataloader-claim:it", command_timeout_sec=1)
    office = Office(desk, session, KeyLocks(session, JobQueue(session)))
    attempt = office.attempt("k")
    office.keys.lock([attempt])
    former_pid = office.pid()
    session.execute_raw("SET statement_timeout = 0")
    with pytest.raises(DatabaseUnavailable):
        session.execute_raw("SELECT pg_sleep(60)")
    assert desk.fetch_row("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", former_pid) == 1

    office.keys.relock_all()

    assert (attempt.stop_reason, office.locks()) == (None, 1)
    assert office.keys.hashes_of([attempt]) == [attempt.job.key_hash]
    desk.close()


def test_attempt_is_stopped_if_its_key_cannot_be_relocked(office: Office, said):
    robbed, other = office.attempt("robbed"), office.attempt("other")
    office.keys.lock([robbed, other])
    office.cut()
    office.desk.sql("SELECT pg_advisory_lock(hashtext('robbed'))")
    with pytest.raises(DatabaseUnavailable):
        office.session.execute_raw("SELECT 1")

    office.keys.relock_all()

    assert robbed.stop_reason is not None
    assert other.stop_reason is None
    assert [line["lock_key"] for line in said("key_lock.lost")] == ["robbed"]


def warnings(office: Office) -> list[str]:
    """What the server has warned the present connection of since `warn`."""
    assert office.session._connection is not None
    return [notice for notice in office.session._connection.notices if "WARNING" in notice]


def test_key_lost_with_its_connection_is_not_given_back(office: Office):
    """The server would log a warning for each: "you don't own a lock of type ExclusiveLock"."""
    lost, kept = office.attempt("lost"), office.attempt("kept")
    office.keys.lock([lost, kept])
    office.cut()
    office.desk.sql("SELECT pg_advisory_lock(hashtext('lost'))")
    with pytest.raises(DatabaseUnavailable):
        office.session.execute_raw("SELECT 1")
    office.keys.relock_all()
    office.session.execute_raw("SET client_min_messages = warning")

    assert office.keys.hashes_of([lost, kept]) == [kept.job.key_hash]
    office.keys.unlock([lost, kept])
    assert warnings(office) == []
    office.session.execute("unlock_keys", {"key_hashes": "{1}"})
    assert len(warnings(office)) == 1, "warnings are seen"


def test_locking_on_a_new_connection_relocks_the_old_keys(office: Office):
    first = office.attempt("first")
    office.keys.lock([first])
    office.session.close()
    eventually(lambda: office.locks() == 0)

    office.keys.lock([office.attempt("second")])

    assert office.locks() == 2


def test_giving_back_on_a_broken_connection_forgets_the_keys(office: Office):
    attempt = office.attempt("k")
    office.keys.lock([attempt])
    office.cut()

    office.keys.unlock([attempt])

    assert office.keys.lock([attempt]) == [attempt]
    assert office.locks() == 1


def test_while_the_database_is_away_no_run_may_start(office: Office, empty_dsn: str):
    attempt = office.attempt("k")
    nowhere = Session(empty_dsn + " port=1", application_name="nowhere", connect_timeout_sec=0.5)
    keys = KeyLocks(nowhere, JobQueue(nowhere))

    with pytest.raises(DatabaseUnavailable):
        keys.lock([attempt])

    assert keys.hashes_of([attempt]) == []


def test_running_attempt_is_listed_until_removed(office: Office):
    roster, attempt = RunningAttempts(), office.attempt("k")

    roster.add([attempt])
    assert (roster.get(attempt.job.run_id), len(roster), roster.all()) == (attempt, 1, [attempt])
    roster.remove([attempt])
    roster.remove([attempt])
    assert (roster.get(attempt.job.run_id), len(roster), roster.all()) == (None, 0, [])


def test_lost_lease_replaces_first_stop_reason(office: Office):
    attempt = office.attempt("k")

    reasons = []
    for reason in (StopReason.CANCEL, StopReason.SHUTDOWN, StopReason.LEASE_LOST):
        attempt.stop(reason)
        reasons.append(attempt.stop_reason)

    assert reasons == [StopReason.CANCEL, StopReason.CANCEL, StopReason.LEASE_LOST]
