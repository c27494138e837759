"""The session locks of the keys: on a real connection, with attempts that run nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest

from app.errors import DatabaseUnavailable
from app.queue.ids import draw_run_texts
from app.queue.job import Claimed
from app.queue.jobqueue import JobQueue
from app.queue.session import Session, Wire
from pipelines.contract import StopReason
from tests.support.desk import Desk
from tests.support.waiting import eventually
from workers.attempt import Attempt
from workers.roster import Hand, Hands, Roster
from workers.threads import clock


@dataclass
class Office:
    """The keys of one process, and a desk beside it."""

    desk: Desk
    session: Session
    keys: Hand

    def attempt(self, key: str) -> Attempt:
        self.desk.enqueue(key)
        return Attempt(self._claimed(), claimed_at=clock())

    def _claimed(self) -> Claimed:
        (run,) = self.desk.claim()
        return run

    def pid(self) -> int:
        return int(self.session.command("SELECT pg_backend_pid()")[0][0])

    def cut(self) -> None:
        """The connection breaks, and its locks are gone."""
        self.desk.sql("SELECT pg_terminate_backend(%s)", self.pid())
        eventually(lambda: self.locks() == 0)

    def locks(self) -> int:
        return int(
            self.desk.one(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )


@pytest.fixture
def office(dsn: str) -> Iterator[Office]:
    desk = Desk(dsn)
    session = desk.another_session()
    yield Office(desk, session, Hand(session, JobQueue(session)))
    desk.close()


def test_a_key_is_locked_for_the_session_until_it_is_given_back(office: Office):
    one, other = office.attempt("one"), office.attempt("other")

    assert office.keys.take([one, other]) == [one, other]
    assert office.locks() == 2
    office.keys.give_back([one])
    assert office.locks() == 1
    assert office.keys.of([one, other]) == [other.job.key_hash]


def test_a_key_that_another_session_holds_keeps_its_run_from_starting(office: Office):
    attempt = office.attempt("taken")
    office.desk.sql("SELECT pg_advisory_lock(hashtext('taken'))")

    assert office.keys.take([attempt]) == []
    assert office.keys.of([attempt]) == []


def test_a_key_that_a_zombie_of_this_very_process_holds_keeps_its_successor_from_starting(office: Office):
    zombie = office.attempt("k")
    office.keys.take([zombie])
    office.desk.lose(zombie.job)
    successor = Attempt(office._claimed(), claimed_at=clock())

    assert office.keys.take([successor]) == []
    office.keys.give_back([zombie])
    assert office.keys.take([successor]) == [successor]


def test_a_run_that_lost_its_job_before_its_key_was_locked_does_not_start_and_holds_nothing(office: Office):
    attempt = office.attempt("k")
    office.desk.lose(attempt.job)

    assert office.keys.take([attempt]) == []
    assert office.locks() == 0


def test_of_two_keys_with_one_hash_only_one_run_starts_and_the_lock_is_free_when_it_ends(office: Office):
    one, other = office.desk.sql(
        "SELECT min(n), max(n) FROM generate_series(1, 400000) n"
        " GROUP BY hashtext('key ' || n) HAVING count(*) > 1 LIMIT 1"
    )[0]
    attempts = [office.attempt(f"key {n}") for n in (one, other)]
    assert attempts[0].job.key_hash == attempts[1].job.key_hash

    (started,) = office.keys.take(attempts)
    office.keys.give_back([started])

    assert office.locks() == 0


def test_after_the_connection_was_lost_all_keys_are_taken_again(office: Office):
    attempts = [office.attempt(key) for key in "abc"]
    office.keys.take(attempts)
    office.cut()
    with pytest.raises(DatabaseUnavailable):
        office.session.command("SELECT 1")

    assert office.keys.of(attempts) == [], "they are not held now"
    office.keys.restore()

    assert office.locks() == 3
    assert office.keys.of(attempts) == [attempt.job.key_hash for attempt in attempts]
    assert [attempt.stopping for attempt in attempts] == [None, None, None]


def test_a_run_whose_key_was_taken_by_another_session_meanwhile_is_stopped(office: Office, said):
    robbed, other = office.attempt("robbed"), office.attempt("other")
    office.keys.take([robbed, other])
    office.cut()
    office.desk.sql("SELECT pg_advisory_lock(hashtext('robbed'))")
    with pytest.raises(DatabaseUnavailable):
        office.session.command("SELECT 1")

    office.keys.restore()

    assert robbed.stopping is not None
    assert other.stopping is None
    assert [line["lock_key"] for line in said("key.lost")] == ["robbed"]


def warnings(office: Office) -> list[str]:
    """What the server has warned the present connection of since `warn`."""
    assert office.session._wire is not None
    return [notice for notice in office.session._wire._connection.notices if "WARNING" in notice]


def test_key_lost_with_its_connection_is_not_given_back(office: Office):
    """The server would log a warning for each: "you don't own a lock of type ExclusiveLock"."""
    lost, kept = office.attempt("lost"), office.attempt("kept")
    office.keys.take([lost, kept])
    office.cut()
    office.desk.sql("SELECT pg_advisory_lock(hashtext('lost'))")
    with pytest.raises(DatabaseUnavailable):
        office.session.command("SELECT 1")
    office.keys.restore()
    office.session.command("SET client_min_messages = warning")

    assert office.keys.of([lost, kept]) == [kept.job.key_hash]
    office.keys.give_back([lost, kept])
    assert warnings(office) == []
    office.session.ask("unguard", {"key_hashes": "{1}"})
    assert len(warnings(office)) == 1, "warnings are seen"


def test_connection_is_not_replaced_while_keys_are_given_back(office: Office):
    attempt = office.attempt("k")
    office.keys.take([attempt])
    office.session.command("SET client_min_messages = warning")
    before = office.session.generation
    with office.keys.held_keys([attempt]) as guards:
        closer = Thread(target=office.session.close)
        closer.start()
        office.keys.queue.unguard(guards)
        assert (guards, warnings(office)) == ([attempt.job.key_hash], [])
        assert office.session.generation == before
    closer.join()
    assert not office.session.connected


def test_taking_a_key_on_a_new_connection_takes_those_of_the_old_one_again(office: Office):
    first = office.attempt("first")
    office.keys.take([first])
    office.session.close()
    eventually(lambda: office.locks() == 0)

    office.keys.take([office.attempt("second")])

    assert office.locks() == 2


def test_a_connection_that_changes_while_a_key_is_asked_for_costs_no_other_key(office: Office):
    """A statement that was prepared does not fit any more: the session asks it again, on a new connection."""
    first = office.attempt("first")
    office.keys.take([first])
    second = office.attempt("second")
    office.session.command("DEALLOCATE ALL")

    assert office.keys.take([second]) == [second]

    assert office.session.generation == 2
    assert office.locks() == 2


def test_giving_back_on_a_broken_connection_forgets_the_keys(office: Office):
    attempt = office.attempt("k")
    office.keys.take([attempt])
    office.cut()

    office.keys.give_back([attempt])

    assert office.keys.take([attempt]) == [attempt]
    assert office.locks() == 1


def test_while_the_database_is_away_no_run_may_start(office: Office, empty_dsn: str):
    attempt = office.attempt("k")
    nowhere = Session(empty_dsn + " port=1", name="nowhere", connect_timeout=0.5)
    keys = Hand(nowhere, JobQueue(nowhere))

    with pytest.raises(DatabaseUnavailable):
        keys.take([attempt])

    assert keys.of([attempt]) == []


def test_the_roster_finds_a_run_until_it_is_dropped(office: Office):
    roster, attempt = Roster(), office.attempt("k")

    roster.add([attempt])
    assert (roster.find(attempt.job.run_id), len(roster), roster.all()) == (attempt, 1, [attempt])
    roster.drop([attempt])
    roster.drop([attempt])
    assert (roster.find(attempt.job.run_id), len(roster), roster.all()) == (None, 0, [])


def test_the_first_reason_to_stop_stays_but_a_lost_lease_is_stronger(office: Office):
    attempt = office.attempt("k")

    reasons = []
    for reason in (StopReason.CANCEL, StopReason.SHUTDOWN, StopReason.LEASE_LOST):
        attempt.stop(reason)
        reasons.append(attempt.stopping)

    assert reasons == [StopReason.CANCEL, StopReason.CANCEL, StopReason.LEASE_LOST]


# ── the two hands ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def keepers(office: Office) -> Session:
    """The second hand's session, over which keepers ask, too."""
    return office.desk.another_session()


