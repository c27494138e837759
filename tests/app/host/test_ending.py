from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field

import pytest

import app.host.ending
from app.host.ending import DID_NOT_END, Ending
from tests.support import eventually


@dataclass
class Service:
    """Ends when it is let go, or hurried."""

    clean: bool = True
    fault: Exception | None = None
    let_go: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

    def stop(self) -> bool:
        self.said.append("stop")
        self.let_go.wait(30)
        if self.fault is not None:
            raise self.fault
        return self.clean

    def hurry(self) -> None:
        self.said.append("hurry")
        self.let_go.set()

    def close(self) -> None:
        self.said.append("close")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process was left."""
    monkeypatch.setattr(app.host.ending, "_LAST_REQUESTS", 0.05)
    monkeypatch.setattr(app.host.ending, "_IN_A_HURRY", 0.05)
    monkeypatch.setattr(app.host.ending, "STOP_MARGIN", 0.1)
    return []


def ending(service: Service, left: list[int], *, grace: float = 0.0) -> Ending:
    made = Ending(service, grace=grace, leave=left.append)
    made.start()
    return made


def test_nothing_ends_before_a_note_comes(left):
    service = Service()
    waiting = ending(service, left)

    assert not waiting.over.wait(0.05)
    assert service.said == []


def test_a_note_ends_the_service_within_its_grace(left):
    service = Service()
    stopping = ending(service, left, grace=600)
    stopping.note(signal.SIGTERM)
    eventually(lambda: service.said == ["stop"])
    assert not stopping.over.is_set()

    service.let_go.set()

    assert stopping.over.wait(20)
    assert stopping.clean
    assert left == []


def test_a_second_sigterm_changes_nothing_and_a_second_ctrl_c_hurries(left):
    service = Service()
    stopping = ending(service, left, grace=600)
    stopping.note(signal.SIGTERM)
    stopping.note(signal.SIGTERM)
    eventually(lambda: service.said == ["stop"])
    assert not service.let_go.is_set()

    stopping.note(signal.SIGINT)

    assert stopping.over.wait(20)
    assert service.said[:2] == ["stop", "hurry"]


def test_sigquit_is_in_a_hurry_at_once(left):
    service = Service()
    stopping = ending(service, left, grace=600)

    stopping.note(signal.SIGQUIT)

    assert stopping.over.wait(20)
    assert "hurry" in service.said


def test_a_process_that_is_held_up_after_the_end_is_left(left):
    service = Service()
    service.let_go.set()

    ending(service, left).note(signal.SIGTERM)

    eventually(lambda: left == [0])


def test_a_service_that_does_not_end_is_left_with_a_code_of_its_own(left):
    service = Service()

    ending(service, left).note(signal.SIGTERM)

    eventually(lambda: left == [DID_NOT_END])
    service.let_go.set()


def test_an_end_that_fails_is_an_end_all_the_same(left):
    service = Service(fault=RuntimeError("a bug"))
    service.let_go.set()
    stopping = ending(service, left, grace=600)

    stopping.note(signal.SIGTERM)

    assert stopping.over.wait(20)
    assert not stopping.clean


def test_leaving_now_lets_go_of_the_database_first(left):
    service = Service()

    Ending(service, grace=0, leave=left.append).leave_now(70)

    assert (service.said, left) == (["close"], [70])
