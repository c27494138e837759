"""The stop signal of an attempt: reasons, and callbacks that run once for each."""

from __future__ import annotations

import pytest

from dataloader.pipelines.contract import StopReason
from dataloader.workers.stop_signal import StopSignal


def test_callback_runs_once_for_each_new_reason():
    signal, calls = StopSignal(), []

    with signal.on_request(lambda: calls.append("called")):
        signal.request(StopReason.CANCEL)
        signal.request(StopReason.CANCEL)
        signal.request(StopReason.SHUTDOWN)

    assert len(calls) == 2
    assert signal.reason is StopReason.CANCEL


def test_callback_after_the_request_runs_once_at_once():
    signal, calls = StopSignal(), []
    signal.request(StopReason.CANCEL)

    with signal.on_request(lambda: calls.append("called")):
        assert calls == ["called"]
    signal.request(StopReason.LEASE_LOST)

    assert calls == ["called"]


@pytest.mark.parametrize("first", [StopReason.CANCEL, StopReason.SHUTDOWN, StopReason.TIME_LIMIT])
def test_lost_lease_replaces_any_reason(first: StopReason):
    signal = StopSignal()
    signal.request(first)
    requested_at = signal.requested_at
    signal.request(StopReason.LEASE_LOST)
    signal.request(first)

    assert signal.reason is StopReason.LEASE_LOST
    assert signal.requested_at == requested_at


def test_callback_of_an_ended_event_loop_is_ignored():
    signal = StopSignal()

    def fail() -> None:
        raise RuntimeError("Event loop is closed")

    with signal.on_request(fail):
        signal.request(StopReason.CANCEL)

    assert signal.reason is StopReason.CANCEL
