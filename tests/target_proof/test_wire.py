"""The proxy stops a worker's network before and after each message of the protocol, and does to it what hosts do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest

from tests.support.queue_fixture import BackgroundCall
from tests.support.waiting import eventually
from tests.target_proof.messages import Exchange, Side
from tests.target_proof.wire import Line, WireProxy, connector


class Network:
    """A line to a database that has a table, and a worker who writes into it."""

    def __init__(self, dsn: str) -> None:
        self.proxy = WireProxy({"target": connector(dsn)})
        self._dsn = dsn
        self.observer = psycopg2.connect(dsn)
        self.observer.autocommit = True
        self.sql("CREATE TABLE written (n int)")
        self.line = self.proxy.line()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with self.observer.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    @property
    def written(self) -> int:
        ((count,),) = self.sql("SELECT count(*) FROM written")
        return int(count)

    def connect(self, line: Line | None = None, **options: Any) -> Any:
        return psycopg2.connect((line or self.line).dsn("target", self._dsn), **options)

    def write(self) -> None:
        """One transaction."""
        with closing(self.connect()) as connection, connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO written VALUES (1)")

    def write_until(self, text: str, side: Side) -> BackgroundCall:
        """Until the network is frozen at this request."""
        self.line.stop_at(lambda exchange, at: exchange.text.startswith(text) and at is side)
        call = BackgroundCall(self.write)
        assert self.line.changed.wait(30)
        self.line.changed.clear()
        return call

    def close(self) -> None:
        self.line.kill()
        self.proxy.close()
        self.observer.close()


@pytest.fixture
def network(empty_dsn: str) -> Iterator[Network]:
    made = Network(empty_dsn)
    yield made
    made.close()


def test_messages_are_counted(network: Network):
    network.write()

    texts = [exchange.text for exchange in network.line.exchanges]
    assert texts == ["connect", "BEGIN", "INSERT INTO written VALUES (1)", "COMMIT"]
    assert [exchange.number for exchange in network.line.exchanges] == list(range(4))
    assert network.written == 1


@pytest.mark.parametrize("text", ["connect", "BEGIN", "INSERT", "COMMIT"])
@pytest.mark.parametrize("side", Side)
def test_frozen_worker_continues_when_it_is_thawed(network: Network, text: str, side: Side):
    call = network.write_until(text, side)
    assert network.line.is_frozen
    assert network.written == 0 or text == "COMMIT"

    network.line.thaw()
    call.result()

    assert network.written == 1


@pytest.mark.parametrize(
    ("side", "is_committed"), [(side, side is not Side.REQUEST_HELD) for side in Side if side is not Side.RESPONSE_SENT]
)
def test_worker_that_is_killed_at_its_commit(network: Network, side: Side, is_committed: bool):
    call = network.write_until("COMMIT", side)
    network.line.kill()

    with pytest.raises(psycopg2.Error):
        call.result()
    eventually(lambda: network.written == int(is_committed), 10, "the server has executed what it got")
    with pytest.raises(psycopg2.OperationalError):
        network.connect()


def test_copy_is_forwarded(network: Network):
    import io

    with closing(network.connect()) as connection, connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY written FROM STDIN", io.StringIO("1\n2\n"))

    assert network.written == 2
    assert "end of COPY" in [exchange.text for exchange in network.line.exchanges]


def test_session_of_a_half_connection_stays(network: Network):
    call = network.write_until("INSERT", Side.RESPONSE_HELD)
    wire = network.line.stopped_in
    assert wire is not None
    network.line.cut(wire, is_half=True)
    network.line.thaw()

    with pytest.raises(psycopg2.Error):
        call.result()
    query = f"SELECT state FROM pg_stat_activity WHERE pid = {wire.backend_pid}"
    assert network.sql(query) == [("idle in transaction",)]
    assert network.line.close_server_side(is_half=True) == 1
    eventually(lambda: network.sql(query) == [], 10, "the session has ended")
    assert network.written == 0


def test_frozen_worker_finds_its_session_gone(network: Network):
    call = network.write_until("INSERT", Side.RESPONSE_HELD)
    assert network.line.has_transaction("target")
    assert network.line.close_server_side(in_transaction=True) == 1
    network.line.thaw()

    with pytest.raises(psycopg2.Error):
        call.result()


def test_server_may_be_refused_after_a_thaw(network: Network):
    call = network.write_until("BEGIN", Side.REQUEST_HELD)
    network.line.thaw(refused=("target",))

    with pytest.raises(psycopg2.Error):
        call.result()
    with pytest.raises(psycopg2.OperationalError):
        network.connect()


def test_connection_of_a_frozen_worker_waits(network: Network):
    network.write_until("BEGIN", Side.REQUEST_HELD)
    second = BackgroundCall(network.write)
    assert not second.is_finished
    network.line.thaw()
    second.result()

    eventually(lambda: network.written == 2, 10, "both have written")


def test_sessions_that_end_others_may_be_refused(network: Network):
    line = network.proxy.line(refuses_stopper=True)
    with suppress(psycopg2.OperationalError), closing(network.connect(line, application_name="dataloader-stop")):
        pytest.fail("it was connected")
    with closing(network.connect(line, application_name="dataloader:1")) as connection:
        assert connection.info.backend_pid in line.backend_pids()["target"]
    line.kill()


def test_lines_are_independent(network: Network):
    other = network.proxy.line()
    network.write_until("COMMIT", Side.REQUEST_HELD)
    with closing(network.connect(other)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO written VALUES (2)")
    other.kill()

    assert network.written == 1


def test_stop_is_asked_for_each_side(network: Network):
    asked: list[tuple[str, Side]] = []
    lock = threading.Lock()

    def record(exchange: Exchange, side: Side) -> bool:
        with lock:
            asked.append((exchange.text, side))
        return False

    network.line.stop_at(record)
    network.write()

    assert {side for text, side in asked if text == "COMMIT"} == set(Side)
