"""The service on gunicorn's own threaded worker: if it is asked for, and behind gunicorn's TLS."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import Process, eventually, free_port
from tests.support.real_service import FAST_SETTINGS, ServiceJobs
from tests.support.sockets import TRIGGER, send_and_read

BAD_CHUNK = f"POST {TRIGGER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n".encode() + (
    b"Content-Type: application/json\r\nConnection: close\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
)


@contextmanager
def run_gunicorn(dsn: str, port: int, folder: Path, *options: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "gunicorn", *options, "wsgi:app"]
    env = {**FAST_SETTINGS, "APP_PORT": str(port), "DL_DB_DSN": dsn}
    with Process(command, output=folder / "gunicorn.log", env=env) as process:
        process.wait_for_port(port, 60)
        yield process


def test_unbuffered_service_answers_runs_jobs_and_stops(dsn: str, jobs: ServiceJobs, tmp_path: Path):
    port = free_port()
    with run_gunicorn(dsn, port, tmp_path, "--worker-class", "dataloader.app.runtime.serve.ServiceWorker") as process:
        jobs.insert()
        jobs.wait_for_counts({"succeeded": 1})

        assert send_and_read(port, BAD_CHUNK).status == 400
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_gunicorn_with_a_certificate_answers_over_tls(dsn: str, tmp_path: Path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    context.check_hostname = False
    port = free_port()
    options = ["--certfile", str(tmp_path / "cert.pem"), "--keyfile", str(tmp_path / "key.pem")]

    def is_healthy() -> bool:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", timeout=10, context=context) as response:
            return bool(response.status == 200)

    with run_gunicorn(dsn, port, tmp_path, *options) as process:
        eventually(is_healthy, 60)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
