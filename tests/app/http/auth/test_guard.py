"""Who is let in, and to what: tried as someone would who should not be."""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import Authenticator, is_local_host_header, parse_networks
from dataloader.app.http.auth.sessions import LoginThrottle
from dataloader.app.http.caches import KeyCache
from dataloader.app.http.options import WebOptions
from tests.support import eventually
from tests.support.queue_fixture import list_jobs

JOBS, TRIGGER, HEALTH = "/api/v1/jobs", "/api/v1/jobs/trigger", "/health"
ELSEWHERE = "192.0.2.7"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def code(response: Any) -> tuple[int, str | None]:
    return response.status_code, response.json.get("code")


# ── without any key ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_any_key_this_machine_is_let_in(app, request_body):
    assert app.get(JOBS).status_code == 200
    assert app.get(JOBS, environ_base={"REMOTE_ADDR": "::1"}).status_code == 200
    assert app.get(JOBS, environ_base={"REMOTE_ADDR": "::ffff:127.0.0.1"}).status_code == 200
    assert app.post(TRIGGER, json=request_body).status_code == 200


@pytest.mark.parametrize("address", [ELSEWHERE, "10.0.0.1", "", "::2", "127.0.0.1.evil.example", "::ffff:192.0.2.7"])
def test_without_keys_remote_callers_are_rejected(app, address):
    answer = app.get(JOBS, environ_base={"REMOTE_ADDR": address})

    assert code(answer) == (401, "key_required")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="dataloader"'


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-For": ""},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
    ],
)
def test_request_through_a_local_proxy_is_not_local(app, headers):
    assert code(app.get(JOBS, headers=headers)) == (401, "key_required")


def test_http_1_0_request_is_not_local(app):
    assert app.get(JOBS, environ_overrides={"SERVER_PROTOCOL": "HTTP/1.0"}).status_code == 401


def test_request_through_a_trusted_proxy_is_not_local(queue, pipelines, keys):
    options = WebOptions(version="1", trusted_proxies=("127.0.0.0/8",))
    client: Any = create_app(queue, pipelines, options, keys=keys).test_client()

    assert client.get(JOBS, headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[::2]"]
)
def test_rebound_host_name_is_rejected_without_keys(app, host):
    assert code(app.get(JOBS, headers={"Host": host})) == (403, "host_refused")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "127.8.9.1", "[::1]:80", "a.localhost."]
)
def test_this_machine_has_several_names(host):
    assert is_local_host_header(host)


@pytest.mark.parametrize("host", ["", ":", "[::1", "localhost@evil", "a:b:c", "[evil]", "x" * 9999])
def test_invalid_host_header_is_not_local(host):
    assert not is_local_host_header(host)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(app, headers, request_body):
    assert code(app.post(TRIGGER, json=request_body, headers=headers)) == (403, "cross_site")
    assert app.get(JOBS).json["jobs"] == []


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {}])
def test_a_page_of_ours_and_a_program_may(app, headers, request_body):
    assert app.post(TRIGGER, json=request_body, headers=headers).status_code == 200


def test_a_key_that_means_another_service_does_no_harm_here(app):
    assert app.get(JOBS, headers=bearer("dlk_of_another_service")).status_code == 200


def test_an_app_that_is_given_no_keys_knows_this_machine_alone(client):
    assert client.get(JOBS).status_code == 200
    assert code(client.get(JOBS, environ_base={"REMOTE_ADDR": ELSEWHERE})) == (401, "key_required")
    assert code(client.get(JOBS, environ_base={"REMOTE_ADDR": ELSEWHERE}, headers=bearer("x"))) == (401, "key_invalid")
    assert client.post("/login", data={"key": "dlk_x"}).status_code == 401


def test_auth_can_be_disabled(queue, pipelines, keys, make, request_body):
    make(Scope.READ)
    client: Any = create_app(queue, pipelines, WebOptions(version="1", auth_disabled=True), keys=keys).test_client()
    there = {"environ_base": {"REMOTE_ADDR": ELSEWHERE}}

    assert client.post(TRIGGER, json=request_body, **there).status_code == 200
    assert code(client.post(TRIGGER, json=request_body, headers={"Origin": "http://e.example"}, **there)) == (
        403, "cross_site",
    )  # fmt: skip


