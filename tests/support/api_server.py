"""The real app behind a real socket, in the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines


class _QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        return None


@contextmanager
def serving_app(app: Flask) -> Iterator[str]:
    """The address of this app."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@contextmanager
def serving(dsn: str, pipelines: Pipelines | None = None) -> Iterator[str]:
    """The address of a service on this database."""
    pool, closing = Pool(dsn, size=2, overflow=4), threading.Event()
    app = create_app(JobQueue(pool), pipelines or Pipelines(), WebOptions(version="1"), pool=pool, closing=closing)
    try:
        with serving_app(app) as url:
            try:
                yield url
            finally:
                closing.set()
    finally:
        pool.close()
