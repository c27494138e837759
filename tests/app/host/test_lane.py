"""The lane for triggers: many answered by one thread, and nobody held up by another."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]

from app.errors import DatabaseUnavailable
from app.host.arrival import Arrival, Sizes
from app.host.front import Conn, Front
from app.host.lane import LINE, LONG, Lane
from app.web.express import Answer, fail_as_before, failed
from tests.support import eventually


class Express:
    """Answers by the text of the body; waits for those of "slow" until told to go on."""

    def __init__(self) -> None:
        self.go, self.batches = threading.Event(), list[list[str]]()

    def answer(self, requests: Sequence[tuple[Any, bytes]]) -> list[Answer | Exception | None]:
        bodies = [body.decode() for _, body in requests]
        self.batches.append(bodies)
        if "slow" in bodies:
            assert self.go.wait(30)
        if "bug" in bodies:
            raise RuntimeError("a bug")
        return [self._one(body) for body in bodies]

    @staticmethod
    def _one(body: str) -> Answer | Exception | None:
        if body == "odd":
            return None
        return DatabaseUnavailable("away") if body == "lost" else Answer("X-Said: yes\r\n", body.encode())


class Door:
    """What the lane needs of the door; its main thread is the test's."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.calls = SimpleQueue[Callable[[], None]]()
        self.written: dict[Any, bytes] = {}
        self.ordinary: list[Any] = []
        self.finished: dict[Any, bool] = {}

    def submit(self, work: Callable[[], Any], after: Callable[[Future[Any]], None]) -> None:
        self.pool.submit(work).add_done_callback(lambda done: self.calls.put(lambda: after(done)))

    def write(self, conn: Any, data: bytes) -> bool:
        assert conn not in self.written, "answered twice"
        self.written[conn] = data
        return bool(conn.name != "gone")

    def ordinarily(self, conn: Any) -> None:
        self.ordinary.append(conn)

    def finish(self, conn: Any, *, kept_alive: bool) -> None:
        self.finished[conn] = kept_alive

    def turn(self, seconds: float = 5.0) -> None:
        """One of the main thread, when something has come back."""
        self.calls.get(timeout=seconds)()


class Client:
    def __init__(self, body: str, *, head: bytes = b"Host: localhost", name: str = "") -> None:
        self.name, self.address, self.failure = name or body, "127.0.0.1", None
        self.arrival = Arrival(Sizes())
        self.arrival.take(LINE + head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body.encode())
        assert self.arrival.is_simple


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.pool.shutdown()


@pytest.fixture
def express() -> Express:
    return Express()


@pytest.fixture
def lane(door: Door, express: Express) -> Lane:
    return Lane(express, door, threads=4)  # type: ignore[arg-type]


def test_those_that_come_while_one_is_away_are_answered_together(lane, door, express):
    slow, others = Client("slow"), [Client(f"{n}") for n in range(5)]
    lane.take(slow)
    eventually(lambda: express.batches)
    for one in others:
        lane.take(one)
    express.go.set()
    door.turn()
    door.turn()

    assert express.batches == [["slow"], ["0", "1", "2", "3", "4"]]
    assert door.finished == dict.fromkeys([slow, *others], True)
    assert not door.ordinary


def test_an_answer_is_whole_and_says_what_gunicorns_would(lane, door):
    one = Client("hello")
    lane.take(one)
    door.turn()

    head, _, body = door.written[one].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nServer: gunicorn\r\nDate: ")
    assert head.endswith(b" GMT\r\nConnection: keep-alive\r\nX-Said: yes")
    assert body == b"hello"


def test_what_is_not_plain_goes_the_ordinary_way_and_the_others_do_not(lane, door, express):
    slow, odd, cookie = (
        Client("slow"),
        Client("odd"),
        Client("1", head=b"Host: localhost\r\nCookie: a=b", name="cookie"),
    )
    plain = Client("2")
    for one in (slow, odd, cookie, plain):
        lane.take(one)
        eventually(lambda: express.batches)
    express.go.set()
    door.turn()
    door.turn()

    assert door.ordinary == [odd, cookie]
    assert set(door.finished) == {slow, plain}
    assert express.batches == [["slow"], ["odd", "2"]]


