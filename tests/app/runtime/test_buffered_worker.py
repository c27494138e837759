"""The parts of the request buffering worker that need no client; real clients are in tests/hostile/test_requests.py."""

from __future__ import annotations

import socket

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from dataloader.app.config import load_settings
from dataloader.app.runtime.buffered_worker import BufferedWorker
from dataloader.app.runtime.connection import Connection
from dataloader.app.runtime.serve import answer_unreadable_bodies
from dataloader.app.runtime.service import Service

BODIES = {
    b"3\r\nabc\r\n0\r\nbad\r\n\r\n": "a trailer without a colon",
    b"zz\r\n": "a size of letters",
    b"1\r\nabc\r\n": "a chunk that is longer than its size",
}


@pytest.mark.parametrize("body", BODIES, ids=BODIES.get)
def test_parser_error_in_a_body_is_a_bad_request(body: bytes):
    """As the app meets it behind TLS of gunicorn's own, where nothing is gathered first."""
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parsed = next(RequestParser(Config(), iter([head + body]), ("127.0.0.1", 1)))
    service = Service(load_settings({"DL_PIPELINES": "dataloader.pipelines.noop", "DL_AUTH": "none"}, dotenv=None))
    answer_unreadable_bodies(service.app)
    environ = {"wsgi.input": parsed.body, "wsgi.input_terminated": True}

    response = service.app.test_client().post(
        "/api/v1/jobs/trigger", content_type="application/json", environ_overrides=environ
    )

    assert response.status_code == 400
    assert "chunks or trailers" in response.get_json()["detail"]
    assert parsed.body.failed, "the connection is not used again"


def test_gunicorn_has_every_private_name_in_use():
    with socket.socket() as ours:
        conn = Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2))
        conn.init()
    request = next(RequestParser(Config(), iter([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]), ("127.0.0.1", 1)))
    worker = BufferedWorker(1, 1, [], None, 30, Config(), None)
    worker.tmp.close()

    assert {"poller", "method_queue", "tpool", "nr_conns", "worker_connections"} <= vars(worker).keys()
    overridden = ("accept", "handle", "handle_request", "finish_request", "murder_pending")
    assert all(hasattr(ThreadWorker, name) for name in overridden)
    assert request._expected_100_continue is False
    assert all(hasattr(conn.parser, name) for name in ("unreader", "finish_body"))
    assert all(hasattr(conn.parser.unreader, name) for name in ("sock", "unread", "take_buffered"))
