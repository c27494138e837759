"""A service that others can reach does not start without a key, unless it says that it needs none."""

from __future__ import annotations

import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from app.admin.api_keys import ApiKeys, NewApiKey, Scope
from app.config import load_settings
from app.db.pool import Pool
from app.errors import ConfigError
from app.runtime.database import Database
from app.runtime.serve import is_public, require_key_if_public
from tests.support import eventually, free_port
from tests.support.processes import Process


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
