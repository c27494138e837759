"""The proxy does to connections what networks do, and stops doing it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.chaos.proxy import FaultProxy
from tests.support.waiting import eventually


class Echo:
    """An echo server."""

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
            while result := connection.recv(4096):
                connection.sendall(self._prefix + result)
        self.connections -= 1

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    with closing(Echo(tmp_path / "echo")) as made:
        yield made


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with closing(FaultProxy(echo.address)) as made:
        yield made


def client(proxy: FaultProxy) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    made.settimeout(10)
    return made


def exchange(client_socket: socket.socket, message: bytes = b"hello") -> bytes:
    client_socket.sendall(message)
    return client_socket.recv(4096)


def receives_nothing(client_socket: socket.socket) -> bool:
    """A fifth of a second proves little; that it comes afterwards proves the rest."""
    client_socket.settimeout(0.2)
    try:
        client_socket.recv(4096)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        client_socket.settimeout(10)


def is_closed(client_socket: socket.socket) -> bool:
    try:
        return client_socket.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_open_proxy_forwards_everything(proxy):
    with client(proxy) as line:
        assert exchange(line) == b"hello"
        assert exchange(line, b"again") == b"again"


def test_black_hole_delivers_held_data_when_healed(proxy):
    with client(proxy) as line:
        assert exchange(line) == b"hello"
        proxy.silence()
        line.sendall(b"into the hole")
        assert receives_nothing(line)
        proxy.heal()

        assert line.recv(4096) == b"into the hole"


def test_black_hole_blocks_new_connections(proxy, echo):
    proxy.silence()
    with client(proxy) as line:
        line.sendall(b"hello")
        assert receives_nothing(line)
        assert echo.connections == 0
        proxy.heal()

        assert line.recv(4096) == b"hello"


def test_one_way_blocks_responses_only(proxy, echo):
    with client(proxy) as line:
        assert exchange(line) == b"hello"
        proxy.block_responses()
        line.sendall(b"heard?")
        assert receives_nothing(line)
        proxy.heal()

        assert line.recv(4096) == b"heard?"


def test_a_cut_ends_both_sides(proxy, echo):
    with client(proxy) as line:
        assert exchange(line) == b"hello"

        assert proxy.cut() == 1
        assert is_closed(line)
        eventually(lambda: echo.connections == 0)
    with client(proxy) as again:
        assert exchange(again) == b"hello"


def test_half_open_client_keeps_a_closed_connection(proxy, echo):
    with client(proxy) as line:
        assert exchange(line) == b"hello"

        proxy.half_open()
        eventually(lambda: echo.connections == 0)
        line.sendall(b"anybody there?")
        assert receives_nothing(line)
        proxy.cut_half_open()
        assert is_closed(line)
    with client(proxy) as again:
        assert exchange(again) == b"hello"


def test_slow_proxy_only_delays(proxy):
    with client(proxy) as line:
        proxy.slow(0.1)
        began = time.monotonic()

        assert exchange(line) == b"hello"
        assert time.monotonic() - began >= 0.1


def test_refusing_proxy_keeps_existing_connections(proxy):
    with client(proxy) as line:
        assert exchange(line) == b"hello"
        proxy.refuse()

        with pytest.raises(ConnectionRefusedError):
            client(proxy)
        assert exchange(line) == b"hello"
    proxy.heal()
    with client(proxy) as again:
        assert exchange(again) == b"hello"


def test_hang_up_accepts_then_closes(proxy, echo):
    proxy.hang_up()

    with client(proxy) as line:
        assert is_closed(line)
    assert echo.connections == 0


def test_proxy_redirects_to_another_server(proxy, tmp_path):
    with closing(Echo(tmp_path / "other", prefix=b"other: ")) as other, client(proxy) as line:
        assert exchange(line) == b"hello"

        proxy.redirect_to(other.address)
        assert is_closed(line)
        with client(proxy) as again:
            assert exchange(again) == b"other: hello"


def test_missing_server_closes_the_connection(proxy, tmp_path):
    proxy.redirect_to(str(tmp_path / "nobody"))

    with client(proxy) as line:
        assert is_closed(line)
