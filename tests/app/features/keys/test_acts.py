"""Each act of an API key by its form and its command, which do the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from dataloader.app.acts.act import acts_of
from dataloader.app.cli.command import cli
from dataloader.app.features.keys import acts
from tests.support.api_server import serving
from tests.support.databases import execute_sql
from tests.support.every_way import TABLES, Case, by_form, check_every_way, rows_of

KEY = "0123456789ab"
ADMIN = (
    "INSERT INTO dl_api_keys (key_id, name, digest, scopes, created_by)"
    " VALUES ('ffffffffffff', 'boss', '\\x01', '{admin}', 'test');"
)
READER = ADMIN.replace("ffffffffffff", KEY).replace("boss", "reader").replace("x01", "x02").replace("admin", "read")
CREATE = {"name": "billing", "scopes": "trigger", "tasks": "load, rates", "ttl_sec": "90d"}
CASES = {
    "created": Case(
        "key.created", None, ("/keys", CREATE), None, "dl_api_keys", before=ADMIN,
        audit={"name": "billing", "scopes": ["trigger"], "tasks": ["load", "rates"], "ttl_sec": 7_776_000},
    ),
    "first one created that may not operate": Case(
        "key.created", None, ("/keys", CREATE), None, "dl_api_keys", refused="no valid API key has the scope operate",
    ),
    "created without a scope": Case(
        "key.created", None, ("/keys", {"name": "n"}), None, "dl_api_keys", before=ADMIN, refused="needs a scope",
    ),
    "revoked": Case(
        "key.revoked", None, ("/keys/revoke", {"key_id": KEY}), None, "dl_api_keys", before=ADMIN + READER,
        audit={"key_id": KEY},
    ),
    "last one revoked that may operate": Case(
        "key.revoked", None, ("/keys/revoke", {"key_id": "ffffffffffff"}), None, "dl_api_keys", before=ADMIN + READER,
        refused="no other valid API key has the scope operate",
    ),
    "none revoked": Case(
        "key.revoked", None, ("/keys/revoke", {"key_id": KEY}), None, "dl_api_keys", refused=KEY,
    ),
}  # fmt: skip
COMMANDS = {
    "created": ["keys", "create", "billing", "--scope", "trigger", "--task", "load", "--task", "rates",
                "--expires", "90d"],
    "first one created that may not operate": ["keys", "create", "billing", "--scope", "trigger"],
    "revoked": ["keys", "revoke", KEY],
    "none revoked": ["keys", "revoke", KEY],
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)


def test_every_act_has_a_case():
    assert {act.name for act in acts_of(acts)} == {case.act for case in CASES.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_does_in_the_database_what_the_form_does(name, url, shared_dsn, monkeypatch, tmp_path):
    case, outcomes = CASES[name], []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DL_DB_DSN", shared_dsn)
    ways = (
        lambda: by_form(url, case)[0],
        lambda: CliRunner().invoke(cli, COMMANDS[name]).exit_code == 0,
    )

    for perform in ways:
        execute_sql(shared_dsn, f"TRUNCATE {TABLES} CASCADE; {case.before}")
        is_done = perform()
        outcomes.append((is_done, [{**row[0], "created_by": ""} for row in rows_of(shared_dsn, case)]))

    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] is not bool(case.refused)
