"""Answers of an engine that are long, slow, or without an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dataloader.pipelines.executors.http import AnswerTooLarge, HttpApi
from dataloader.pipelines.offload import EngineUnavailable

PIECE = b"x" * 2_047 + b"\n"


class PieceServer(ThreadingHTTPServer):
    """Sends an answer in pieces, each of them a chunk, as an API server sends the log of a pod."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces: Callable[[], Iterator[bytes]] = lambda: iter(())
        self.is_raw = False  # the pieces are all that is sent, head included

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PieceServer

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        with suppress(ConnectionError):
            if not self.server.is_raw:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
            for piece in self.server.pieces():
                self.wfile.write(piece if self.server.is_raw else b"%x\r\n%s\r\n" % (len(piece), piece))
            if not self.server.is_raw:
                self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[PieceServer]:
    with PieceServer() as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def bytes_for_ever() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX-Slow: "
    while True:
        time.sleep(0.05)
        yield b"."


def body_for_ever() -> Iterator[bytes]:
    while True:
        time.sleep(0.05)
        yield b"."


def test_answer_in_small_pieces_is_collected_in_linear_time(server: PieceServer):
    server.pieces = lambda: iter([PIECE] * 8_000)
    api = HttpApi(server.address)
    began = time.thread_time()

    answer = api.send("GET", "/log", max_bytes=32_000_000)

    assert answer.content == PIECE * 8_000
    assert time.thread_time() - began < 3, "16 MB in pieces of 2 kB"


@pytest.mark.parametrize(("pieces", "is_raw"), [(body_for_ever, False), (bytes_for_ever, True)], ids=["body", "head"])
def test_answer_that_does_not_end_is_given_up(server: PieceServer, pieces: Any, is_raw: bool):
    server.pieces, server.is_raw = pieces, is_raw
    began = time.monotonic()

    with pytest.raises(EngineUnavailable, match=r"has not sent its answer within 0.5 s"):
        HttpApi(server.address).send("GET", "/log", timeout_sec=0.5)

    assert time.monotonic() - began < 8, "less than the time limit of one read"


def test_answer_has_a_bound(server: PieceServer):
    server.pieces = lambda: iter([PIECE] * 8_000)

    with pytest.raises(AnswerTooLarge, match="more than 1,000,000 bytes: /log"):
        HttpApi(server.address).send("GET", "/log", max_bytes=1_000_000)
    with pytest.raises(AnswerTooLarge, match="more than 4,000,000 bytes"):
        HttpApi(server.address).send("GET", "/status")
