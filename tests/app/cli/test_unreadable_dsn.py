"""A connection string that libpq cannot read is a configuration error, and its password is shown nowhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from dataloader.app.cli.exit_codes import ExitCode, error_report
from dataloader.app.config import dsn, load_settings
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.runtime.service import Service, set_up_logging
from tests.support import eventually, free_port

PASSWORD = "hunter2"
UNREADABLE = (
    "postgresql://u:hunter2%zz@127.0.0.1:1/db",
    "postgresql://u:hunter2%@127.0.0.1:1/db",
    "postgresql://u:hunter2%00@127.0.0.1:1/db",
    "postgresql://u:hunter2@[::1/db",
    "postgresql://u:hunter2@[]/db",
    "postgresql://u:hunter2@[::1]x/db",
    "postgresql://u:hunter2@127.0.0.1:1/db?pasword=hunter2",
    "postgresql://u:hunter2@127.0.0.1:1/db?options=a=b",
    "postgresql://u:hunter2@127.0.0.1:1/db?&sslmode=disable",
    "postgresql://u:hunter2@127.0.0.1:1/db?sslmode",
    "Postgresql://u:hunter2@127.0.0.1:1/db",
    "host=127.0.0.1 password=hunter2 hunter2",
    "host=127.0.0.1 password=x hunter2=x",
    "host=127.0.0.1 password='hunter2",
    "host=127.0.0.1 password=hunter2 ='x'",
    "postgresql://u:hunter2\udcff@127.0.0.1:1/db",
)
# libpq reads these, and shows a piece of the password as a host, a port or a database.
MISREAD = (
    "postgresql://u:x@hunter2@127.0.0.1:1/db",
    "postgresql://u:1/x@hunter2",
    "postgresql://u:hunter2/x@127.0.0.1/db",
    "host=127.0.0.1 port=hunter2",
)
COMMANDS = (
    ("migrate",), ("migrate", "--json"), ("doctor",), ("doctor", "--json"), ("prune",), ("prune", "--dry-run"),
    ("keys", "list"), ("keys", "create", "k", "--scope", "admin"), ("keys", "revoke", "k"), ("serve",), ("worker",),
    ("run", "noop"), ("tasks",), ("config",),
)  # fmt: skip
VARIABLES = ("DL_DB_DSN", "DL_WORKER_DSN", "DL_TARGETS")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("PG_HOST", *VARIABLES):
        monkeypatch.delenv(variable, raising=False)


def given(variable: str, text: str) -> dict[str, str]:
    sound = {"DL_DB_DSN": "postgresql://u@127.0.0.1:1/db"}
    return sound | {variable: json.dumps({"default": text}) if variable == "DL_TARGETS" else text}


@pytest.mark.parametrize("text", UNREADABLE)
def test_libpq_cannot_read_them(text):
    with pytest.raises((psycopg2.ProgrammingError, UnicodeError)):
        parse_dsn(text)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("variable", VARIABLES)
def test_unreadable_dsn_ends_each_command_with_78(run, monkeypatch, capfd, caplog, variable, command):
    for text in (*UNREADABLE, *MISREAD):
        for name, value in given(variable, text).items():
            monkeypatch.setenv(name, value)

        shown = run(*command)

        assert shown.exit_code == ExitCode.CONFIG, (text, shown.output)
        assert variable in shown.stderr
        assert PASSWORD not in shown.output + caplog.text + "".join(capfd.readouterr()), text


def test_error_says_how_percent_sign_is_written(run, monkeypatch):
    monkeypatch.setenv("DL_DB_DSN", UNREADABLE[0])

    assert "write % as %25" in run("migrate").stderr


@pytest.fixture
def lenient_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a libpq of another version refused what our own parser reads."""
    monkeypatch.setattr(dsn, "parse_dsn", lambda text: {})


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] not in ("tasks", "config")], ids=" ".join)
def test_libpq_refusal_ends_each_command_with_78(run, monkeypatch, capfd, lenient_parser, command):
    monkeypatch.setenv("APP_PORT", str(free_port()))
    monkeypatch.setenv("DL_PIPELINES", "dataloader.pipelines.noop")
    handlers = logging.getLogger().handlers[:]
    try:
        for text in UNREADABLE[:3]:
            monkeypatch.setenv("DL_DB_DSN", text)

            shown = run(*command)

            assert shown.exit_code == ExitCode.CONFIG, (text, shown.output)
            assert PASSWORD not in shown.output + "".join(capfd.readouterr()), text
    finally:
        logging.getLogger().handlers[:] = handlers


def test_status_hides_dsn_that_libpq_refuses(monkeypatch, capfd, lenient_parser):
    environ = {"DL_DB_DSN": UNREADABLE[0], "DL_PIPELINES": "dataloader.pipelines.noop", "DL_AUTH": "none"}
    settings = load_settings(environ, dotenv=None)
    handlers = logging.getLogger().handlers[:]
    set_up_logging(settings)
    service = Service(settings)
    try:
        service.app.config["PROPAGATE_EXCEPTIONS"] = False
        service.start()
        eventually(lambda: service.failure)
        answer = service.app.test_client().get("/status")

        assert answer.status_code >= 500
        assert PASSWORD not in answer.get_data(as_text=True) + "".join(capfd.readouterr())
        assert service.failure
    finally:
        service.close()
        logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize(
    "message",
    [
        'invalid dsn: invalid percent-encoded token: "postgresql://u:hunter2%zz@host/db"',
        'missing "=" after "postgresql://u:hunter2@host/db" in connection info string',
        "cannot read host=db password=hunter2 user=x",
        "cannot read host=db password='hunter2 x' user=x",
    ],
)
def test_errors_of_other_origin_are_redacted(message):
    shown = error_report(DatabaseUnavailable(message))

    assert PASSWORD not in shown.detail
    assert "***" in shown.detail
