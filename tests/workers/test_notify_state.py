"""When a process suppresses notifications, and how it requests them again."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.workers import NotifyStateTable
from dataloader.workers.notify_state import NotifyState


@dataclass
class Database(NotifyStateTable):
    writes: list[str] = field(default_factory=list)
    no_silent_insert: list[bool] = field(default_factory=list)
    is_unavailable: bool = False

    def set_needs_notification(self, queues, *, needs_notification):
        if self.is_unavailable:
            raise DatabaseUnavailable("unavailable")
        self.writes += [f"{name} {'needed' if needs_notification else 'suppressed'}" for name in queues]

    def has_no_silent_insert(self, queue):
        return self.no_silent_insert.pop(0) if self.no_silent_insert else True


def test_idle_process_requests_notifications_and_claims_again():
    database = Database()
    notify_state = NotifyState(database)

    assert notify_state.update_after_claim("q", jobs=0, is_full=False) == 0.0
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) is None
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) is None
    assert database.writes == ["q needed"]


def test_recheck_backs_off_while_a_silent_insert_is_open():
    notify_state = NotifyState(Database(no_silent_insert=[False] * 9))

    rechecks = [notify_state.update_after_claim("q", jobs=0, is_full=False) for _ in range(9)]

    assert rechecks[:3] == [0.01, 0.02, 0.04]
    assert rechecks[-1] == 0.25
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) == 0.0


def test_three_full_claims_suppress_notifications_once():
    database = Database()
    notify_state = NotifyState(database)
    for full in (True, True, False, False, True, True, True, True, True):
        notify_state.update_after_claim("q", jobs=200, is_full=full)

    assert database.writes == ["q needed", "q suppressed"]
    assert notify_state.update_after_claim("other", jobs=9, is_full=True) is None
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) == 0.0
    assert database.writes == ["q needed", "q suppressed", "q needed"]


def test_a_process_that_is_busy_again_and_again_suppresses_seldom():
    database = Database()
    notify_state = NotifyState(database)
    for _ in range(1000):
        for full in (True, True, True, False, False):
            notify_state.update_after_claim("q", jobs=10 if full else 0, is_full=full)

    assert database.writes == ["q suppressed", "q needed"] * (1000 * 30 // 510 + 1), "once in 500 jobs"


def test_lost_connection_clears_the_stored_states():
    database = Database()
    notify_state = NotifyState(database)
    for _ in range(3):
        notify_state.update_after_claim("q", jobs=9, is_full=True)

    database.is_unavailable = True
    notify_state.clear()
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) is None, "inserts notify a process without a row"
    database.is_unavailable = False
    assert notify_state.update_after_claim("q", jobs=0, is_full=False) == 0.0
    assert database.writes == ["q suppressed", "q needed"]


def test_failed_suppression_is_written_again():
    database = Database(is_unavailable=True)
    notify_state = NotifyState(database)
    for _ in range(4):
        notify_state.update_after_claim("q", jobs=9, is_full=True)
    database.is_unavailable = False
    notify_state.update_after_claim("q", jobs=9, is_full=True)

    assert database.writes == ["q suppressed"]
