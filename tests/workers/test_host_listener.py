"""One LISTEN connection for all processes of a host, and none at all."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.queue.job import Status
from pipelines.retry import Exponential
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers import host_listener
from workers.host_listener import HostGroup, HostListener, HostRelay
from workers.listener import ListenMode, ListenState, Notifications
from workers.pool import WorkerPool
from workers.threads import WakeupPipe

POOLS = 3


@pytest.fixture
def pools(worker_pools: WorkerPoolFixture) -> list[WorkerPool]:
    """Three processes of a host, each with a queue of its own."""
    made = [worker_pools.pool({f"q{n}": 1}, listen=ListenMode.HOST) for n in range(POOLS)]
    eventually(lambda: all(pool.state().listener == "relayed" for pool in made), message="all receive")
    return made


def listen_sessions(worker_pools: WorkerPoolFixture) -> int:
    return int(
        worker_pools.queue_fixture.fetch_row(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'dataloader-listen%%'"
        )
    )


def run_one_each(worker_pools: WorkerPoolFixture) -> None:
    """Polling is off, so only a notification starts them in time."""
    jobs = [worker_pools.add_job(queue=f"q{n}") for n in range(POOLS)]
    worker_pools.wait_for_all(jobs, timeout=20)


def test_one_process_of_a_host_listens_for_all(worker_pools, pools):
    run_one_each(worker_pools)

    assert listen_sessions(worker_pools) == 1
    assert [pool.state().is_host_listener for pool in pools].count(True) == 1
    assert all(pool.state().listen_mode == "host" for pool in pools)


def test_cancel_reaches_process_that_does_not_listen(worker_pools, pools):
    n = next(n for n, pool in enumerate(pools) if not pool.state().is_host_listener)
    job = worker_pools.add_job("held", queue=f"q{n}")
    worker_pools.gate.wait_for_arrivals(1)

    worker_pools.queue_fixture.queue.cancel(job)

    worker_pools.wait_for_status(job, Status.CANCELED, timeout=20)


def test_next_process_listens_when_the_first_is_gone(worker_pools, pools):
    (first,) = (pool for pool in pools if pool.state().is_host_listener)
    first.stop(grace=1)
    rest = [pool for pool in pools if pool is not first]
    (name,) = first._options.queues

    eventually(lambda: any(pool.state().is_host_listener for pool in rest))
    eventually(lambda: all(pool.state().listener == "relayed" for pool in rest))
    worker_pools.pool({name: 1}, listen=ListenMode.HOST)

    run_one_each(worker_pools)
    assert listen_sessions(worker_pools) == 1


def test_lost_connection_is_known_to_all(worker_pools, pools):
    worker_pools.terminate_connection("listen")

    run_one_each(worker_pools)

    eventually(lambda: all(pool.state().listener == "relayed" for pool in pools))


def test_process_without_runtime_folder_listens_itself(worker_pools, monkeypatch):
    monkeypatch.setattr(host_listener, "find_runtime_folder", lambda: None)

    pool = worker_pools.listening_pool({"q0": 1}, listen=ListenMode.HOST)

    worker_pools.wait_for_all([worker_pools.add_job(queue="q0")], timeout=20)
    assert not pool.state().is_host_listener


def test_without_listening_jobs_are_found_by_polling(worker_pools):
    pool = worker_pools.pool({"q": 1}, listen=ListenMode.OFF, claim_backoff_sec=0.3)
    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)
    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)

    # No INSERT notifies it; the maintenance leader may still notify a queue with waiting jobs, once a second.
    assert worker_pools.queue_fixture.sql("SELECT queue, needs_notification FROM dl_notify_state") == [("q", False)]
    assert pool.state().listener == "off"
    assert pool.state().consuming
    assert listen_sessions(worker_pools) == 0


def test_queue_is_polled_by_its_own_policy(worker_pools):
    polls = {"q": Exponential(base=0.1, cap=0.4, jitter=0.0)}
    rare = worker_pools.add_job(queue="rare")
    pool = worker_pools.pool({"q": 1, "rare": 1}, listen=ListenMode.OFF, claim_backoff_sec=3600, polls=polls)
    worker_pools.wait_for_all([rare], timeout=20)  # by the first claim of the start
    eventually(lambda: pool._dispatcher.queues["q"].poll.interval_sec == 0.4, message="polls found nothing")

    worker_pools.wait_for_all([worker_pools.add_job()], timeout=20)

    assert pool.state().consuming


# ── the sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dl-") as made:  # short: the path of a socket has 107 bytes at most
        yield Path(made)


class FakeListener:
    """A LISTEN connection whose notifications a test makes."""

    def __init__(self) -> None:
        self.state = ListenState.LISTENING
        self.last_self_test_at = 0.0

    def listen(self, timeout: float, wakeup: WakeupPipe) -> Notifications:
        return Notifications()


def group_of(folder: Path) -> HostGroup:
    return HostGroup("dsn", "public", uuid4(), [f"queue-{n}" for n in range(2_000)], folder=folder)


def relay_of(group: HostGroup, message_interval_sec: float = 60) -> HostRelay:
    made: Any = HostRelay
    relay: HostRelay = made(
        group, FakeListener(), message_interval_sec=message_interval_sec, on_crash=lambda name: None
    )
    return relay


def listener_of(group: HostGroup, message_interval_sec: float = 60) -> HostListener:
    fake: Any = FakeListener()
    return HostListener(group, fake, message_interval_sec=message_interval_sec)


def names_read(listener: HostListener) -> Callable[[], set[str]]:
    found: set[str] = set()
    wakeup = WakeupPipe()

    def read() -> set[str]:
        found.update(listener.listen(0, wakeup).queues)
        return found

    return read


def test_full_socket_gets_every_name_later(folder):
    listener, relay = listener_of(group_of(folder)), relay_of(group_of(folder))
    read = names_read(listener)
    read()
    relay.relay(Notifications())
    sent = {f"queue-{n}" for n in range(2_000)}

    for name in sorted(sent):
        relay.relay(Notifications(frozenset({name})))
    assert relay._pending, "the socket was never full"

    def retry() -> bool:
        read()
        relay.relay(Notifications())
        return sent <= read()

    eventually(retry)
    assert not relay._pending
    listener.close()
    relay.close()


def test_only_the_account_of_the_process_may_send(folder):
    before = os.umask(0)
    try:
        receiver = group_of(folder).open_socket()
        assert receiver is not None
        with receiver:
            assert [path.stat().st_mode & 0o777 for path in folder.glob("*.sock")] == [0o600]
    finally:
        os.umask(before)


def test_name_arrives_among_many_long_ones(folder):
    listener, relay = listener_of(group_of(folder)), relay_of(group_of(folder))
    read = names_read(listener)
    read()
    relay.relay(Notifications())

    relay.relay(Notifications(frozenset({"queue-1", *(f"long {n} " + 900 * "я" for n in range(99))})))

    assert "queue-1" in read()
    listener.close()
    relay.close()


def test_process_gets_names_of_its_own_queues_only(folder):
    listener = listener_of(HostGroup("dsn", "public", uuid4(), ["mine"], folder=folder))
    relay, wakeup = relay_of(group_of(folder)), WakeupPipe()
    listener.listen(0, wakeup)
    relay.relay(Notifications())
    assert listener.listen(0, wakeup).reconnected

    relay.relay(Notifications(frozenset({"other"})))
    assert listener.listen(0, wakeup) == Notifications()

    relay.relay(Notifications(frozenset({"mine", "other"})))
    assert "mine" in listener.listen(0, wakeup).queues
    relay.relay(Notifications(commands=("cancel 1",)))
    assert listener.listen(0, wakeup).commands == ("cancel 1",)
    listener.close()
    assert list(folder.iterdir()) == []
    relay.close()


def test_names_of_other_queues_keep_no_message_away(folder):
    """The maintenance leader notifies the queues with ready jobs each second."""
    listener = listener_of(HostGroup("dsn", "public", uuid4(), ["mine"], folder=folder))
    relay, wakeup = relay_of(group_of(folder), message_interval_sec=0), WakeupPipe()
    listener.listen(0, wakeup)
    relay.relay(Notifications())
    listener.listen(0, wakeup)
    before = listener.last_self_test_at or 0.0

    relay.relay(Notifications(frozenset({"other"})))
    listener.listen(0, wakeup)
    assert (listener.last_self_test_at or 0.0) > before > 0.0

    relay._message_interval_sec = 60
    relay.relay(Notifications())
    fake: Any = relay._listener
    fake.state = ListenState.DISCONNECTED
    relay.relay(Notifications(frozenset({"other"})))
    listener.listen(0, wakeup)
    assert listener.state is ListenState.DISCONNECTED
    listener.close()
    relay.close()


def test_socket_of_a_dead_process_is_removed(folder):
    group = group_of(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(group.own_path))
    relay = relay_of(group_of(folder))

    relay.relay(Notifications(frozenset({"q"})))

    assert list(folder.glob("*.sock")) == []
    relay.close()


def test_silent_relay_makes_processes_poll(folder):
    listener, relay = listener_of(group_of(folder), message_interval_sec=0.05), relay_of(group_of(folder))
    wakeup = WakeupPipe()
    listener.listen(0, wakeup)
    relay.relay(Notifications())
    assert listener.listen(0.1, wakeup).reconnected
    assert listener.state is ListenState.RELAYED

    def is_polling() -> bool:
        listener.listen(0.1, wakeup)
        return listener.state is ListenState.DISCONNECTED

    eventually(is_polling)
    listener.close()
    relay.close()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"5", b'["asleep", [], [], false]', json.dumps([1, 2]).encode()])
def test_strange_message_is_ignored(data, folder):
    group = group_of(folder)
    listener, wakeup = listener_of(group), WakeupPipe()
    listener.listen(0, wakeup)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(data, os.fspath(group.own_path))

    assert listener.listen(0, wakeup) == Notifications()
    assert listener.state is ListenState.DISCONNECTED
    listener.close()


def test_only_one_process_is_elected(folder):
    groups = [group_of(folder) for _ in range(3)]
    sockets = [group.open_socket() for group in groups]

    assert [group.elect() for group in groups] == [True, False, False]
    groups[0].resign()
    assert [group.elect() for group in groups[1:]] == [True, False]
    for made in sockets:
        assert made is not None
        made.close()
    groups[1].resign()
