"""How many jobs a queue's buffer claims, and from where on."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from dataloader.app.queue.claims import FRONT, ClaimHint, ClaimMode
from dataloader.pipelines.retry import Fixed
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_cursor import ClaimCursor
from dataloader.workers.claim_timers import PollTimer
from dataloader.workers.queue_buffer import BufferSettings, QueueBuffer

POSITION = ("5", "2026-01-01 00:00:00+00", "00000000-0000-0000-0000-000000000001")
HINT = ClaimHint(0, None, POSITION)


def test_claims_continue_at_cursor_and_return_to_front():
    cursor = ClaimCursor()
    assert cursor.start(100.0, promoted=False) == FRONT
    cursor.advance(HINT, is_full=True, from_front=True, began=100.0, now=100.001)

    assert cursor.start(100.002, promoted=False) == POSITION
    assert cursor.start(100.002, promoted=True) == FRONT, "what has just fallen due may be in front"
    cursor.advance(HINT, is_full=True, from_front=False, began=100.002, now=100.003)
    assert cursor.start(100.05, promoted=False) == POSITION
    assert cursor.start(100.06, promoted=False) == FRONT


def test_slow_claims_from_front_are_rarer():
    cursor = ClaimCursor()
    cursor.advance(HINT, is_full=True, from_front=True, began=100.0, now=100.2)

    assert cursor.start(102.0, promoted=False) == POSITION
    assert cursor.start(102.3, promoted=False) == FRONT


def test_claim_that_is_not_full_is_followed_by_one_from_front():
    cursor = ClaimCursor()
    cursor.advance(HINT, is_full=True, from_front=True, began=100.0, now=100.001)
    cursor.advance(HINT, is_full=False, from_front=False, began=100.002, now=100.003)

    assert cursor.start(100.004, promoted=False) == FRONT


def slow_cursor() -> ClaimCursor:
    """After claims from the front that took long: a transaction of hours keeps the entries of claimed jobs there."""
    cursor = ClaimCursor()
    for began in (100.0, 110.0, 120.0):
        assert not cursor.front_pace.is_slow
        slow = replace(HINT, delay_sec=0.1)
        cursor.advance(slow, is_full=False, from_front=True, began=began, now=began + 0.1)
    assert cursor.front_pace.is_slow
    return cursor


NO_ID = "00000000-0000-0000-0000-000000000000"
A_SECOND_BEFORE = ("5", "2025-12-31T23:59:59+00:00", NO_ID)


def test_claims_go_on_from_the_last_job_until_a_scan_is_quick():
    cursor = slow_cursor()
    cursor.start_soon()
    assert cursor.start(120.2, promoted=True) == A_SECOND_BEFORE, (
        "neither a notification nor a promotion asks for the front"
    )
    cursor.advance(HINT, is_full=True, from_front=False, began=120.2, now=120.201)
    assert cursor.start(120.3, promoted=False) == POSITION
    cursor.advance(ClaimHint(0, None, None), is_full=False, from_front=False, began=120.3, now=120.301)
    assert cursor.start(1000.0, promoted=False) == A_SECOND_BEFORE

    cursor.record_scan(None, 0.001, 1000.0)
    assert cursor.start(1000.1, promoted=False) == FRONT


def test_position_of_no_finite_time_is_kept_as_it_is():
    cursor = slow_cursor()
    infinite = ("5", "infinity", "00000000-0000-0000-0000-000000000001")
    cursor.advance(ClaimHint(0, None, infinite), is_full=False, from_front=False, began=120.2, now=120.201)

    assert cursor.start(121.0, promoted=False) == infinite


def test_claim_of_what_it_has_promoted_alone_does_not_move_the_position():
    """It returns where it began."""
    cursor = slow_cursor()
    cursor.advance(ClaimHint(0, None, A_SECOND_BEFORE), is_full=False, from_front=False, began=120.2, now=120.201)

    assert cursor.position == POSITION


def test_next_claim_starts_once_where_a_scan_has_found_a_job():
    cursor = slow_cursor()
    assert not cursor.is_scan_due(125.0)
    assert cursor.is_scan_due(125.2), "after 50 times what a claim took"
    cursor.record_scan(("1", "2026-01-01 00:00:00.5+00", "00000000-0000-0000-0000-000000000007"), 0.1, 125.2)

    assert cursor.start(125.3, promoted=False) == ("1", "2026-01-01T00:00:00.499999+00:00", NO_ID)
    assert cursor.start(125.4, promoted=False) == A_SECOND_BEFORE
    assert not cursor.is_scan_due(130.1)
    assert cursor.is_scan_due(130.3)


def test_claims_start_later_once_a_scan_has_found_nothing_ready():
    """Other processes have run the jobs of hours."""
    cursor = slow_cursor()
    cursor.record_scan(("5", "2026-01-01 05:00:00+00", NO_ID), 0.1, 125.2)

    assert cursor.start(125.3, promoted=False) == ("5", "2026-01-01T04:59:59.999999+00:00", NO_ID)
    assert cursor.start(125.4, promoted=False) == ("5", "2026-01-01T04:59:59+00:00", NO_ID)


def test_quick_front_is_not_scanned():
    cursor = ClaimCursor()
    cursor.advance(HINT, is_full=True, from_front=True, began=100.0, now=100.1)

    assert not cursor.is_scan_due(200.0)


@pytest.mark.parametrize("is_failed", [False, True])
def test_process_that_knows_no_position_waits_for_a_scan(is_failed: bool):
    cursor = ClaimCursor()
    for began in (100.0, 110.0, 120.0):
        assert cursor.start(began, promoted=False) == FRONT
        slow = ClaimHint(0, None, None, delay_sec=0.1)
        cursor.advance(slow, is_full=False, from_front=True, began=began, now=began + 0.1)
    assert cursor.start(121.0, promoted=False) is None

    if is_failed:
        cursor.record_failed_scan(130.0)
    else:
        cursor.record_scan(POSITION, 0.1, 130.0)
    start = FRONT if is_failed else ("5", "2025-12-31T23:59:59.999999+00:00", NO_ID)
    assert cursor.start(130.0, promoted=False) == start
    assert cursor.start(130.0, promoted=False) is None, "that was for one claim"


def test_scan_grows_behind_a_position_too():
    cursor = slow_cursor()
    cursor.advance(ClaimHint(3, None, None), is_full=False, from_front=False, began=121.0, now=121.0)

    assert cursor.scan_limit == 16


def test_jobs_are_offered_only_where_the_front_is_slow():
    cursor = ClaimCursor()
    cursor.advance(HINT, is_full=False, from_front=True, began=100.0, now=100.1)
    assert not cursor.offer(["a"])
    assert cursor.take_offered(5) == []

    cursor = slow_cursor()
    assert cursor.offer(["a", "b", "c"])
    assert [cursor.take_offered(2), cursor.take_offered(2), cursor.take_offered(2)] == [["a", "b"], ["c"], []]


def test_scan_grows_while_busy_keys_stand_in_front():
    cursor, scans = ClaimCursor(), []
    for _ in range(6):
        cursor.advance(ClaimHint(3, None, None), is_full=False, from_front=True, began=100.0, now=100.0)
        scans.append(cursor.scan_limit)
    assert scans == [16, 64, 256, 500, 500, 500]

    cursor.advance(HINT, is_full=True, from_front=True, began=100.0, now=100.0)
    assert cursor.scan_limit == 0


def buffer_of(threads: int = 10, longest_run_sec: float = 0.1, **settings: object) -> QueueBuffer:
    buffer = QueueBuffer(
        "q", threads, threading.Condition(), PollTimer(Fixed(15)), idle_count=threads, longest_run_sec=longest_run_sec
    )
    buffer.was_full = True
    buffer.settings = BufferSettings(**settings)  # type: ignore[arg-type]
    return buffer


def fill(buffer: QueueBuffer, count: int) -> None:
    buffer.add([Attempt.__new__(Attempt)] * count, 100.0)


def mode_of(buffer: QueueBuffer) -> ClaimMode:
    request = buffer.claim_request(buffer.claim_size, 100.0, promote_due=False)
    assert request is not None
    return request.mode


def test_nothing_is_prefetched_until_runs_are_known_to_be_short():
    buffer = buffer_of()
    assert (buffer.prefetch, buffer.claim_size) == (0, 10)

    for _ in range(100):
        buffer.record_run(0.001)
    assert buffer.prefetch > 0
    buffer.record_run(1.0)
    for _ in range(37):
        buffer.record_run(0.001)
    assert buffer.prefetch == 0, "among long jobs short ones are not prefetched"
    buffer.record_run(0.001)
    assert buffer.prefetch > 0


@pytest.mark.parametrize(
    ("longest_run_sec", "is_prefetched"), [(0.001, True), (0.019, True), (0.020, False), (60, False)]
)
def test_only_runs_below_20_ms_are_prefetched(longest_run_sec: float, is_prefetched: bool):
    assert (buffer_of(longest_run_sec=longest_run_sec).prefetch > 0) is is_prefetched


def test_nothing_is_prefetched_until_a_claim_came_back_full():
    buffer = buffer_of(longest_run_sec=0.001)
    assert (mode_of(buffer), buffer.claim_size) == (ClaimMode.PREFETCH, 410)

    buffer.was_full = False
    assert (mode_of(buffer), buffer.claim_size) == (ClaimMode.PLAIN, 10)


def test_limited_queue_prefetches_nothing():
    assert buffer_of(longest_run_sec=0.001, has_concurrency=True).prefetch == 0
    assert buffer_of(longest_run_sec=0.001, max_in_process=3).claim_size == 3


def test_paused_queue_claims_nothing():
    assert buffer_of(paused=True).claim_size == 0


def test_buffer_is_refilled_below_half():
    buffer = buffer_of(longest_run_sec=0.001)
    buffer.idle_count = 1
    fill(buffer, buffer.prefetch // 2 + 1)
    assert not buffer.needs_claim

    buffer.attempts.popleft()
    assert buffer.needs_claim
    assert buffer.claim_size == 1 + buffer.prefetch - len(buffer.attempts)