@pytest.fixture
def hands(office: Office, keepers: Session) -> tuple[Hand, Hand]:
    return office.keys, Hand(keepers, JobQueue(keepers))


def by_another(do: Callable[[], object]) -> Thread:
    thread = Thread(target=do, daemon=True)
    thread.start()
    return thread


def test_a_claim_takes_the_hand_that_nobody_uses(hands: tuple[Hand, Hand]):
    with Hands(*hands).free() as hand:
        assert hand is hands[0]
        inner: list[Hand] = []

        def claim() -> None:
            with Hands(*hands).free() as other:
                inner.append(other)

        by_another(claim).join(10.0)
    assert inner == [hands[1]]


@contextmanager
def used(lock: Any) -> Iterator[None]:
    """By another thread."""
    there, over = Event(), Event()

    def use() -> None:
        with lock:
            there.set()
            over.wait(20.0)

    thread = by_another(use)
    assert there.wait(10.0)
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


def test_a_claim_does_not_wait_for_what_a_keeper_asks_over_a_hand(office: Office, hands: tuple[Hand, Hand]):
    with used(office.session.lock), Hands(*hands).free() as hand:
        assert hand is hands[1]
    with Hands(*hands).free() as hand:
        assert hand is hands[0]


def test_but_it_waits_for_a_keeper_rather_than_for_a_settlement(keepers: Session, hands: tuple[Hand, Hand]):
    with used(hands[0].lock), used(keepers.lock), Hands(*hands).free() as hand:
        assert hand is hands[1]


