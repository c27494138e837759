"""When a queue is polled while no notification comes, by its policy. Times are the test's own."""

from __future__ import annotations

import pytest

from dataloader.pipelines.retry import Exponential, Fixed, Linear, Policy, Table
from dataloader.workers.claim_timers import PollTimer, default_poll

START = 1000.0


def pauses(timer: PollTimer, count: int, *, is_listening: bool = True, now: float = START) -> list[float]:
    """Poll `count` times, each time as soon as it is due: the seconds to the next poll after each."""
    found = []
    for _ in range(count):
        assert timer.expire(now, is_listening=is_listening)
        assert not timer.expire(now, is_listening=is_listening)
        found.append(round(timer.next_poll_at - now, 3))
        now = timer.next_poll_at
    return found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Fixed(5.0), [5, 5, 5, 5]),
        (Linear(step=2.0, cap=5.0), [2, 4, 5, 5]),
        (Exponential(base=1.0, cap=6.0, jitter=0.0), [1, 2, 4, 6]),
        (Table((1.0, 30.0, 5.0)), [1, 30, 5, 5]),
        (Exponential(base=10.0, cap=60.0, jitter=0.2, draw=lambda: 0.0), [8, 16, 32, 40]),
        (Exponential(base=0.05, cap=1.0, jitter=1.0, draw=lambda: 0.0), [0.05] * 4),
    ],
)
def test_pauses_of_empty_polls_follow_the_policy(policy: Policy, expected: list[float]):
    assert pauses(PollTimer(policy), 4) == expected


def test_found_job_or_notification_starts_the_policy_over():
    timer = PollTimer(Exponential(base=1.0, cap=60.0, jitter=0.0))
    assert pauses(timer, 5) == [1, 2, 4, 8, 16]
    now = START + 20

    timer.reset(now)

    assert (timer.next_poll_at, timer.interval_sec) == (now + 1, 1.0), "not only at the end of the long pause"
    assert pauses(timer, 3, now=now + 1) == [1, 2, 4]


def test_pause_counts_from_when_the_queue_had_no_job():
    timer = PollTimer(Fixed(15.0))
    pauses(timer, 1)

    timer.postpone(START + 10)
    assert timer.next_poll_at == START + 25
    timer.postpone(START - 5)
    assert timer.next_poll_at == START + 25, "never sooner"


def test_reset_never_delays_a_poll():
    timer = PollTimer(Table((30.0, 5.0)))
    pauses(timer, 2)
    due_at = timer.next_poll_at

    for _ in range(3):
        timer.reset(due_at - 1)

    assert timer.next_poll_at == due_at


def test_lost_listener_polls_each_second_whatever_the_policy():
    timer = PollTimer(Fixed(60.0))
    assert pauses(timer, 1) == [60]

    assert not timer.expire(START + 10, is_listening=False)
    assert timer.next_poll_at == START + 11
    assert pauses(timer, 3, is_listening=False, now=START + 11) == [1, 1, 1]


def test_processes_that_only_poll_are_spread_over_half_the_interval():
    spread = [default_poll(15.0, is_spread=True).pause(1) for _ in range(200)]

    assert 7.5 <= min(spread) < 9
    assert 13.5 < max(spread) <= 15
    assert default_poll(15.0, is_spread=False).pause(7) == 15.0
