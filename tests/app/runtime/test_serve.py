from __future__ import annotations

import signal
import socket

import pytest

from app.config import load_settings
from app.errors import PortTaken
from app.runtime import serve
from app.runtime.serve import gunicorn_settings
from tests.support import free_port


def test_taken_port_is_reported_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(PortTaken, match=rf"port {port}: another process listens there already"):
            serve._bind_socket("127.0.0.1", port).__enter__()


def test_what_was_listened_on_is_free_again():
    port = free_port()
    with serve._bind_socket("127.0.0.1", port) as door:
        assert door.getsockname() == ("127.0.0.1", port)

    socket.create_server(("127.0.0.1", port)).close()


def test_unknown_host_is_reported():
    with pytest.raises(PortTaken, match=r"nowhere\.invalid"):
        serve._bind_socket("nowhere.invalid", free_port()).__enter__()


def test_startup_records_signals_until_second_ctrl_c():
    before = signal.getsignal(signal.SIGTERM)
    with serve._hold_signals() as received:
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGTERM) is before


def test_under_nohup_a_closed_terminal_means_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serve._hold_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_gunicorn_gives_an_end_all_the_time_it_may_need():
    settings = load_settings({"DL_SHUTDOWN_GRACE_SEC": "900", "APP_HOST": "::1", "APP_PORT": "81"}, dotenv=None)

    options = gunicorn_settings(settings)

    assert options["graceful_timeout"] >= 930
    assert options["timeout"] > options["graceful_timeout"], "an ending worker is not taken for a stuck one"
    assert options["bind"] == "[::1]:81"
    assert options["preload_app"] is False
