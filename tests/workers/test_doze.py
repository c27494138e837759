"""When a process says that it is awake, and how it falls asleep."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.errors import DatabaseUnavailable
from workers.doze import Doze


@dataclass
class Database:
    said: list[str] = field(default_factory=list)
    quiet: list[bool] = field(default_factory=list)
    away: bool = False

    def mark(self, queues, *, asleep):
        if self.away:
            raise DatabaseUnavailable("away")
        self.said += [f"{name} {'asleep' if asleep else 'awake'}" for name in queues]

    def is_quiet(self, queue):
        return self.quiet.pop(0) if self.quiet else True


def test_it_says_that_it_sleeps_makes_sure_and_looks_once_more():
    database = Database()
    doze = Doze(database)

    assert doze.after_claim("q", full=False) == 0.0
    assert doze.after_claim("q", full=False) is None
    assert doze.after_claim("q", full=False) is None
    assert database.said == ["q asleep"]


def test_while_somebody_has_not_ended_it_naps_longer_and_longer():
    doze = Doze(Database(quiet=[False] * 9))

    naps = [doze.after_claim("q", full=False) for _ in range(9)]

    assert naps[:3] == [0.01, 0.02, 0.04]
    assert naps[-1] == 0.25
    assert doze.after_claim("q", full=False) == 0.0


def test_only_a_row_of_full_claims_is_worth_a_word_and_only_one():
    database = Database()
    doze = Doze(database)
    for full in (True, True, False, False, True, True, True, True, True):
        doze.after_claim("q", full=full)

    assert database.said == ["q asleep", "q awake"]
    assert doze.after_claim("other", full=True) is None
    assert doze.after_claim("q", full=False) == 0.0
    assert database.said == ["q asleep", "q awake", "q asleep"]


def test_after_a_lost_connection_everything_is_said_again():
    database = Database()
    doze = Doze(database)
    for _ in range(3):
        doze.after_claim("q", full=True)

    database.away = True
    doze.forget()
    assert doze.after_claim("q", full=False) is None, "nobody knows of it, so it is rung"
    database.away = False
    assert doze.after_claim("q", full=False) == 0.0
    assert database.said == ["q awake", "q asleep"]


def test_a_word_that_was_not_heard_is_said_again():
    database = Database(away=True)
    doze = Doze(database)
    for _ in range(4):
        doze.after_claim("q", full=True)
    database.away = False
    doze.after_claim("q", full=True)

    assert database.said == ["q awake"]