@pytest.mark.parametrize("headers", [{"Host": "rebound.example"}, {"Host": "rebound.example:8081"}, {"Host": ""}])
def test_rebound_host_name_is_rejected_with_auth_disabled(queue, pipelines, keys, headers):
    client: Any = create_app(queue, pipelines, WebOptions(version="1", auth_disabled=True), keys=keys).test_client()

    assert code(client.get(JOBS, headers=headers)) == (403, "host_refused")
    assert client.get(HEALTH, headers=headers).status_code == 200
    assert client.get(JOBS, headers={"Host": f"{socket.gethostname()}:8081"}).status_code == 200
    assert client.get(JOBS, headers=headers, environ_base={"REMOTE_ADDR": ELSEWHERE}).status_code == 200, (
        "any name does"
    )


def test_such_a_page_learns_no_more_than_a_stranger(app):
    result = app.get("/status", headers={"Host": "rebound.example"}).json

    assert result["ready"] is True
    assert (result["database"]["round_trip_ms"], result["pool"]) == (None, None)
    assert app.get("/status").json["pool"]


# ── with keys ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_key_closes_the_door_to_all_without_one(app, make):
    make(Scope.READ)

    assert code(app.get(JOBS)) == (401, "key_required")
    assert app.get(HEALTH).status_code == 200
    with app.get("/static/dashboard.css") as public:
        assert public.status_code == 200


def test_keys_stay_required_after_the_last_one_is_revoked(app, make, keys):
    make(Scope.READ, name="last")
    keys.revoke("last")

    assert code(app.get(JOBS)) == (401, "key_required")


@pytest.mark.parametrize(
    ("scope", "read", "trigger", "cancel", "audit"),
    [
        (Scope.READ, 200, 403, 403, 403),
        (Scope.TRIGGER, 403, 200, 403, 403),
        (Scope.OPERATE, 200, 200, 200, 200),
        (Scope.ADMIN, 200, 200, 200, 200),
    ],
)
def test_scope_allows_its_operations(app, make, request_body, queue, scope, read, trigger, cancel, audit):
    headers = bearer(make(scope))
    job_id = str(queue.enqueue(_job()).job_id)

    result = {
        "read": app.get(JOBS, headers=headers).status_code,
        "trigger": app.post(TRIGGER, json=request_body, headers=headers).status_code,
        "cancel": app.post(f"{JOBS}/{job_id}/cancel", headers=headers).status_code,
        "audit": app.get("/api/v1/audit", headers=headers).status_code,
    }

    assert result == {"read": read, "trigger": trigger, "cancel": cancel, "audit": audit}
    assert app.get(f"{JOBS}/{job_id}/status", headers=headers).status_code == 200


def test_a_missing_scope_is_named(app, make):
    answer = app.get("/api/v1/audit", headers=bearer(make(Scope.READ)))

    assert code(answer) == (403, "scope_missing")
    assert 'error="insufficient_scope", scope="operate"' in answer.headers["WWW-Authenticate"]
    assert "operate" in answer.json["detail"]


def _job(**more: Any) -> Any:
    from dataloader.app.queue.job import NewJob

    return NewJob(**{"queue": "etl", "task": "noop", "lock_key": "k", **more})


def test_limited_key_triggers_and_sees_only_its_jobs(app, make, queue, request_body):
    headers = bearer(make(Scope.TRIGGER, tasks=frozenset({"noop"}), queues=frozenset({"etl"})))
    other = queue.enqueue(_job(task="other")).job_id

    assert app.post(TRIGGER, json=request_body, headers=headers).status_code == 200
    for wrong in ({"task": "other"}, {"queue": "elsewhere"}):
        answer = app.post(TRIGGER, json={**request_body, **wrong}, headers=headers)
        assert code(answer) == (403, "outside_key_limits")
        assert str(*wrong.values()) in answer.json["detail"]
    assert code(app.get(f"{JOBS}/{other}/status", headers=headers)) == (404, "job_not_found")
    assert len(list_jobs(queue)) == 2


