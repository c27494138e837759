"""Each act of an API key by its route, its form and its command, which do the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.errors import InvalidApiKey
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from tests.support.api_server import serving
from tests.support.databases import execute_sql
from tests.support.every_way import TABLES, Case, by_form, check_every_way, rows_of
from tests.support.real_service import query_rows

KEY = "0123456789ab"
ADMIN = (
    "INSERT INTO dl_api_keys (key_id, name, digest, scopes, created_by)"
    " VALUES ('ffffffffffff', 'boss', '\\x01', '{admin}', 'test');"
)
READER = ADMIN.replace("ffffffffffff", KEY).replace("boss", "reader").replace("x01", "x02").replace("admin", "read")
CREATE = {"name": "billing", "scopes": "trigger", "tasks": "load, rates", "ttl_sec": "90d"}
CREATE_BODY = {"name": "billing", "scopes": ["trigger"], "tasks": ["load", "rates"], "ttl_sec": 7_776_000}
BOSS = "ffffffffffff"
CASES = {
    "created": Case(
        "key.created", ("POST", "/keys", CREATE_BODY),
        ("/keys", CREATE), None, "dl_api_keys", before=ADMIN,
        audit={"name": "billing", "scopes": ["trigger"], "tasks": ["load", "rates"], "ttl_sec": 7_776_000},
    ),
    "first one created that may not operate": Case(
        "key.created", ("POST", "/keys", CREATE_BODY),
        ("/keys", CREATE), None, "dl_api_keys", refused="no valid API key has the scope operate",
    ),
    "created without a scope": Case(
        "key.created", ("POST", "/keys", {"name": "n"}),
        ("/keys", {"name": "n"}), None, "dl_api_keys", before=ADMIN, refused="needs a scope",
    ),
    "rotated": Case(
        "key.rotated", ("POST", f"/keys/{KEY}/rotate", {"overlap_sec": 3600}),
        ("/keys/rotate", {"key_id": KEY, "overlap_sec": "1h"}), None, "dl_api_keys", before=ADMIN + READER,
        audit={"key_id": KEY, "overlap_sec": 3600},
    ),
    "none rotated": Case(
        "key.rotated", ("POST", f"/keys/{KEY}/rotate", {}), ("/keys/rotate", {"key_id": KEY}), None, "dl_api_keys",
        before=ADMIN, refused=KEY,
    ),
    "revoked": Case(
        "key.revoked", ("DELETE", f"/keys/{KEY}", None),
        ("/keys/revoke", {"key_id": KEY}), None, "dl_api_keys", before=ADMIN + READER,
        audit={"key_id": KEY},
    ),
    "last one revoked that may operate": Case(
        "key.revoked", ("DELETE", f"/keys/{BOSS}", None),
        ("/keys/revoke", {"key_id": BOSS}), None, "dl_api_keys", before=ADMIN + READER,
        refused="no other valid API key has the scope operate",
    ),
    "none revoked": Case(
        "key.revoked", ("DELETE", f"/keys/{KEY}", None),
        ("/keys/revoke", {"key_id": KEY}), None, "dl_api_keys", refused=KEY,
    ),
}  # fmt: skip
COMMANDS = {
    "created": ["keys", "create", "billing", "--scope", "trigger", "--task", "load", "--task", "rates",
                "--expires", "90d"],
    "first one created that may not operate": ["keys", "create", "billing", "--scope", "trigger"],
    "rotated": ["keys", "rotate", KEY, "--overlap", "1h"],
    "none rotated": ["keys", "rotate", KEY],
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


def keys_by_id(dsn: str) -> dict[str, Any]:
    columns = "key_id, name, scopes, created_by, extract(epoch FROM expires_at - clock_timestamp()), revoked_at"
    return {row[0]: row[1:] for row in query_rows(dsn, f"SELECT {columns} FROM dl_api_keys")}


@pytest.mark.parametrize(("overlap_sec", "is_revoked"), [(3600, False), (0, True)])
def test_rotated_key_is_replaced_and_ends_after_the_overlap(overlap_sec, is_revoked, url, shared_dsn):
    execute_sql(shared_dsn, f"TRUNCATE {TABLES} CASCADE; {ADMIN + READER}")

    body = {"overlap_sec": overlap_sec}
    rotated = requests.post(f"{url}/api/v1/keys/{KEY}/rotate", json=body, timeout=30).json()
    keys = keys_by_id(shared_dsn)
    new, old = keys[rotated["key"]["key_id"]], keys[KEY]

    assert rotated["old_key_id"] == KEY
    assert rotated["token"].startswith(f"dlk_{rotated['key']['key_id']}_")
    assert (new[0], new[1], new[3]) == ("reader", ["read"], None)
    assert old[3] == pytest.approx(overlap_sec, abs=60)
    assert (old[4] is not None) is is_revoked


def test_key_that_expires_is_replaced_by_one_that_lives_as_long(pool, dsn):
    execute_sql(dsn, f"TRUNCATE {TABLES} CASCADE")
    keys = ApiKeys(pool)
    request = NewApiKey(name="team", scopes=frozenset({Scope.READ}), created_by="test", ttl_sec=86_400.0)
    old, _ = keys.create(request)
    execute_sql(dsn, "UPDATE dl_api_keys SET created_at = created_at - interval '20 h', "
                            "expires_at = expires_at - interval '20 h'")  # fmt: skip

    new, _, old_expires_at = keys.rotate("team", created_by="test", overlap_sec=864_000.0)

    assert new.expires_at is not None
    assert (new.expires_at - new.created_at).total_seconds() == pytest.approx(86_400, abs=5)
    assert old_expires_at < new.created_at + timedelta(hours=5)  # never later than before
    assert old.id != new.id


def test_name_of_several_keys_is_refused(pool, dsn):
    execute_sql(dsn, f"TRUNCATE {TABLES} CASCADE")
    keys = ApiKeys(pool)
    for _ in range(2):
        keys.create(NewApiKey(name="team", scopes=frozenset({Scope.READ}), created_by="test"))

    with pytest.raises(InvalidApiKey, match="2 valid keys have the name 'team'"):
        keys.rotate("team", created_by="test", overlap_sec=0)


def test_keys_are_listed_without_their_secrets(url, shared_dsn):
    execute_sql(shared_dsn, f"TRUNCATE {TABLES} CASCADE; {ADMIN + READER}")

    listed = requests.get(f"{url}/api/v1/keys", timeout=30).json()["keys"]

    assert {(key["key_id"], key["state"]) for key in listed} == {(KEY, "valid"), (BOSS, "valid")}
    assert not {"digest", "token"} & set(listed[0])
