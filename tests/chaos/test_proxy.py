"""The proxy does to connections what networks do, and stops doing it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.chaos.proxy import Proxy
from tests.support.waiting import eventually


class Echo:
    """A server that says back what it hears."""

    def __init__(self, path: Path, *, prefix: bytes = b"") -> None:
        self.address, self._prefix = str(path), prefix
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen()
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), closing(connection):
            while heard := connection.recv(4096):
                connection.sendall(self._prefix + heard)
        self.connections -= 1

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    with closing(Echo(tmp_path / "echo")) as made:
        yield made


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with closing(Proxy(echo.address)) as made:
        yield made


def client(proxy: Proxy) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    made.settimeout(10)
    return made


def answer(line: socket.socket, said: bytes = b"hello") -> bytes:
    line.sendall(said)
    return line.recv(4096)


def nothing_comes(line: socket.socket) -> bool:
    """A fifth of a second proves little; that it comes afterwards proves the rest."""
    line.settimeout(0.2)
    try:
        line.recv(4096)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        line.settimeout(10)


def ended(line: socket.socket) -> bool:
    try:
        return line.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_it_brings_everything_across(proxy):
    with client(proxy) as line:
        assert answer(line) == b"hello"
        assert answer(line, b"again") == b"again"


def test_a_black_hole_keeps_what_was_sent_and_lets_it_through_when_it_ends(proxy):
    with client(proxy) as line:
        assert answer(line) == b"hello"
        proxy.silence()
        line.sendall(b"into the hole")
        assert nothing_comes(line)
        proxy.heal()

        assert line.recv(4096) == b"into the hole"


def test_nobody_gets_through_a_black_hole_to_connect(proxy, echo):
    proxy.silence()
    with client(proxy) as line:
        line.sendall(b"hello")
        assert nothing_comes(line)
        assert echo.connections == 0
        proxy.heal()

        assert line.recv(4096) == b"hello"


def test_one_way_the_server_hears_and_the_client_does_not(proxy, echo):
    with client(proxy) as line:
        assert answer(line) == b"hello"
        proxy.deafen()
        line.sendall(b"heard?")
        assert nothing_comes(line)
        proxy.heal()

        assert line.recv(4096) == b"heard?"


def test_a_cut_ends_both_sides(proxy, echo):
    with client(proxy) as line:
        assert answer(line) == b"hello"

        assert proxy.cut() == 1
        assert ended(line)
        eventually(lambda: echo.connections == 0)
    with client(proxy) as again:
        assert answer(again) == b"hello"


def test_half_open_the_server_has_gone_and_the_client_is_not_told(proxy, echo):
    with client(proxy) as line:
        assert answer(line) == b"hello"

        proxy.half_open()
        eventually(lambda: echo.connections == 0)
        line.sendall(b"anybody there?")
        assert nothing_comes(line)
        proxy.cut_halves()
        assert ended(line)
    with client(proxy) as again:
        assert answer(again) == b"hello"


def test_slow_is_late_and_nothing_else(proxy):
    with client(proxy) as line:
        proxy.slow(0.1)
        began = time.monotonic()

        assert answer(line) == b"hello"
        assert time.monotonic() - began >= 0.1


def test_who_is_connected_stays_when_new_ones_are_refused(proxy):
    with client(proxy) as line:
        assert answer(line) == b"hello"
        proxy.refuse()

        with pytest.raises(ConnectionRefusedError):
            client(proxy)
        assert answer(line) == b"hello"
    proxy.heal()
    with client(proxy) as again:
        assert answer(again) == b"hello"


def test_hanging_up_it_takes_a_connection_and_ends_it(proxy, echo):
    proxy.hang_up()

    with client(proxy) as line:
        assert ended(line)
    assert echo.connections == 0


def test_it_leads_to_another_server(proxy, tmp_path):
    with closing(Echo(tmp_path / "other", prefix=b"other: ")) as other, client(proxy) as line:
        assert answer(line) == b"hello"

        proxy.lead_to(other.address)
        assert ended(line)
        with client(proxy) as again:
            assert answer(again) == b"other: hello"


def test_nobody_is_connected_to_a_server_that_is_away(proxy, tmp_path):
    proxy.lead_to(str(tmp_path / "nobody"))

    with client(proxy) as line:
        assert ended(line)
