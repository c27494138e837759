from __future__ import annotations

import signal
import socket

import pytest

from app.config import Settings
from app.errors import PortTaken
from app.host import web
from app.host.guest import gunicorn_settings
from tests.support import free_port


def test_an_address_is_taken_before_anything_else_and_refused_in_words():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(PortTaken, match=rf"port {port}: another process listens there already"):
            web._listening("127.0.0.1", port).__enter__()


def test_what_was_listened_on_is_free_again():
    port = free_port()
    with web._listening("127.0.0.1", port) as door:
        assert door.getsockname() == ("127.0.0.1", port)

    socket.create_server(("127.0.0.1", port)).close()


def test_a_host_nobody_knows_is_told():
    with pytest.raises(PortTaken, match=r"nowhere\.invalid"):
        web._listening("nowhere.invalid", free_port()).__enter__()


def test_a_signal_before_the_start_is_a_note_and_a_second_ctrl_c_insists():
    before = signal.getsignal(signal.SIGTERM)
    with web._early_signals() as early:
        signal.raise_signal(signal.SIGTERM)
        assert early.notes == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGTERM) is before


def test_under_nohup_a_closed_terminal_means_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with web._early_signals() as early:
            assert early.hangup_ignored
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_gunicorn_gives_an_end_all_the_time_it_may_need():
    settings = Settings.load({"DL_SHUTDOWN_GRACE_SEC": "900", "APP_HOST": "::1", "APP_PORT": "81"}, dotenv=None)

    options = gunicorn_settings(settings)

    assert options["graceful_timeout"] >= 930
    assert options["timeout"] > options["graceful_timeout"], "an ending worker is not taken for a stuck one"
    assert options["bind"] == "[::1]:81"
    assert options["preload_app"] is False
