"""The lane for triggers: many answered by one thread, and nobody held up by another."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from app.config import Settings
from app.errors import DatabaseUnavailable
from app.host.arrival import Arrival, Sizes
from app.host.client import Conn
from app.host.front import Front
from app.host.guest import GunicornLog, gunicorn_settings
from app.host.lane import LONG, Lane, in_the_way
from app.web.again import Again
from app.web.express import PATH, Answer, Wanted
from tests.support import eventually

LINE = f"POST {PATH} HTTP/1.1\r\n".encode()


class Express:
    """Reads the text of a body, and answers by it; waits for "slow" until told to go on."""

    def __init__(self) -> None:
        self.go, self.batches, self.read_by = threading.Event(), list[list[str]](), list[str]()

    def read(self, environ: Any, body: bytes) -> Wanted | Again:
        text = body.decode()
        self.read_by.append(text)
        if text == "slow to read":
            assert self.go.wait(30)
        if text == "the end, read":
            raise SystemExit(3)
        return Again("id") if text == "odd" else Wanted(environ, text, None, None, "", 0.0)  # type: ignore[arg-type]

    def answer(self, wanted: Sequence[Wanted]) -> list[Answer | Again]:
        bodies = [one.request_id for one in wanted]
        self.batches.append(bodies)
        if "slow" in bodies:
            assert self.go.wait(30)
        if "bug" in bodies:
            raise RuntimeError("a bug")
        if "the end" in bodies:
            raise SystemExit(3)
        return [self._one(body) for body in bodies]

    @staticmethod
    def _one(body: str) -> Answer | Again:
        if body == "lost":
            return Again("id", told=True, failure=DatabaseUnavailable("away"))
        return Answer("X-Said: yes\r\n", body.encode())


class Door:
    """What the lane needs of the door; its main thread is the test's."""

    def __init__(self) -> None:
        self.lane: Any = None
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
        self.lane.look()

    def come(self, *clients: Any) -> None:
        """All in one turn of the main thread."""
        for one in clients:
            self.lane.take(one)
        self.lane.look()


class Client:
    def __init__(self, body: str, *, head: bytes = b"Host: localhost", name: str = "") -> None:
        self.name, self.address = name or body, "127.0.0.1"
        self.again: Again | None = None
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
def lane(door: Door, express: Express, monkeypatch: pytest.MonkeyPatch) -> Lane:
    monkeypatch.setattr("app.host.lane.LONG", 3600.0)  # a busy machine is slow, too
    made = door.lane = Lane(express, door, threads=4)  # type: ignore[arg-type]
    return made


def behind_the_first(door: Door, express: Express, *clients: Client) -> None:
    """The first is away while the others come; then it comes back, and the others after it."""
    for one in clients:
        door.come(one)
        eventually(lambda: express.batches)
    express.go.set()
    door.turn()
    door.turn()


def test_those_that_come_while_one_is_away_are_answered_together(lane, door, express):
    slow, others = Client("slow"), [Client(f"{n}") for n in range(3)]
    door.come(slow)
    eventually(lambda: express.batches)
    for one in others:
        door.come(one)
    express.go.set()
    door.turn()
    door.turn()

    assert express.batches == [["slow"], ["0", "1", "2"]]
    assert door.finished == dict.fromkeys([slow, *others], True)
    assert not door.ordinary


def test_a_second_thread_goes_when_it_is_worth_it_and_a_third_does_not(lane, door, express):
    slow = [Client("slow", name=f"slow {n}") for n in range(12)]
    door.come(slow[0])
    eventually(lambda: express.batches)
    door.come(*slow[1:4])
    assert lane.waits, "three are not worth it"
    door.come(slow[4])
    eventually(lambda: len(express.batches) == 2)
    door.come(*slow[5:])
    assert lane.waits
    express.go.set()
    while len(door.finished) < len(slow):
        door.turn()

    assert [len(batch) for batch in express.batches] == [1, 4, 7]


def test_an_answer_is_whole_and_says_what_gunicorns_would(lane, door):
    one = Client("hello")
    door.come(one)
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
    behind_the_first(door, express, slow, odd, cookie, plain)

    assert door.ordinary == [odd, cookie]
    assert set(door.finished) == {slow, plain}
    assert express.batches == [["slow"], ["2"]]


def test_a_client_that_has_hung_up_is_let_go(lane, door):
    gone = Client("x", name="gone")
    door.come(gone)
    door.turn()

    assert door.finished == {gone: False}


def test_what_was_asked_for_and_not_answered_goes_on_with_what_it_came_to(lane, door):
    lost = Client("lost")
    door.come(lost)
    door.turn()

    assert door.ordinary == [lost]
    assert lost.again is not None
    assert isinstance(lost.again.failure, DatabaseUnavailable)


