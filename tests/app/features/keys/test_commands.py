"""keys and audit, with a real database and a real service's answers."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.features.audit.commands import AUDIT_LOG
from dataloader.app.http.auth.api_keys import ApiKeys
from tests.app.cli.fake_service import problem


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture
def run(dsn, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DL_DB_DSN", dsn)

    def ran(*args: str, **more: Any):
        return CliRunner().invoke(cli, list(args), **more)

    return ran


@pytest.mark.parametrize("scopes", [("read",), ("trigger",), ("read", "trigger")])
def test_first_key_without_operate_is_refused_with_command(run, scopes):
    wanted = ["keys", "create", "x", *(word for scope in scopes for word in ("--scope", scope))]

    refused = run(*wanted)

    assert refused.exit_code == 4
    assert "no valid API key has the scope operate or admin" in refused.stderr
    assert json.loads(run("keys", "list", "--json").stdout) == {"keys": []}
    (command,) = re.findall(r"first:  (.+)$", refused.stderr, re.MULTILINE)
    assert run(*shlex.split(command.partition("dataloader ")[2])).exit_code == 0
    assert run(*wanted).exit_code == 0, "an administrator's key is there"


def test_limited_key_after_revoked_admin_is_refused(run):
    run("keys", "create", "boss", "--scope", "operate")
    run("keys", "revoke", "boss")

    refused = run("keys", "create", "x", "--scope", "read", "--json")

    assert (refused.exit_code, json.loads(refused.stderr)["code"]) == (4, "refused")
    assert run("keys", "create", "x", "--scope", "read", "--allow-lockout").exit_code == 0


def test_a_key_is_shown_once_and_works(run, dsn):
    run("keys", "create", "boss", "--scope", "admin")
    made = run("keys", "create", "billing", "--scope", "trigger", "--task", "noop", "--expires", "90d")

    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    pool = Pool(dsn, size=1, overflow=0)
    (live,) = (key for key in ApiKeys(pool).active().keys if key.name == "billing")
    assert re.fullmatch(r"dlk_[0-9a-f]{12}_[0-9a-f]{48}", token)
    assert (live.name, live.tasks) == ("billing", frozenset({"noop"}))
    assert 89 * 86400 < (live.expires_in_sec or 0) <= 90 * 86400
    assert "tasks noop" in made.stderr
    shown = run("keys", "list").output
    assert "billing" in shown
    assert token[17:] not in shown

    line, _ = AuditLog(pool).entries(subject="key")
    assert (line.action, line.via) == ("keys create", "command")
    assert line.actor.startswith("account ")
    assert line.after["digest"] == "…"
    pool.close()


def test_a_key_is_revoked_by_its_name_and_by_its_id(run, dsn):
    for name in ("one", "two", "two"):
        run("keys", "create", name, "--scope", "operate", "--json")
    ids = [key["key_id"] for key in json.loads(run("keys", "list", "--json").stdout)["keys"]]

    assert run("keys", "revoke", "two").stdout.count("Revoked") == 2
    assert run("keys", "revoke", ids[-1]).exit_code == 0
    assert {key["state"] for key in json.loads(run("keys", "list", "--json").stdout)["keys"]} == {"revoked"}
    again = run("keys", "revoke", "two")
    assert (again.exit_code, "keys list" in again.stderr) == (3, True)


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["x"], "--scope"),
        (["x", "--scope", "root"], "root"),
        (["x", "--scope", "read", "--expires", "soon"], "90d"),
        (["x", "--scope", "operate", "--task", "noop"], "may trigger everything"),
        (["x", "--scope", "read", "--queue", "q"], "may trigger nothing"),
        ([" ", "--scope", "read"], "printable"),
        (["a\x1b[2Jb", "--scope", "read"], "printable"),
    ],
)
def test_what_no_key_can_be_is_refused(run, args, result):
    refused = run("keys", "create", *args)

    assert refused.exit_code in (2, 4)
    assert result in refused.stderr


def test_without_any_key_the_list_says_what_that_means(run):
    assert "its own machine" in run("keys", "list").stderr


def test_a_key_on_the_command_line_is_refused_and_not_repeated(run):
    refused = run("jobs", "--key", "dlk_secret")

    assert refused.exit_code == 2
    assert "--key-file" in refused.stderr
    assert "dlk_secret" not in refused.output


@pytest.mark.parametrize("content", ["", "with blanks in it", "é"])
def test_file_without_key_is_reported_without_its_content(run, tmp_path, content):
    (tmp_path / "key").write_text(content, encoding="utf-8")

    refused = run("jobs", "--key-file", str(tmp_path / "key"))

    assert refused.exit_code == 2
    assert content == "" or content not in refused.stderr


def test_the_key_of_the_environment_or_of_a_file_is_sent(run, service, tmp_path):
    (tmp_path / "key").write_text("dlk_of_the_file\n", encoding="utf-8")

    assert run("jobs", env={"DL_API_KEY": "dlk_of_the_environment"}).exit_code == 0
    assert run("jobs", "--key-file", str(tmp_path / "key"), env={"DL_API_KEY": "dlk_other"}).exit_code == 0

    assert [asked.key for asked in service.asked] == ["Bearer dlk_of_the_environment", "Bearer dlk_of_the_file"]


def test_rejected_key_is_reported_with_remedy(run, service):
    service.unruly.append(problem(401, "key_invalid", "It was never made, has run out, or was revoked."))

    refused = run("jobs", env={"DL_API_KEY": "dlk_s3cret"})

    assert refused.exit_code == 4
    assert "revoked" in refused.stderr
    assert "--key-file" in refused.stderr
    assert "s3cret" not in refused.output


def test_an_audit_line_is_shown_as_what_changed():
    line = {
        "audit_id": 7, "at": "2030-01-01T00:00:00Z", "action": "patch", "actor": "a\x1b[31m", "via": "key",
        "address": "::1", "request_id": "r", "subject": "job", "subject_id": "j",
        "before": {"priority": 1, "task": "a"}, "after": {"priority": 2, "task": "b"},
    }  # fmt: skip

    (row,) = AUDIT_LOG.rows([line])

    assert row[2] == "a [31m"
    assert row[5] == "priority 1 → 2, task a → b"
