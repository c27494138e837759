"""How much a queue's threads want, and from where on it is looked for."""

from __future__ import annotations

import threading

from workers.line import Line

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