@pytest.fixture
def pair(dsn: str) -> Iterator[Pair]:
    """A process's two hands, and what they ask."""
    desk = Desk(dsn)
    sessions = [desk.another_session(plans_kept=True, ahead=("claim_due", "settle")) for _ in range(2)]
    yield Pair(desk, sessions, [Hand(session, JobQueue(session)) for session in sessions])
    desk.close()


@dataclass
class Pair:
    desk: Desk
    sessions: list[Session]
    hands: list[Hand]

    def fill(self) -> None:
        self.desk.sql(
            "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' || n FROM generate_series(1, 2000) n"
        )

    def claim(self, jobs: int, by: int = 0) -> int:
        claimed, _ = self.hands[by].claim("q", ["t"], draw_run_texts(jobs), "w", look=0, due=False, after=None)
        Hands(*self.hands).brought(len(claimed))
        return len(claimed)

    def plans(self, by: int) -> str:
        parts = "dl_claim_1(NULL, NULL, NULL, NULL, NULL, NULL)", f"dl_settle_1({', '.join(['NULL'] * 15)})"
        return "".join(row[0] for part in parts for row in self.sessions[by].command(f"EXPLAIN EXECUTE {part}"))


@pytest.fixture
def discarded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that threw plans away."""
    asked: list[str] = []
    really = Wire.ask

    def heard(wire: Wire, sql: str, *rest: Any) -> Any:
        if "DISCARD" in sql:
            asked.append(sql)
        return really(wire, sql, *rest)

    monkeypatch.setattr(Wire, "ask", heard)
    return asked


def test_plans_of_an_empty_table_do_not_outlive_the_first_large_claim(pair: Pair, discarded: list[str]):
    pair.desk.sql("VACUUM ANALYZE dl_jobs")  # nothing is there, and the server is sure of that
    assert [pair.claim(10, by) for by in (0, 1)] == [0, 0]
    pair.fill()
    assert [pair.claim(10, by) for by in (0, 1)] == [10, 10]
    assert discarded == []

    assert pair.claim(200) == 200
    assert [pair.claim(10, by) for by in (0, 1, 0, 1)] == [10, 10, 10, 10]

    assert len(discarded) == 2, "once over each connection"
    for by in (0, 1):
        assert "dl_jobs_pkey" in pair.plans(by)
        assert "dl_jobs_created_idx" not in pair.plans(by)


def test_plans_of_a_table_with_jobs_in_it_are_kept(pair: Pair, discarded: list[str]):
    pair.fill()

    assert [pair.claim(200, by) for by in (0, 1, 0, 1)] == [200] * 4
    assert discarded == []


def test_a_connection_that_was_lost_forgets_that_it_was_to_plan_anew(pair: Pair, discarded: list[str]):
    assert pair.claim(10) == 0
    pair.fill()
    assert pair.claim(200) == 200
    pair.sessions[0].close()

    assert [pair.claim(10), pair.claim(10)] == [10, 10]
    assert discarded == []
