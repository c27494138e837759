"""How much a queue's threads want, and from where on it is looked for."""

from __future__ import annotations

import threading

from workers.line import Line, Ruling

MARK = ("5", "2026-01-01 00:00:00+00", "00000000-0000-0000-0000-000000000001")


def line() -> Line:
    return Line("q", 1, threading.Condition())


def test_claims_go_on_where_the_last_one_ended_and_now_and_then_from_the_front():
    one = line()
    assert one.passed(100.0, sort=False) is None
    one.went(MARK, from_front=True, full=True, began=100.0, now=100.001)

    assert one.passed(100.002, sort=False) == MARK
    assert one.passed(100.002, sort=True) is None, "what has just fallen due may stand in front"
    one.went(MARK, from_front=False, full=True, began=100.002, now=100.003)
    assert one.passed(100.05, sort=False) == MARK
    assert one.passed(100.06, sort=False) is None


def test_the_dearer_the_look_from_the_front_the_rarer_it_is():
    one = line()
    one.went(MARK, from_front=True, full=True, began=100.0, now=100.2)

    assert one.passed(102.0, sort=False) == MARK
    assert one.passed(102.3, sort=False) is None


def test_a_claim_that_did_not_find_enough_is_followed_by_one_from_the_front():
    one = line()
    one.went(MARK, from_front=True, full=True, began=100.0, now=100.001)
    one.went(MARK, from_front=False, full=False, began=100.002, now=100.003)

    assert one.passed(100.004, sort=False) is None


def after(one: Line, *, begun: int, seconds: float, run: float, full: bool = True) -> int:
    """How far ahead it claims when so many jobs were begun since the last claim, each of which took so long."""
    began = one.begun_at
    one.went(MARK, from_front=True, full=full, began=began, now=began)
    for _ in range(begun):
        one.ran(run)
    one.brought += begun
    one.reckon(began + seconds)
    return one.ahead


def line_of_ten() -> Line:
    one = Line("q", 10, threading.Condition())
    one.reckon(100.0)
    return one


def test_nothing_is_claimed_ahead_until_jobs_are_known_to_be_tiny():
    one = line_of_ten()

    assert after(one, begun=1, seconds=0.02, run=0.0001) == 0


def test_a_burst_of_tiny_jobs_is_claimed_for_at_once_as_soon_as_they_are_known_to_be_tiny():
    one = line_of_ten()

    first = after(one, begun=10, seconds=0.005, run=0.0001)
    second = after(one, begun=10 + first, seconds=0.01, run=0.0001)

    assert 20 < first < 100, "what was thought before the first run still counts"
    assert second == 400
    assert after(one, begun=400, seconds=0.1, run=0.0001) == 400


def test_so_much_is_claimed_ahead_as_the_threads_do_in_a_moment():
    one = line_of_ten()

    assert after(one, begun=200, seconds=0.04, run=0.002) in range(245, 256)
    assert after(one, begun=200, seconds=0.04, run=0.010) in range(45, 56)
    assert after(one, begun=200, seconds=0.04, run=0.030) == 0


def test_threads_that_wait_for_each_other_get_little_more_than_they_do():
    one = line_of_ten()
    after(one, begun=50, seconds=0.01, run=0.0001)

    assert after(one, begun=40, seconds=0.2, run=0.0001) <= 40, "one of them has the interpreter"


def test_jobs_that_come_one_by_one_are_not_asked_for_by_the_hundred():
    one = line_of_ten()
    after(one, begun=50, seconds=0.01, run=0.0001)

    assert after(one, begun=1, seconds=0.01, full=False, run=0.0001) <= 5


def test_nothing_is_claimed_ahead_from_a_queue_that_is_limited():
    one = line_of_ten()
    one.ruling = Ruling(limited=True)

    assert after(one, begun=400, seconds=0.05, run=0.0001) == 0
