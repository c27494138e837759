from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dataloader.app.runtime import preemption
from dataloader.app.runtime.preemption import PreemptionNotice, watching
from tests.support import eventually, free_port


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "_POLL_INTERVAL_SEC", 0.01)


@pytest.fixture
def metadata() -> Iterator[HTTPServer]:
    """Serves the status and the body in `answer`, as the metadata server of a machine does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = server.answer  # type: ignore[attr-defined]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.answer = (404, b"")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_file_that_appears_stops_with_what_the_notice_leaves(tmp_path):
    graces: list[float] = []
    with watching(PreemptionNotice.parse(f"file:{tmp_path}/notice", 120), graces.append):
        assert graces == []
        (tmp_path / "notice").touch()
        eventually(lambda: graces == [100])


def test_address_gives_notice_by_200_with_a_body(metadata):
    notice = PreemptionNotice.parse(f"http://127.0.0.1:{metadata.server_port}/spot", 30)
    answers = [
        (404, b""),
        (500, b"no"),
        (200, b"FALSE"),
        (200, b"NONE\n"),
        (200, b"TRUE"),
        (200, b'{"action": "stop"}'),
    ]

    seen = []
    for metadata.answer in answers:
        seen.append(notice.has_appeared())
    silent = PreemptionNotice.parse(f"http://127.0.0.1:{free_port()}/", 30).has_appeared()

    assert seen == [False, False, False, False, True, True]
    assert silent is False
    assert notice.grace_sec == 10


def test_polled_address_stops_once(metadata):
    graces: list[float] = []
    with watching(PreemptionNotice.parse(f"http://127.0.0.1:{metadata.server_port}/", 10), graces.append):
        metadata.answer = (200, b"TRUE")
        eventually(lambda: graces == [0])


def test_signal_is_a_notice():
    graces: list[float] = []
    before = signal.getsignal(signal.SIGUSR2)
    try:
        with watching(PreemptionNotice.parse("signal:usr2", 60), graces.append):
            os.kill(os.getpid(), signal.SIGUSR2)
            eventually(lambda: graces == [40])
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_without_notice_nothing_is_watched():
    with watching(None, lambda grace_sec: None):
        assert "preemption-notice" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("text", ["", "file:", "signal:TERM", "signal:NONE", "ftp://host/", "/tmp/notice"])
def test_source_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|not a signal"):
        PreemptionNotice.parse(text, 30)
