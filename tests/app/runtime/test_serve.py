from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dataloader.app.config import load_settings
from dataloader.app.db.pool import Pool
from dataloader.app.errors import ConfigError, PortTaken
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.runtime import serve
from dataloader.app.runtime.database import Database
from dataloader.app.runtime.serve import gunicorn_settings, is_public, require_key_if_public
from tests.support import eventually, free_port
from tests.support.processes import Process


class Startup:
    """`serve` up to the check of the keys, in which it makes a call. The database does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._call: Callable[[], object] = lambda: None
        monkeypatch.setattr(serve, "set_up_logging", lambda settings: None)
        monkeypatch.setattr(serve, "require_key_if_public", lambda *_: self._check_keys())

    def _check_keys(self) -> None:
        self.calls += 1
        self._call()

    def run(self, port: int, call: Callable[[], object] = lambda: None, *, host: str = "127.0.0.1") -> int:
        self._call = call
        values = {"APP_HOST": host, "APP_PORT": str(port), "DL_DB_DSN": "host=127.0.0.1 port=1"}
        return serve.serve(load_settings(values, dotenv=None), workers=False, banner=lambda startup: None)


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch) -> Startup:
    return Startup(monkeypatch)


def test_taken_port_is_reported_before_anything_starts(startup: Startup):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(PortTaken, match=rf"port {port}: another process listens there already"):
            startup.run(port)
    assert startup.calls == 0


def test_what_was_listened_on_is_free_again(startup: Startup):
    port = free_port()

    def refuse_to_start() -> None:
        socket.create_connection(("127.0.0.1", port)).close()
        raise ConfigError([])

    with pytest.raises(ConfigError):
        startup.run(port, refuse_to_start)

    socket.create_server(("127.0.0.1", port)).close()


def test_unknown_host_is_reported(startup: Startup):
    with pytest.raises(PortTaken, match=r"nowhere\.invalid"):
        startup.run(free_port(), host="nowhere.invalid")


def test_startup_records_signals_until_second_ctrl_c(startup: Startup):
    before = signal.getsignal(signal.SIGTERM)

    assert startup.run(free_port(), lambda: signal.raise_signal(signal.SIGTERM)) == 0
    assert signal.getsignal(signal.SIGTERM) is before

    def interrupt_twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert startup.run(free_port(), interrupt_twice) == 0
    assert startup.calls == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_under_nohup_a_closed_terminal_means_nothing(startup: Startup):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handlers: list[object] = []

    def stop() -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        signal.raise_signal(signal.SIGTERM)

    try:
        assert startup.run(free_port(), stop) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert handlers == [signal.SIG_IGN]


def test_gunicorn_gives_an_end_all_the_time_it_may_need():
    settings = load_settings({"DL_SHUTDOWN_GRACE_SEC": "900", "APP_HOST": "::1", "APP_PORT": "81"}, dotenv=None)

    options = gunicorn_settings(settings)

    assert options["graceful_timeout"] >= 930
    assert options["timeout"] > options["graceful_timeout"], "an ending worker is not taken for a stuck one"
    assert options["bind"] == "[::1]:81"
    assert options["preload_app"] is False


@pytest.fixture
def settings(dsn):
    return load_settings({"DL_DB_DSN": dsn}, dotenv=None)


def a_key(dsn: str, *scopes: Scope) -> str:
    pool = Pool(dsn, size=1, overflow=0)
    try:
        return ApiKeys(pool).create(NewApiKey(name="k", scopes=frozenset(scopes), created_by="test"))[1]
    finally:
        pool.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "[::]", "", "my.host.example", "0"])
def test_others_can_reach_it(host):
    assert is_public(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "unix:/run/x", "/run/x"])
def test_only_this_machine_can(host):
    assert not is_public(host)


def test_without_a_key_it_is_a_fault_that_says_what_would_do(settings):
    with pytest.raises(ConfigError, match=r"(?s)APP_HOST: found '0.0.0.0'.*no API key.*keys create.*DL_AUTH=none"):
        require_key_if_public(settings, Database(settings), ["127.0.0.1", "0.0.0.0"])


def test_on_this_machine_alone_it_needs_none(settings):
    require_key_if_public(settings, Database(settings), ["127.0.0.1", "localhost"])


def test_a_key_will_do(settings, dsn):
    a_key(dsn, Scope.READ)

    require_key_if_public(settings, Database(settings), ["0.0.0.0"])


def test_explicit_public_access_is_accepted(dsn, caplog):
    settings = load_settings({"DL_DB_DSN": dsn, "DL_AUTH": "none"}, dotenv=None)

    require_key_if_public(settings, Database(settings), ["0.0.0.0"])

    assert "auth.disabled" in caplog.text


def test_without_tables_there_is_no_key(empty_dsn):
    settings = load_settings({"DL_DB_DSN": empty_dsn}, dotenv=None)

    with pytest.raises(ConfigError):
        require_key_if_public(settings, Database(settings), ["::"])


def test_unavailable_database_admits_only_local_callers(caplog):
    settings = load_settings({"DL_DB_DSN": "host=127.0.0.1 port=1"}, dotenv=None)

    require_key_if_public(settings, Database(settings), ["0.0.0.0"])

    assert "auth.keys_unknown" in caplog.text


def test_serve_refuses_to_start(start, dsn):
    process = start("serve", "--host", "0.0.0.0", "--port", str(free_port()), "--no-workers", env={"DL_DB_DSN": dsn})

    assert process.wait() == 78
    assert "no API key" in process.text


def test_gunicorn_alone_refuses_too_and_serves_with_a_key(dsn, tmp_path):
    """Its own -b says where it listens, whatever the settings say."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-b", f"0.0.0.0:{port}", "wsgi:app"]
    env = {"DL_DB_DSN": dsn, "WORKERS_JSON": "[]", "APP_HTTP_THREADS": "2"}

    with Process(command, output=tmp_path / "refused.log", env=env) as refused:
        assert refused.wait() == 78
        assert "no API key" in refused.text

    token = a_key(dsn, Scope.READ)
    with Process(command, output=tmp_path / "served.log", env=env) as served:
        served.wait_for_port(port)
        eventually(lambda: answer(port, "/health") == 200, timeout_sec=30)
        assert answer(port, "/api/v1/jobs") == 401
        assert answer(port, "/api/v1/jobs", token) == 200


def answer(port: int, path: str, token: str | None = None) -> int | None:
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=10) as response:  # noqa: S310 - our own service
            return int(response.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return None
