"""A browser's way in, and what others try with it."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from flask.testing import FlaskClient

from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.http.auth.sessions import Sessions
from dataloader.app.http.options import WebOptions

TRIGGER = "/api/v1/jobs/trigger"


@pytest.fixture
def keys(pool: Pool, dsn: str) -> ApiKeys:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_api_keys; DELETE FROM dl_audit")
    connection.close()
    return ApiKeys(pool)


@pytest.fixture
def token(keys: ApiKeys) -> str:
    return keys.create(NewApiKey(name="Anna", scopes=frozenset({Scope.OPERATE}), created_by="test"))[1]


@pytest.fixture
def browser(queue, pipelines, pool, keys) -> FlaskClient:
    return create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys).test_client()


def log_in(browser: FlaskClient, token: str, **more: Any) -> Any:
    return browser.post("/login", data={"key": token, **more.pop("form", {})}, **more)


def csrf(browser: FlaskClient) -> dict[str, str]:
    (result,) = re.findall(r'name="csrf-token" content="([\w-]+)"', browser.get("/").text)
    return {"X-CSRF-Token": result}


def test_a_page_leads_to_the_login_and_the_login_back(browser, token):
    sent_on = browser.get("/docs?x=1")
    assert (sent_on.status_code, sent_on.headers["Location"]) == (303, "/login?next=%2Fdocs%3Fx%3D1")
    assert 'value="/docs?x=1"' in browser.get(sent_on.headers["Location"]).text

    back = log_in(browser, token, form={"next": "/docs?x=1"})

    assert (back.status_code, back.headers["Location"]) == (303, "/docs?x=1")
    assert browser.get("/docs").status_code == 200
    assert "Log out Anna" in browser.get("/").text


def test_fragment_without_session_redirects_its_page(browser, token):
    answer = browser.get("/", headers={"HX-Request": "true"})

    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/login?next=%2F")


def test_expired_form_redirects_back_to_its_page(browser, token):
    job = "00000000-0000-0000-0000-000000000000"
    for sent_to, page in (
        (f"/jobs/{job}/cancel", f"/jobs/{job}"),
        ("/jobs/bulk", "/jobs"),
        ("/tasks/some.task", "/tasks/some.task"),
        ("/queues", "/queues"),
        (f"/workers/{job}", "/workers"),
        ("/hosts/web-1/drain", "/workers"),
        (f"/alerts/rules/{job}", "/alerts#rules"),
        ("/breakers", "/limits#breakers"),
        ("/undo", "/"),
    ):
        answer = browser.post(sent_to, data={"x": "1"})
        assert (answer.status_code, answer.headers.get("Location")) == (303, f"/login?next={quote(page, safe='')}")


@pytest.mark.parametrize("there", ["//evil.example", "https://evil.example", "/\\evil.example", "\\/e", "javascript:x",
    "", "/a\nSet-Cookie: x=y", "/ok\\..\\x"])  # fmt: skip
def test_the_login_leads_to_no_other_site(browser, token, there):
    assert log_in(browser, token, form={"next": there}).headers["Location"] == "/"


def test_the_cookie_is_for_no_script_and_no_other_site(browser, token):
    cookie = log_in(browser, token).headers["Set-Cookie"]

    assert cookie.startswith("dl_session=")
    assert {"HttpOnly", "Path=/", "SameSite=Lax", "Max-Age=43200"} <= {part.strip() for part in cookie.split(";")}
    assert token not in cookie
    assert token[17:] not in cookie


def test_cookie_over_tls_is_secure_and_bound_to_the_host(browser, token):
    cookie = log_in(browser, token, base_url="https://localhost").headers["Set-Cookie"]

    assert cookie.startswith("__Host-dl_session=")
    assert "; Secure" in cookie


def test_a_session_changes_something_only_with_its_token(browser, token, request_body):
    log_in(browser, token)

    without = browser.post(TRIGGER, json=request_body)
    wrong = browser.post(TRIGGER, json=request_body, headers={"X-CSRF-Token": "0" * 64})
    odd = browser.post(TRIGGER, json=request_body, headers={"X-CSRF-Token": "é"})
    elsewhere = browser.post(TRIGGER, json=request_body, headers={**csrf(browser), "Origin": "https://evil.example"})
    right = browser.post(TRIGGER, json=request_body, headers=csrf(browser))

    assert [r.status_code for r in (without, wrong, odd, elsewhere, right)] == [403, 403, 403, 403, 200]
    assert without.json["code"] == elsewhere.json["code"] == "cross_site"


def test_the_token_of_one_session_is_not_anothers(browser, token, request_body):
    log_in(browser, token)
    mine = csrf(browser)
    log_in(browser, token)

    assert browser.post(TRIGGER, json=request_body, headers=mine).status_code == 403


def test_login_from_another_site_is_rejected(browser, token):
    assert log_in(browser, token, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_session_has_the_scopes_of_its_key(browser, keys, request_body):
    reader = keys.create(NewApiKey(name="r", scopes=frozenset({Scope.READ}), created_by="t"))[1]
    log_in(browser, reader)

    assert browser.post(TRIGGER, json=request_body, headers=csrf(browser)).json["code"] == "scope_missing"


def test_a_session_ends_with_its_key(browser, token, keys, monkeypatch):
    log_in(browser, token)
    assert browser.get("/").status_code == 200

    keys.revoke("Anna")
    monkeypatch.setattr("time.monotonic", lambda now=time.monotonic: now() + 5)

    assert browser.get("/").status_code == 303


def test_logout_ends_the_session(browser, token):
    log_in(browser, token)

    assert browser.post("/logout").status_code == 403, "a page of another site must not do it"
    left = browser.post("/logout", data={"csrf_token": csrf(browser)["X-CSRF-Token"]})

    assert left.headers["Location"] == "/login"
    assert browser.get("/").status_code == 303
    assert browser.post("/logout").status_code == 303, "there is none any more"


@pytest.mark.parametrize("wrong", ["", "x", "dlk_000000000000_" + "0" * 48])
def test_invalid_key_shows_the_form_again(browser, token, wrong):
    answer = log_in(browser, wrong)

    assert answer.status_code == 401
    assert "Invalid API key" in answer.text
    assert "Set-Cookie" not in answer.headers


def test_trying_without_end_is_slowed_down(browser, token):
    answers = [log_in(browser, "x") for _ in range(15)]

    assert answers[-1].status_code == 429
    assert answers[-1].headers["Retry-After"]
    assert log_in(browser, token).status_code == 303


@pytest.mark.parametrize("form", [{"next": "/"}, {"key": "x" * 999}, {"key": "a", "more": "b"}])
def test_a_form_is_validated(browser, form):
    assert browser.post("/login", data=form).status_code == 400
    assert browser.post("/login", json={"key": "x"}).status_code == 415


def test_coming_and_going_is_written_down(browser, token, pool):
    log_in(browser, token)
    browser.post("/logout", headers=csrf(browser))

    gone, come = AuditLog(pool).entries(subject="session")
    assert (come.action, come.actor, come.via, come.address) == ("login", "Anna", "session", "127.0.0.1")
    assert gone.action == "logout"


def test_login_works_when_the_audit_cannot_be_written(browser, token, monkeypatch, caplog):
    def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(AuditLog, "record", away)

    assert log_in(browser, token).status_code == 303
    assert "audit.failed" in caplog.text


# ── the cookie itself ───────────────────────────────────────────────────────────────────────────────────────────────


def sessions(secret: bytes = b"x" * 32, lasts_sec: float = 60) -> Sessions:
    return Sessions(lambda: secret, max_age_sec=lasts_sec)


def test_changed_cookie_is_no_session():
    cookie = sessions().create("3f9a1c22b7d0")

    session = sessions().read(cookie)
    assert session is not None
    assert session.key_id == "3f9a1c22b7d0"
    assert time.time() + 50 < session.expires_at <= time.time() + 60
    assert sessions(b"y" * 32).read(cookie) is None
    for n in range(len(cookie)):
        other = "x" if cookie[n] in "ABCD" else "A"  # the last character of base64 holds four bits
        assert sessions().read(cookie[:n] + other + cookie[n + 1 :]) is None
        assert sessions().read(cookie[:n]) is None
    assert sessions().read("é" + cookie) is None


def test_session_expires():
    cookie = sessions().create("3f9a1c22b7d0")

    assert sessions(lasts_sec=-1).read(cookie) is None


def test_processes_of_one_database_share_the_signing_secret(keys, pool):
    assert keys.signing_secret() == ApiKeys(pool).signing_secret()
    assert len(keys.signing_secret()) == 32