def test_a_client_that_has_hung_up_is_let_go(lane, door):
    gone = Client("x", name="gone")
    lane.take(gone)
    door.turn()

    assert door.finished == {gone: False}


def test_what_was_asked_for_and_not_answered_is_told_so_and_not_asked_again(lane, door):
    lost = Client("lost")
    lane.take(lost)
    door.turn()

    assert door.ordinary == [lost]
    with failed(lost.failure), pytest.raises(DatabaseUnavailable, match="away"):
        fail_as_before()
    fail_as_before()  # nobody else is told


def test_a_bug_is_told_to_everybody_and_nothing_is_asked_twice(lane, door, express):
    slow, bug, other = Client("slow"), Client("bug"), Client("other")
    for one in (slow, bug, other):
        lane.take(one)
        eventually(lambda: express.batches)
    express.go.set()
    door.turn()
    door.turn()

    assert door.ordinary == [bug, other]
    assert all(isinstance(one.failure, RuntimeError) for one in door.ordinary)
    assert list(door.finished) == [slow]


def test_what_is_away_for_long_is_overtaken_but_not_by_more_threads_than_there_are(lane, door, express):
    away = [Client("slow", name=f"slow {n}") for n in range(6)]

    def away_are(count: int) -> bool:
        lane.look()
        return len(express.batches) == count

    for n, one in enumerate(away):
        lane.take(one)
        eventually(partial(away_are, min(n + 1, 4)), timeout=20 * LONG + 10)
    assert lane.waits
    assert len(express.batches) == 4

    express.go.set()
    with pytest.raises(Empty):
        while True:
            door.turn(1.0)

    assert set(door.finished) == set(away)
    assert [len(batch) for batch in express.batches] == [1, 1, 1, 1, 2]


def test_a_request_is_simple_with_a_body_of_known_length_and_nothing_behind_it():
    def simple(rest: bytes) -> bool:
        arrival = Arrival(Sizes(body=100))
        arrival.take(LINE + rest)
        return arrival.is_simple

    assert simple(b"Content-Length: 2\r\n\r\n{}")
    assert simple(b"Host: a\r\n\r\n")
    assert not simple(b"Content-Length: 2\r\n\r\n{")
    assert not simple(b"Content-Length: 2\r\n\r\n{}POST")
    assert not simple(b"Content-Length: 200\r\n\r\n")
    assert not simple(b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}")
    assert not simple(b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "setting",
    [
        {"accesslog": "-"},
        {"keepalive": 0},
        {"max_requests": 10},
        {"proxy_protocol": True},
        {"pre_request": lambda worker, request: None},
        {"post_request": lambda worker, request, environ, response: None},
        {"statsd_host": "localhost:8125"},
        {"certfile": __file__},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_there_is_no_lane_where_somebody_wants_to_hear_of_each_request_or_has_a_say_in_it(setting):
    def opened(**more: Any) -> bool:
        front = Front.__new__(Front)
        front.cfg, front.lane = Config(), None
        for name, value in more.items():
            front.cfg.set(name, value)
        front.open_lane(Express())  # type: ignore[arg-type]
        return front.lane is not None

    assert opened()
    assert opened(workers=3, threads=8, keepalive=75)
    assert not opened(**setting)


def test_a_connection_that_gunicorn_has_not_read_from_has_nothing_left_over():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        conn = Conn(Config(), ours, ("192.0.2.7", 5), ("127.0.0.1", 80))

        assert conn.left_over() == b""
        assert conn.address == "192.0.2.7"
        assert Conn(Config(), ours, b"/run/x", "/run/y").address == "/run/x"


def test_what_a_client_does_not_take_of_an_answer_is_kept_for_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        conn = Conn(Config(), ours, "", "")
        conn.unsent = bytearray()
        data = json.dumps(list(range(500_000))).encode()

        assert Front.write(Front.__new__(Front), conn, data)
        assert conn.unsent
        came = b""
        while len(came) + len(conn.unsent) < len(data):
            came += theirs.recv(1 << 20)
        assert came + conn.unsent == data

        theirs.close()
        assert not Front.write(Front.__new__(Front), conn, data)
