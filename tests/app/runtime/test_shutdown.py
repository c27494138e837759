from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field

import pytest

import dataloader.app.runtime.shutdown
from dataloader.app.runtime.shutdown import EXIT_STOP_TIMEOUT, Shutdown
from tests.support import eventually


@dataclass
class Service:
    """Ends when it is let go, or hurried."""

    clean: bool = True
    fault: Exception | None = None
    let_go: threading.Event = field(default_factory=threading.Event)
    logged: list[str] = field(default_factory=list)

    def stop(self) -> bool:
        self.logged.append("stop")
        self.let_go.wait(30)
        if self.fault is not None:
            raise self.fault
        return self.clean

    def stop_now(self) -> None:
        self.logged.append("hurry")
        self.let_go.set()

    def close(self) -> None:
        self.logged.append("close")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process was left."""
    monkeypatch.setattr(dataloader.app.runtime.shutdown, "_REQUEST_DRAIN_SEC", 0.05)
    monkeypatch.setattr(dataloader.app.runtime.shutdown, "_FORCED_TIMEOUT_SEC", 0.05)
    monkeypatch.setattr(dataloader.app.runtime.shutdown, "STOP_MARGIN_SEC", 0.1)
    return []


def ending(service: Service, left: list[int], *, grace: float = 0.0) -> Shutdown:
    made = Shutdown(service, grace_sec=grace, exit_process=left.append)  # type: ignore[arg-type]
    made.start()
    return made


def test_nothing_ends_before_a_note_comes(left):
    service = Service()
    waiting = ending(service, left)

    assert not waiting.stopped.wait(0.05)
    assert service.logged == []


def test_a_note_ends_the_service_within_its_grace(left):
    service = Service()
    stopping = ending(service, left, grace=600)
    stopping.request(signal.SIGTERM)
    eventually(lambda: service.logged == ["stop"])
    assert not stopping.stopped.is_set()

    service.let_go.set()

    assert stopping.stopped.wait(20)
    assert stopping.clean
    assert left == []


def test_second_ctrl_c_forces_stop_and_second_sigterm_does_not(left):
    service = Service()
    stopping = ending(service, left, grace=600)
    stopping.request(signal.SIGTERM)
    stopping.request(signal.SIGTERM)
    eventually(lambda: service.logged == ["stop"])
    assert not service.let_go.is_set()

    stopping.request(signal.SIGINT)

    assert stopping.stopped.wait(20)
    assert service.logged[:2] == ["stop", "hurry"]


def test_sigquit_is_in_a_hurry_at_once(left):
    service = Service()
    stopping = ending(service, left, grace=600)

    stopping.request(signal.SIGQUIT)

    assert stopping.stopped.wait(20)
    assert "hurry" in service.logged


def test_a_process_that_is_held_up_after_the_end_is_left(left):
    service = Service()
    service.let_go.set()

    ending(service, left).request(signal.SIGTERM)

    eventually(lambda: left == [0])


def test_service_that_does_not_stop_exits_with_own_code(left):
    service = Service()

    ending(service, left).request(signal.SIGTERM)

    eventually(lambda: left == [EXIT_STOP_TIMEOUT])
    service.let_go.set()


def test_an_end_that_fails_is_an_end_all_the_same(left):
    service = Service(fault=RuntimeError("a bug"))
    service.let_go.set()
    stopping = ending(service, left, grace=600)

    stopping.request(signal.SIGTERM)

    assert stopping.stopped.wait(20)
    assert not stopping.clean


def test_leaving_now_lets_go_of_the_database_first(left):
    service = Service()

    Shutdown(service, grace_sec=0, exit_process=left.append).exit_now(70)  # type: ignore[arg-type]

    assert (service.logged, left) == (["close"], [70])