def test_trigger_only_key_sees_only_its_tasks_and_runs(app, make, dsn, pipelines):
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome)"
            " SELECT t, n, gen_random_uuid(), q, now(), 'succeeded'"
            " FROM (VALUES ('noop', 1, 'mine'), ('noop', 2, 'theirs'), ('other', 1, 'mine')) v (t, n, q)"
        )
    connection.close()

    def seen(*scopes: Scope, **limits: Any) -> tuple[set[str], set[tuple[str, str]]]:
        result = app.get("/api/v1/tasks", headers=bearer(make(*scopes, **limits))).json
        runs = {(task["name"], run["queue"]) for task in result["statistics"] for run in task["last_runs"]}
        return {task["name"] for task in result["tasks"]}, runs

    everything = {task.name for task in pipelines}
    all_runs = {("noop", "mine"), ("noop", "theirs"), ("other", "mine")}
    assert seen(Scope.READ) == (everything, all_runs)
    assert seen(Scope.TRIGGER) == (everything, all_runs)
    assert seen(Scope.TRIGGER, tasks=frozenset({"noop"})) == ({"noop"}, {("noop", "mine"), ("noop", "theirs")})
    assert seen(Scope.TRIGGER, queues=frozenset({"mine"})) == (everything, {("noop", "mine"), ("other", "mine")})
    assert seen(Scope.TRIGGER, tasks=frozenset({"noop"}), queues=frozenset({"x"})) == ({"noop"}, set())
    assert seen(Scope.READ, Scope.TRIGGER, tasks=frozenset({"noop"})) == (everything, all_runs)


def test_refused_form_of_a_trigger_only_key_shows_no_page(app, make):
    page = app.get("/tasks/noop", headers=bearer(make(Scope.READ))).text
    refused = app.post("/tasks/noop", data={"args": "["}, headers=bearer(make(Scope.TRIGGER)))

    assert (refused.status_code, "it is not JSON" in refused.text) == (409, True)
    assert ("Failures, 7 days" in page, "Failures, 7 days" in refused.text) == (True, False)


def test_key_limited_to_queues_sees_only_these(app, make, request_body):
    for queue in ("mine", "theirs"):
        app.post(TRIGGER, json=request_body | {"queue": queue, "lock_key": queue})

    def seen(*scopes: Scope, **limits: Any) -> set[str]:
        result = app.get("/api/v1/queues", headers=bearer(make(*scopes, **limits))).json
        return {line["queue"] for line in result["queues"]} & {"mine", "theirs"}

    assert seen(Scope.TRIGGER) == seen(Scope.READ) == {"mine", "theirs"}
    assert seen(Scope.TRIGGER, queues=frozenset({"mine"})) == {"mine"}


@pytest.mark.parametrize("spoil", [lambda t: t[:-1], lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"), str.upper,
    lambda t: t + "0", lambda t: "dlk_000000000000" + t[16:], lambda t: "",
    lambda t: "x" * 5000, lambda t: t[:17]])  # fmt: skip
def test_malformed_key_is_rejected(app, make, spoil):
    token = make(Scope.ADMIN)
    answer = app.get(JOBS, headers=bearer(spoil(token)))

    assert code(answer) in [(401, "key_invalid"), (401, "key_required")]
    assert token not in answer.text


def test_another_scheme_is_no_key(app, make):
    assert code(app.get(JOBS, headers={"Authorization": f"Basic {make(Scope.ADMIN)}"})) == (401, "key_required")


def test_the_word_bearer_may_be_written_as_one_likes(app, make):
    assert app.get(JOBS, headers={"Authorization": f"bearer  {make(Scope.READ)}"}).status_code == 200


def test_a_revoked_key_is_refused_at_the_next_look(app, make, keys):
    headers = bearer(make(Scope.READ, name="gone"))
    assert app.get(JOBS, headers=headers).status_code == 200

    keys.revoke("gone")

    eventually(lambda: code(app.get(JOBS, headers=headers)) == (401, "key_invalid"))


def test_key_expires_between_two_refreshes(make, keys):
    def make_cached() -> tuple[KeyCache, str] | None:  # once more if a stall has outlasted the key
        token, key_cache = make(Scope.READ, name=str(uuid4()), ttl_sec=0.3), KeyCache(keys)
        return (key_cache, token) if key_cache.find(token) else None

    key_cache, token = eventually(make_cached) or pytest.fail("no key")

    eventually(lambda: key_cache.find(token) is None)


# ── what is open to strangers ───────────────────────────────────────────────────────────────────────────────────────


def test_status_without_key_shows_readiness_only(app, make):
    token = make(Scope.READ)

    result = app.get("/status", environ_base={"REMOTE_ADDR": ELSEWHERE}).json
    more = app.get("/status", environ_base={"REMOTE_ADDR": ELSEWHERE}, headers=bearer(token)).json

    assert result["ready"] is True
    assert (result["database"]["round_trip_ms"], result["pool"]) == (None, None)
    assert more["pool"]["size"] > 0
    assert app.get("/status").json["pool"]


