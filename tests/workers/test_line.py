"""How much a queue's threads want, and from where on it is looked for."""

from __future__ import annotations

import threading

import pytest

from app.queue.job import Outlook
from workers.attempt import Attempt
from workers.line import Line, Ruling

MARK = ("5", "2026-01-01 00:00:00+00", "00000000-0000-0000-0000-000000000001")


FULL = Outlook(0, None, MARK)


def line() -> Line:
    return Line("q", 1, threading.Condition())


def test_claims_go_on_where_the_last_one_ended_and_now_and_then_from_the_front():
    one = line()
    assert one.passed(100.0, sort=False) is None
    one.went(FULL, 10, 10, from_front=True, began=100.0, now=100.001)

    assert one.passed(100.002, sort=False) == MARK
    assert one.passed(100.002, sort=True) is None, "what has just fallen due may stand in front"
    one.went(FULL, 10, 10, from_front=False, began=100.002, now=100.003)
    assert one.passed(100.05, sort=False) == MARK
    assert one.passed(100.06, sort=False) is None


def test_the_dearer_the_look_from_the_front_the_rarer_it_is():
    one = line()
    one.went(FULL, 10, 10, from_front=True, began=100.0, now=100.2)

    assert one.passed(102.0, sort=False) == MARK
    assert one.passed(102.3, sort=False) is None


def test_a_claim_that_did_not_find_enough_is_followed_by_one_from_the_front():
    one = line()
    one.went(FULL, 10, 10, from_front=True, began=100.0, now=100.001)
    one.went(FULL, 9, 10, from_front=False, began=100.002, now=100.003)

    assert one.passed(100.004, sort=False) is None


class Course:
    """One line, as time goes by."""

    def __init__(self, threads: int = 10) -> None:
        self.line = Line("q", threads, threading.Condition())
        self.now = 100.0
        self.line.reckon(self.now)

    def claimed(
        self, jobs: int, *, more: bool = True, took: float = 0.0, from_front: bool = True, skipped: int = 0
    ) -> None:
        """So many were brought by a claim that took so long, and there are more, or not."""
        self.now += took
        self.line.put([Attempt.__new__(Attempt)] * jobs, self.now)
        most = jobs + skipped + (0 if more else 1)
        self.line.went(Outlook(skipped, None, MARK), jobs, most, from_front=from_front, began=self.now, now=self.now)

    def done(self, jobs: int, *, seconds: float, run: float) -> None:
        """So many were begun and ended in that time, each of which took so long."""
        self.now += seconds
        for _ in range(jobs):
            self.line.backlog.popleft()
            self.line.ran(run)

    def dry(self, seconds: float) -> None:
        self.line.ran_dry(self.now)
        self.now += seconds

    def ahead(self) -> int:
        self.line.reckon(self.now)
        return self.line.ahead


def busy(jobs: int, *, seconds: float, run: float) -> Course:
    """One in whose backlog there have been enough for a while."""
    course = Course()
    course.claimed(2 * jobs)
    for _ in range(4):
        course.done(jobs, seconds=seconds, run=run)
        course.line.reckon(course.now)
        course.claimed(jobs)
    course.done(jobs, seconds=seconds, run=run)
    return course


def test_nothing_is_claimed_ahead_until_jobs_are_known_to_be_tiny():
    course = Course()
    course.claimed(1)
    course.done(1, seconds=0.02, run=0.0001)

    assert course.ahead() == 0


def test_a_burst_of_tiny_jobs_is_claimed_for_at_once_as_soon_as_they_are_known_to_be_tiny():
    course = Course()
    wanted = [10]
    for _ in range(3):
        course.claimed(wanted[-1])
        course.done(wanted[-1], seconds=0.002, run=0.0001)
        course.dry(0.03)
        wanted.append(10 + course.ahead())

    assert 30 <= wanted[1] <= 60, "what was thought before the first run still counts"
    assert 120 <= wanted[2] <= 250
    assert wanted[3] == 410


def test_that_claims_take_long_does_not_make_them_smaller():
    course = Course()
    for _ in range(5):
        course.claimed(400)
        course.done(400, seconds=0.02, run=0.0001)
        course.dry(0.2)
        assert course.ahead() == 400


@pytest.mark.parametrize(("run", "least", "most"), [(0.002, 245, 255), (0.010, 45, 55), (0.019, 20, 30), (0.030, 0, 0)])
def test_so_much_is_claimed_ahead_as_the_threads_do_in_a_moment(run: float, least: int, most: int):
    assert least <= busy(400, seconds=0.04, run=run).ahead() <= most


def test_threads_that_wait_for_each_other_get_what_they_do_in_a_moment():
    assert 9 <= busy(40, seconds=0.2, run=0.0001).ahead() <= 11, "one of them has the interpreter"


def test_jobs_that_come_one_by_one_are_not_asked_for_by_the_hundred():
    course = busy(400, seconds=0.04, run=0.0001)
    course.done(400, seconds=0.1, run=0.0001)
    for _ in range(3):
        last = course.ahead()
        course.claimed(1, more=False)
        course.done(1, seconds=0.0, run=0.0001)
        course.dry(0.01)

    assert last == 1


def test_one_thread_that_claims_is_not_slow_for_that():
    course = Course(threads=1)
    for _ in range(8):
        course.claimed(100, took=0.06)
        course.done(100, seconds=0.05, run=0.0001)
        ahead = course.ahead()

    assert 95 <= ahead <= 105


def test_a_claim_from_a_mark_says_nothing_of_what_stands_before_it():
    course = busy(400, seconds=0.04, run=0.0001)
    course.done(330, seconds=0.01, run=0.0001)
    course.ahead()
    course.claimed(0, more=False, from_front=False)
    course.done(60, seconds=0.006, run=0.0001)

    assert course.ahead() > 300


def test_jobs_whose_keys_are_held_are_jobs():
    course = Course()
    course.claimed(100, skipped=50)
    course.done(100, seconds=0.005, run=0.0001)

    assert course.ahead() == 400


def test_a_backlog_that_is_taken_back_was_not_begun():
    course = Course()
    course.claimed(400)
    course.now += 0.6
    for _ in range(400):
        course.line.take_back()

    assert course.line.brought - len(course.line.backlog) == course.line.begun


def test_nothing_is_claimed_ahead_from_a_queue_that_is_limited():
    course = busy(400, seconds=0.04, run=0.0001)
    assert course.ahead() > 0

    course.line.ruling = Ruling(limited=True)
    assert course.ahead() == 0
