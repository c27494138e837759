"""The claim of a queue: what it asks for, and what it leaves to the next one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.claims import FIRST_TURN, FRONT, ClaimHint, ClaimMode, ClaimRequest, start_at_jobs
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Fixed
from dataloader.workers import queue_claims
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_timers import FALLBACK_POLL_SEC, PollTimer
from dataloader.workers.queue_buffer import BufferSettings, QueueBuffer
from dataloader.workers.queue_claims import QueueClaims

NOTHING = ClaimHint(0, None)


class AnsweringClaimer:
    """Records what is asked for. It claims no job, and answers with `hint`, or raises `error`."""

    def __init__(self) -> None:
        self.requests: list[ClaimRequest] = []
        self.counts: list[int] = []  # how many jobs each claim asked for
        self.hint = NOTHING
        self.error: Exception | None = None
        self.recovered: tuple[str, list[Attempt]] | None = None  # of the claim before

    def recover(self) -> tuple[str, list[Attempt]] | None:
        return self.recovered

    def defer_unknown_tasks(self, queue: str) -> None: ...

    def claim(self, queue: str, count: int, request: ClaimRequest) -> tuple[list[Attempt], int, ClaimHint]:
        self.requests.append(request)
        self.counts.append(count)
        if self.error is not None:
            raise self.error
        return [], 0, self.hint


@pytest.fixture
def claimer() -> AnsweringClaimer:
    return AnsweringClaimer()


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()


@pytest.fixture
def buffer(lock: threading.Lock) -> QueueBuffer:
    return QueueBuffer("q", 2, threading.Condition(lock), PollTimer(Fixed(60.0)), idle_count=2)


@pytest.fixture
def retries() -> list[float | None]:
    """When to claim again, each time that it may be earlier."""
    return []


@pytest.fixture
def polls() -> list[float]:
    """When the next poll was then."""
    return []


@pytest.fixture
def claims(
    claimer: AnsweringClaimer,
    buffer: QueueBuffer,
    lock: threading.Lock,
    retries: list[float | None],
    polls: list[float],
) -> QueueClaims:
    def on_retry() -> None:
        retries.append(buffer.retry_at)
        polls.append(buffer.poll.next_poll_at)

    make: Any = QueueClaims
    notify_state = SimpleNamespace(update_after_claim=lambda queue_name, **_: None)
    made: QueueClaims = make({"q": buffer}, lock, claimer=claimer, notify_state=notify_state, on_retry=on_retry)
    return made


@pytest.fixture
def run(claims: QueueClaims, buffer: QueueBuffer, lock: threading.Lock) -> Callable[[], None]:
    def run_once() -> None:
        with lock:
            claims.run(buffer, kept_count=1)

    return run_once


def make_front_slow(buffer: QueueBuffer) -> None:
    for _ in range(3):
        buffer.cursor.front_pace.record(1.0)


def test_claim_that_fails_leaves_the_promotion_to_the_next(claims, claimer, buffer, run):
    claimer.error = DatabaseUnavailable("no server")
    run()
    assert not claims.may_run
    assert buffer.may_have_work

    claimer.error = None
    run()
    run()
    assert [request.promote_due for request in claimer.requests] == [True, True, False]
    assert claims.may_run


def test_claim_that_fails_may_move_the_next_poll_to_earlier(claimer, buffer, run, polls):
    """The thread that listens may be another one than the thread whose claim has failed."""
    buffer.poll.next_poll_at = clock() + 60.0
    claimer.error = DatabaseUnavailable("no server")
    run()

    assert len(polls) == 1
    assert polls[0] <= clock() + FALLBACK_POLL_SEC


def test_next_check_for_unknown_tasks_may_be_earlier_than_the_poll(buffer, run, retries):
    run()
    assert retries == [None]
    run()

    assert retries == [None, None, buffer.next_unknown_task_check_at]


def test_jobs_of_a_claim_whose_answer_was_lost_are_handed_out_by_the_next(claims, claimer, buffer, run):
    make_front_slow(buffer)  # also if it then has to wait
    claimer.recovered = "q", [Attempt.__new__(Attempt)]
    run()

    assert ([attempt for attempt, _ in buffer.attempts], claimer.requests) == (claimer.recovered[1], [])


@pytest.mark.parametrize(
    ("max_in_process", "memory_high", "recovered_count", "asked"),
    [(2, False, 2, []), (2, False, 1, [1]), (None, False, 5, [3]), (None, True, 1, []), (None, True, 0, [1])],
)
def test_recovered_jobs_count_against_what_is_claimed_next(
    claims, claimer, buffer, run, max_in_process: int | None, memory_high: bool, recovered_count: int, asked: list[int]
):
    buffer.threads = buffer.idle_count = 8
    buffer.settings = BufferSettings(max_in_process=max_in_process)
    claims.memory_high = memory_high
    claimer.recovered = "q", [Attempt.__new__(Attempt) for _ in range(recovered_count)]
    run()

    assert (claimer.counts, len(buffer.attempts)) == (asked, recovered_count)


def test_claim_that_waits_for_a_look_leaves_the_promotion_to_the_next(claims, claimer, buffer, run):
    make_front_slow(buffer)
    run()
    assert (claimer.requests, buffer.may_have_work) == ([], False)

    buffer.cursor.found.append(FRONT)
    run()
    assert claimer.requests == [ClaimRequest(start=FRONT, promote_due=True)]


def test_claim_of_offered_jobs_leaves_the_promotion_to_the_next_which_follows_at_once(claims, claimer, buffer, run):
    make_front_slow(buffer)
    buffer.cursor.offer(["a"])
    buffer.cursor.found.append(FRONT)
    run()
    assert buffer.may_have_work
    run()

    offered, next_request = claimer.requests
    assert offered == ClaimRequest(ClaimMode.LISTED, start_at_jobs(["a"]), promote_due=False)
    assert (next_request.start, next_request.promote_due) == (FRONT, True)


def test_claims_of_a_fair_queue_promote_and_go_on_behind_the_last_turn(claims, claimer, buffer, run):
    buffer.settings = BufferSettings(is_fair=True)
    claimer.hint = ClaimHint(0, None, ("acme", "2"))
    run()
    claimer.hint = NOTHING
    claims.due.promote_due = True  # a job has fallen due
    run()
    run()

    assert claimer.requests == [
        ClaimRequest(ClaimMode.IN_TURN, FIRST_TURN, promote_due=True),
        ClaimRequest(ClaimMode.IN_TURN, ("acme", "2"), promote_due=True),
        ClaimRequest(ClaimMode.IN_TURN, ("acme", "2"), promote_due=False),
    ]


def test_claim_scans_further_where_busy_keys_are_in_front(claims, claimer, buffer, run):
    claimer.hint = ClaimHint(4, None)
    run()
    run()

    assert [request.scan_limit for request in claimer.requests] == [0, 16]


@pytest.mark.parametrize(("has_limit", "skipped", "pause_sec"), [(True, 0, 0.25), (True, 1, 0.25), (False, 1, 0.005)])
def test_claim_is_repeated_where_nothing_tells_of_a_change(
    claims, claimer, buffer, run, retries, has_limit: bool, skipped: int, pause_sec: float
):
    buffer.settings = BufferSettings(has_concurrency=has_limit)
    claimer.hint = ClaimHint(skipped, None)
    before = clock()
    run()

    assert before + pause_sec <= buffer.retry_at <= clock() + pause_sec
    assert retries == [buffer.retry_at], "the listening thread may listen for longer"


@pytest.fixture
def pauses_of(claimer: AnsweringClaimer, buffer: QueueBuffer, run, monkeypatch: pytest.MonkeyPatch):
    """The pauses after so many claims, each answered with this hint, at the times that they ask for."""
    now = 1000.0
    monkeypatch.setattr(queue_claims, "clock", lambda: now)

    def claim_repeatedly(count: int, hint: ClaimHint) -> list[float]:
        nonlocal now
        pauses, claimer.hint, buffer.next_unknown_task_check_at = [], hint, math.inf
        for _ in range(count):
            run()
            assert buffer.retry_at is not None
            pauses.append(round(buffer.retry_at - now, 3))
            now = buffer.retry_at
        return pauses

    return claim_repeatedly


def test_claims_become_fewer_while_a_key_stays_locked(claimer, run, pauses_of):
    conflict = ClaimHint(1, None)

    pauses = pauses_of(20, conflict)
    assert pauses[:4] == [0.005, 0.005, 0.005, 0.01]
    assert pauses[-10:] == [0.25] * 10
    claimer.hint = NOTHING
    run()
    assert pauses_of(1, conflict) == [0.005], "the next conflict is a new one"


@pytest.mark.parametrize(
    "hint", [ClaimHint(1, None, blocked_keys=["k"]), ClaimHint(1, None, FRONT), ClaimHint(500, None)]
)
def test_claim_that_changed_or_may_not_see_all_is_repeated_soon(pauses_of, hint: ClaimHint):
    """It has blocked or claimed a job, or has not scanned all that are ready."""
    assert set(pauses_of(20, hint)) == {0.005}