@pytest.mark.parametrize("path", ["/info", "/metrics", "/openapi.json", "/docs", "/", "/api/v1/tasks"])
def test_a_stranger_sees_nothing_else(app, make, path):
    make(Scope.READ)

    assert app.get(path).status_code in (401, 303)


# ── tries ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_logins_are_limited_by_network(app, make, caplog):
    good = bearer(make(Scope.READ))
    answers = [app.get(JOBS, headers=bearer(f"dlk_{n:012}_{'0' * 48}")) for n in range(30)]

    codes = [code(answer) for answer in answers]
    assert codes[0] == (401, "key_invalid")
    assert codes[-1] == (429, "too_many_login_attempts")
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert app.get(JOBS, headers=good).status_code == 200, "from the very same address"
    result = [
        record
        for record in caplog.records
        if record.message == "auth.rejected" and record.name == "dataloader.app.http.auth.guard"
    ]
    assert len(result) == codes.count((401, "key_invalid")) < 30


def test_one_site_of_ipv6_is_one_address():
    tries = LoginThrottle(burst=1, per_minute=0.001)

    assert tries.record_failure("2001:db8::1") is None
    assert tries.record_failure("2001:db8::2") is not None
    assert tries.record_failure("2001:db8:0:1::1") is None
    assert tries.record_failure("192.0.2.1") is None
    assert tries.record_failure("no address") is None


def test_rate_limit_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("dataloader.app.http.auth.sessions._MAX_NETWORKS", 10)
    tries = LoginThrottle(burst=1)

    for n in range(50):
        tries.record_failure(f"192.0.2.{n}")

    known = [n for n in reversed(range(50)) if tries.record_failure(f"192.0.2.{n}") is not None]
    assert known == [*range(49, 39, -1)]


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("peer", "result", "meant"),
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.1"),
        ("10.0.0.1", "<script>", "10.0.0.1"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("192.0.2.7", "203.0.113.9", "192.0.2.7"),
    ],
)
def test_only_trusted_proxies_are_believed(peer, result, meant):
    guard = Authenticator(None, None, proxies=parse_networks(["10.0.0.0/8"]))
    environ = {"REMOTE_ADDR": peer} | ({} if result is None else {"HTTP_X_FORWARDED_FOR": result})

    assert guard.client_address(environ) == meant


# ── what is written down ────────────────────────────────────────────────────────────────────────────────────────────


def test_audit_records_changes_of_a_key(app, make, request_body, queue):
    headers = {**bearer(make(Scope.OPERATE, name="billing")), "X-Request-ID": "req-7"}
    job_id = app.post(TRIGGER, json={**request_body, "args": {"password": "s3cret"}}, headers=headers).json["job_id"]
    app.post(f"{JOBS}/{job_id}/cancel", headers=headers)
    app.post(f"{JOBS}/{job_id}/cancel", headers=headers)  # changes nothing
    app.post(f"{JOBS}/{job_id}/retry", headers=headers)
    app.get(JOBS, headers=headers)

    lines = app.get(f"/api/v1/audit?subject_id={job_id}", headers=headers).json["entries"]

    assert [line["action"] for line in lines] == ["retry_job", "cancel_job", "trigger_job"]
    retried, canceled, triggered = lines
    assert triggered["after"]["task"] == "noop"
    assert canceled["before"] == {"status": "queued", "cancel_requested": False}
    assert canceled["after"] == {"status": "canceled", "cancel_requested": True}
    assert retried["after"]["status"] == "queued"
    assert {(li["actor"], li["via"], li["address"], li["request_id"]) for li in lines} == {
        ("billing", "key", "127.0.0.1", "req-7")
    }
    assert "s3cret" not in str(lines)


def test_a_name_that_would_be_sql_or_json_is_a_name(app, make, request_body, queue):
    name = """o'Neil \\' \\\\ "x"}', true); DELETE FROM dl_audit; -- $$ %(x)s %s"""
    headers = bearer(make(Scope.ADMIN, name=name)) | {"X-Request-ID": "r'--"}

    assert app.post(TRIGGER, json=request_body, headers=headers).status_code == 200

    (line,) = app.get("/api/v1/audit?action=trigger_job", headers=headers).json["entries"]
    assert line["actor"] == name
    assert line["request_id"] != "r'--", "such an id is not taken over"