@pytest.mark.parametrize("what", ["bug", "the end"])
def test_when_nobody_knows_what_was_asked_nobody_asks_again_and_the_main_thread_goes_on(lane, door, express, what):
    slow, odd, bug, other = Client("slow"), Client("odd"), Client(what), Client("other")
    behind_the_first(door, express, slow, odd, bug, other)

    assert door.ordinary == [odd], "it was not asked for"
    assert door.finished == {slow: True, bug: False, other: False}
    door.come(after := Client("after"))
    door.turn()
    assert door.finished[after]


def test_an_end_before_anything_was_asked_sends_all_the_ordinary_way(lane, door, express):
    slow, end, other = Client("slow"), Client("the end, read"), Client("other")
    behind_the_first(door, express, slow, other, end)

    assert door.ordinary == [other, end]
    assert express.batches == [["slow"]]


def test_those_behind_one_that_takes_long_to_look_at_are_taken_by_the_next_thread(lane, door, express, monkeypatch):
    monkeypatch.setattr("app.host.lane.LONG", LONG)
    first, slow, behind = Client("first"), Client("slow to read"), [Client(f"{n}") for n in range(3)]
    door.come(first)
    door.turn()
    door.come(slow)
    eventually(lambda: "slow to read" in express.read_by)
    for one in behind:
        door.come(one)
    eventually(lambda: lane.look() or len(express.batches) == 2, timeout=20 * LONG + 10)
    door.turn()

    assert set(door.finished) == {first, *behind}
    express.go.set()
    door.turn()
    assert door.finished[slow]


def test_what_is_away_for_long_is_overtaken_but_not_by_more_threads_than_there_are(lane, door, express, monkeypatch):
    monkeypatch.setattr("app.host.lane.LONG", LONG)
    away = [Client("slow", name=f"slow {n}") for n in range(6)]

    def away_are(count: int) -> bool:
        lane.look()
        return len(express.batches) == count

    for n, one in enumerate(away):
        door.come(one)
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


def test_a_large_request_is_not_for_the_lane():
    def is_for(body: bytes, *, line: bytes = LINE) -> bool:
        arrival = Arrival(Sizes())
        arrival.take(line + b"Host: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return Lane.is_for(arrival)

    assert is_for(b"{}")
    assert is_for(b"x" * 16_000)
    assert not is_for(b"x" * 17_000)
    assert not is_for(b"{}", line=b"POST /api/v1/jobs/batch HTTP/1.1\r\n")
    assert not is_for(b"{}", line=LINE.replace(b"1.1", b"1.0"))
    assert not is_for(b"{}", line=LINE.replace(b"trigger", b"trigger?a=b"))


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
        {"limit_request_fields": 4},
        {"limit_request_field_size": 60},
        {"limit_request_line": 100},
        {"logconfig_json": __file__},
        {"logconfig_dict": {"version": 1}},
        {"secure_scheme_headers": {"X-Secure": "yes"}},
        {"forwarder_headers": "REMOTE_USER"},
        {"header_map": "refuse"},
        {"permit_obsolete_folding": True},
        {"strip_header_spaces": True},
        {"syslog": True},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_there_is_no_lane_where_somebody_wants_to_hear_of_each_request_or_has_a_say_in_it(setting, caplog):
    def opened(**more: Any) -> bool:
        front = Front.__new__(Front)
        front.cfg, front.lane = Config(), None
        for name, value in more.items():
            front.cfg.set(name, value)
        front.log = Logger(Config())
        front.open_lane(Express())  # type: ignore[arg-type]
        return front.lane is not None

    assert opened()
    assert opened(workers=3, threads=8, keepalive=75, bind="127.0.0.1:1", proc_name="x", worker_connections=5)
    caplog.set_level(logging.INFO)
    assert not opened(**setting)
    assert [record.fields for record in caplog.records if record.message == "api.lane.closed"] == [
        {"why": next(iter(setting))}
    ]


def test_there_is_no_lane_below_another_address_or_beside_a_logger_that_hears_of_each(monkeypatch):
    class Hears(Logger):  # type: ignore[misc]
        def access(self, *args: Any) -> None: ...

    assert in_the_way(Config(), Logger(Config())) is None
    assert in_the_way(Config(), Hears(Config())) == "logger_class"
    monkeypatch.setenv("SCRIPT_NAME", "/below")
    assert in_the_way(Config(), Logger(Config())) == "SCRIPT_NAME"


def test_the_settings_that_we_give_gunicorn_leave_the_lane_open():
    config = Config()
    for name, value in gunicorn_settings(Settings.load({}, dotenv=None)).items():
        config.set(name, value)

    assert in_the_way(config, GunicornLog(config)) is None


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
