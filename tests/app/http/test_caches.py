"""A fetch that hangs holds up one thread and its callers for the timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from dataloader.app.http.caches import RefreshingValue, RefreshingValues, RefreshTimeout
from tests.support import eventually


def make_value(fetch: Callable[[], int], timeout_sec: float = 10, **times: float) -> RefreshingValue[int]:
    return RefreshingValue(fetch, name="refresh-test", timeout_sec=timeout_sec, **times)


class HangingFetch:
    """Ends when `released` is set."""

    def __init__(self) -> None:
        self.count, self.released = 0, threading.Event()

    def __call__(self) -> int:
        self.count += 1
        self.released.wait(30)
        return 7


def test_value_is_returned():
    assert make_value(lambda: 7).get() == 7


def test_recent_value_is_returned_while_the_next_is_fetched():
    fetch = HangingFetch()
    fetch.released.set()
    value = make_value(fetch)
    assert value.get_recent(refresh_after_sec=60, max_age_sec=60) == 7
    assert (value.get_recent(refresh_after_sec=60, max_age_sec=60), fetch.count) == (7, 1)

    fetch.released.clear()
    assert value.get_recent(refresh_after_sec=0, max_age_sec=60) == 7
    eventually(lambda: fetch.count == 2)
    fetch.released.set()


def test_no_recent_value_comes_without_an_answer_in_time():
    fetch = HangingFetch()
    assert make_value(fetch, timeout_sec=0.01).get_recent(refresh_after_sec=1, max_age_sec=60) is None
    fetch.released.set()


def test_short_wait_leaves_the_fetch_to_callers_who_wait_longer():
    fetch = HangingFetch()
    value = make_value(fetch)
    assert value.get_recent(refresh_after_sec=1, max_age_sec=60, wait_sec=0.01) is None
    assert value.is_fetching

    threading.Timer(0.05, fetch.released.set).start()
    assert (value.get_recent(refresh_after_sec=1, max_age_sec=60), value.is_fetching, fetch.count) == (7, False, 1)


def test_values_of_the_keys_read_last_are_kept():
    fetched: list[str] = []

    def fetch(key: str) -> int:
        fetched.append(key)
        return len(fetched)

    values = RefreshingValues[str, int](
        lambda key: partial(fetch, key), name="refresh-test", timeout_sec=10, max_count=2
    )

    read = [values.get_recent(key, refresh_after_sec=60, max_age_sec=60) for key in ("a", "b", "a", "c", "a", "b")]

    assert read == [1, 2, 1, 3, 1, 4]
    assert fetched == ["a", "b", "c", "b"]


def test_error_is_raised_and_next_get_fetches_again():
    results: Iterator[ValueError | int] = iter([ValueError("no"), 7])

    def fetch() -> int:
        result = next(results)
        if isinstance(result, ValueError):
            raise result
        return result

    value = make_value(fetch)

    with pytest.raises(ValueError, match="no"):
        value.get()
    assert value.get() == 7
    assert value.error is None


def test_failed_fetch_is_not_repeated_within_retry_time():
    attempts = []

    def fetch() -> int:
        attempts.append(1)
        raise ValueError("no")

    value = make_value(fetch, retry_sec=60)

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            value.get()
    value.refresh()
    assert attempts == [1]


def test_timeout_error_of_the_fetch_is_no_refresh_timeout():
    def fetch() -> int:
        raise TimeoutError("the driver's own")

    with pytest.raises(TimeoutError, match="the driver's own"):
        make_value(fetch).get()


def test_hanging_fetch_times_out_and_is_the_only_one():
    fetch = HangingFetch()
    value = make_value(fetch, timeout_sec=0.05)
    for _ in range(3):
        with pytest.raises(RefreshTimeout, match=r"no answer within 0\.05 s"):
            value.get()

    assert fetch.count == 1

    fetch.released.set()
    assert eventually(lambda: value.value) == 7


def test_refresh_waits_once_for_a_hanging_fetch():
    fetch = HangingFetch()
    value = make_value(fetch)
    value.refresh(0.05)

    value.refresh(30)  # returns at once: the fetch has timed out for another caller

    assert value.value is None
    fetch.released.set()
    assert eventually(lambda: value.value) == 7


def test_fresh_value_serves_all_callers():
    count = iter(range(10))
    cached = make_value(lambda: next(count), max_age_sec=60)
    uncached = make_value(lambda: next(count))

    assert [cached.get(), cached.get()] == [0, 0]
    assert [uncached.get(), uncached.get()] == [1, 2]
