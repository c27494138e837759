"""Webhooks and alerts over HTTP."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.databases import execute_sql

URL = "https://hooks.example.com/x"


@pytest.fixture
def clean(dsn: str) -> None:
    execute_sql(dsn, "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts, dl_alert_rules")


@pytest.fixture
def hooks(clean: None, client: Any) -> Any:
    return client


def add(client: Any, **fields: Any) -> dict[str, Any]:
    response = client.post("/api/v1/webhooks", json={"url": URL, **fields})
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json
    return made


def test_secret_is_returned_once(hooks):
    made = add(hooks, description="on call")

    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["job.succeeded", "job.failed", "job.canceled", "job.lost"]
    path = f"/api/v1/webhooks/{made['webhook_id']}"
    for answer in (hooks.get("/api/v1/webhooks"), hooks.get(path), hooks.patch(path, json={"description": "x"})):
        assert answer.status_code == 200
        assert "secret" not in answer.text.replace("old_secret_expires_at", "")
    rotated = hooks.post(f"{path}/rotate", json={"overlap_sec": 60}).json
    assert rotated["secret"] not in ("", made["secret"])
    assert rotated["old_secret_expires_at"] is not None


def test_webhook_with_a_key_is_made_once(hooks):
    first, second = (add(hooks, idempotency_key="on call") for _ in range(2))
    other = hooks.post("/api/v1/webhooks", json={"url": URL, "queue": "q", "idempotency_key": "on call"})

    assert first.pop("secret").startswith("whsec_")
    assert second.pop("secret") is None
    assert first == second
    assert (other.status_code, other.json["code"]) == (409, "idempotency_conflict")
    assert len(hooks.get("/api/v1/webhooks").json["webhooks"]) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://localhost:5432/"}, "url"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"url": "https://u:p@example.com/"}, "url"),
        ({"events": ["job.exploded"]}, "events"),
        ({"events": []}, "events"),
        ({"queue": ""}, "queue"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_unencodable_value_is_refused_with_reason(lasting_client, fields, field):
    response = lasting_client.post("/api/v1/webhooks", json={"url": URL, **fields})

    assert response.status_code == 400
    assert [error["field"] for error in response.json["errors"]] == [field]


def test_it_is_changed_switched_off_and_removed(hooks):
    path = f"/api/v1/webhooks/{add(hooks, queue='q')['webhook_id']}"

    assert hooks.patch(path, json={}).status_code == 400
    assert hooks.patch(path, json={"url": "http://10.0.0.1/"}).status_code == 400
    changed = hooks.patch(path, json={"queue": "", "events": ["alert.resolved"], "active": False}).json
    assert (changed["queue"], changed["events"], changed["active"], changed["disabled_reason"]) == (
        None, ["alert.resolved"], False, "by hand",
    )  # fmt: skip
    assert hooks.delete(path).json == {"deleted": True}
    for answer in (
        hooks.get(path),
        hooks.delete(path),
        hooks.post(f"{path}/ping"),
        hooks.patch(path, json={"queue": "x"}),
    ):
        assert (answer.status_code, answer.json["code"]) == (404, "webhook_not_found")
    assert hooks.get("/api/v1/webhooks/7").status_code == 404


def test_delivery_of_job_is_found_and_sent_again(hooks, trigger):
    hook = add(hooks)["webhook_id"]
    job = trigger()
    hooks.post(f"/api/v1/jobs/{job}/cancel")
    ping = hooks.post(f"/api/v1/webhooks/{hook}/ping").json["delivery_id"]

    (of_job,) = hooks.get(f"/api/v1/deliveries?job_id={job}").json["deliveries"]
    assert (of_job["event"], of_job["state"], of_job["webhook_id"]) == ("job.canceled", "pending", hook)
    newest = hooks.get("/api/v1/deliveries?limit=1").json["deliveries"]
    assert [one["delivery_id"] for one in newest] == [ping]
    assert len(hooks.get(f"/api/v1/deliveries?before={ping}&state=pending").json["deliveries"]) == 1
    detail = hooks.get(f"/api/v1/deliveries/{of_job['delivery_id']}").json
    assert (detail["attempt_log"], job in detail["body"]) == ([], True)
    assert hooks.post(f"/api/v1/deliveries/{of_job['delivery_id']}/redeliver").json == {
        "delivery_id": of_job["delivery_id"]
    }
    assert hooks.get(f"/api/v1/deliveries/{uuid4()}").json["code"] == "delivery_not_found"
    assert hooks.post(f"/api/v1/webhooks/{hook}/redeliver").json == {"deliveries": 2}
    assert hooks.post(f"/api/v1/webhooks/{uuid4()}/redeliver").json["code"] == "webhook_not_found"


def test_delivery_masks_secrets_and_shows_full_url_to_admin_only(clean, queue, pipelines, pool, dsn):
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_api_keys")
    connection.close()
    keys = ApiKeys(pool)
    app = create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys)

    def caller(scope: Scope) -> Any:
        token = keys.create(NewApiKey(name=scope, scopes=frozenset({scope}), created_by="test"))[1]
        client: Any = app.test_client()
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        return client

    reader, operator, admin = caller(Scope.READ), caller(Scope.OPERATE), caller(Scope.ADMIN)
    url = "https://hooks.example.com/services/T0/tellt4le?key=s3cret"
    hook = admin.post("/api/v1/webhooks", json={"url": url}).json["webhook_id"]
    body = {"type": "job.failed", "data": {"result": {"rows": 3, "api_token": "t0k3n"}, "progress": {"password": "x"}}}
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dl_deliveries (webhook_id, url, target, event, body) VALUES"
            " (%s, NULL, %s, 'job.failed', %s), (NULL, 'https://me:pw@own.example/p', 'own', 'job.failed', 'no JSON')"
            " RETURNING delivery_id",
            (hook, hook, json.dumps(body)),
        )
        delivery = cursor.fetchall()[0][0]
        cursor.execute(
            "INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms, answer, error)"
            " VALUES (%s, 1, 403, 1.0, 'password=hunter22 is wrong', 'Bearer abcdefgh12345678')",
            (delivery,),
        )
    connection.close()

    for who, shown, own in (
        (reader, "https://hooks.example.com/…", "https://own.example/…"),
        (operator, "https://hooks.example.com/…", "https://own.example/…"),
        (admin, url, "https://me:pw@own.example/p"),
    ):
        assert [one["url"] for one in who.get("/api/v1/webhooks").json["webhooks"]] == [shown]
        assert who.get(f"/api/v1/webhooks/{hook}").json["url"] == shown
        listed = who.get("/api/v1/deliveries").json["deliveries"]
        assert {one["url"] for one in listed} == {shown, own}
        detail = who.get(f"/api/v1/deliveries/{delivery}").json
        assert detail["url"] == shown
        assert json.loads(detail["body"])["data"] == {
            "result": {"rows": 3, "api_token": "***"}, "progress": {"password": "***"},
        }  # fmt: skip
        assert (detail["attempt_log"][0]["response"], detail["attempt_log"][0]["error"]) == (
            "password=*** is wrong",
            "Bearer ***",
        )


def test_a_job_may_have_a_webhook_of_its_own_if_it_can_be_signed(queue, pool: Pool, clean, request_body, client):
    body = request_body | {"webhook": {"url": "http://hooks.internal/x", "events": ["job.failed"]}}
    refused = client.post("/api/v1/jobs/trigger", json=body)
    options = WebOptions(version="1", has_webhook_secret=True, webhook_allowed_hosts=("hooks.internal",))
    able: Any = create_app(JobQueue(pool), Pipelines(), options, pool=pool).test_client()
    private = able.post("/api/v1/jobs/trigger", json=request_body | {"webhook": {"url": "http://10.0.0.1/"}})
    odd = able.post("/api/v1/jobs/trigger", json=request_body | {"webhook": {"url": URL, "events": ["alert.resolved"]}})

    job = able.post("/api/v1/jobs/trigger", json=body).json["job_id"]

    assert "DL_WEBHOOK_SECRET" in refused.json["detail"]
    assert (private.status_code, odd.status_code) == (400, 400)
    found = queue.get(job)
    assert found is not None
    assert found.webhook == {"url": "http://hooks.internal/x", "events": ["job.failed"]}


# ── alerts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RULE = {"name": "rates fail", "kind": "failure_rate", "threshold": 0.2}
STALE = {"kind": "stale_dataset", "dataset": "a/b"}


def test_a_rule_is_made_changed_and_removed(hooks):
    made = hooks.post("/api/v1/alerts/rules", json=RULE | {"task": "t", "min_runs": 3}).json
    path = f"/api/v1/alerts/rules/{made['rule_id']}"

    assert hooks.post("/api/v1/alerts/rules", json=RULE).json["code"] == "rule_exists"
    assert hooks.patch(path, json={"threshold": 0.5, "active": False}).json["active"] is False
    assert hooks.get(path).json["threshold"] == 0.5
    assert [rule["name"] for rule in hooks.get("/api/v1/alerts/rules").json["rules"]] == ["rates fail"]
    assert hooks.patch(path, json={}).status_code == 400
    assert hooks.delete(path).json == {"deleted": True}
    assert hooks.get(path).json["code"] == "rule_not_found"


def test_a_rule_of_a_dataset_has_its_time_and_zone(hooks):
    rule = {
        "name": "late",
        "kind": "stale_dataset",
        "threshold": 0,
        "dataset": "a/b",
        "by_time": "07:00",
        "zone": "Europe/Moscow",
    }

    made = hooks.post("/api/v1/alerts/rules", json=rule)

    assert made.status_code == 200, made.json
    assert {name: made.json[name] for name in rule} == rule


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "no_success"}, {"threshold": 1.0}, {"threshold": -1}, {"window_sec": 5}, {"kind": "odd"},
        {"kind": "dead_worker", "task": "t"}, {"min_runs": 0}, {"name": ""}, {"dataset": "d"},
        {"kind": "check_failed", "queue": "q"}, {"kind": "stale_dataset"}, STALE | {"dataset": ""},
        STALE | {"dataset": "d" * 501}, STALE | {"by_time": "7:00"}, STALE | {"zone": "UTC"}, STALE | {"queue": "q"},
        STALE | {"by_time": "07:00", "zone": "Mars/Base"},
    ],
)  # fmt: skip
def test_a_rule_that_means_nothing_is_refused(lasting_client, change):
    assert lasting_client.post("/api/v1/alerts/rules", json=RULE | change).status_code == 400


def test_what_fires_is_listed_and_what_is_over_when_asked_for(hooks, dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dl_alerts (kind, name, subject, detail, ended_at)"
            " VALUES ('stalled', 'a', 's', 'd', NULL), ('stalled', 'b', 's2', 'd', now())"
        )
    connection.close()

    assert [one["name"] for one in hooks.get("/api/v1/alerts").json["alerts"]] == ["a"]
    assert len(hooks.get("/api/v1/alerts?state=all").json["alerts"]) == 2


def test_rule_is_muted_and_alert_acknowledged_under_audit(hooks, dsn):
    rule = hooks.post("/api/v1/alerts/rules", json=RULE).json
    path = f"/api/v1/alerts/rules/{rule['rule_id']}"
    execute_sql(dsn, "INSERT INTO dl_alerts (kind, name, subject, detail) VALUES ('stalled', 'a', 's', 'd')")
    (firing,) = hooks.get("/api/v1/alerts").json["alerts"]
    known = f"/api/v1/alerts/{firing['alert_id']}/acknowledge"

    muted = hooks.post(f"{path}/mute", json={"mute_sec": 60}).json
    assert (muted["muted_by"], muted["muted_until"] > rule["created_at"]) == ("anonymous (localhost)", True)
    assert hooks.post(f"{path}/mute", json={"mute_sec": 0}).json["muted_until"] is None
    assert hooks.post(f"{path}/mute", json={"mute_sec": -1}).status_code == 400
    assert hooks.post(known).json["acknowledged_by"] == "anonymous (localhost)"
    assert hooks.post(f"/api/v1/alerts/{rule['rule_id']}/acknowledge").json["code"] == "alert_not_found"
    entries = hooks.get("/api/v1/audit?limit=3").json["entries"]
    assert [entry["action"] for entry in entries] == ["acknowledge_alert", "mute_alert_rule", "mute_alert_rule"]


def test_webhook_change_is_audited_without_its_url(hooks):
    made = add(hooks)

    lines = hooks.get(f"/api/v1/audit?subject=webhook&subject_id={made['webhook_id']}")

    assert [line["action"] for line in lines.json["entries"]] == ["create_webhook"]
    assert made["secret"] not in lines.text
    assert URL not in lines.text


def test_audit_of_finished_job_omits_its_webhook_url(clean, pool, request_body):
    options = WebOptions(version="1", has_webhook_secret=True)
    client: Any = create_app(JobQueue(pool), Pipelines(), options, pool=pool).test_client()
    body = request_body | {"webhook": {"url": "https://hooks.example.com/tellt4le"}}
    job = client.post("/api/v1/jobs/trigger", json=body).json["job_id"]
    client.post(f"/api/v1/jobs/{job}/cancel")

    assert client.delete(f"/api/v1/jobs/{job}").status_code == 200

    lines = client.get(f"/api/v1/audit?subject_id={job}").json["entries"]
    assert [line["action"] for line in lines] == ["delete_job", "cancel_job", "trigger_job"]
    assert "webhook" in lines[0]["before"]
    assert "tellt4le" not in str(lines)


def test_unknown_names_of_a_webhook_are_warned_of(hooks):
    made = add(hooks, queue="nowhere", task="load.nothing")

    assert [warning.split(";")[0] for warning in made["warnings"]] == [
        "there is no queue 'nowhere'",
        "there is no task 'load.nothing'",
    ]
    assert add(hooks)["warnings"] == []


def test_change_with_unknown_names_is_warned_of(hooks):
    webhook = f"/api/v1/webhooks/{add(hooks)['webhook_id']}"
    rule = {"name": "old", "kind": "failure_rate", "threshold": 0.5, "task": "load.nothing"}
    path = f"/api/v1/alerts/rules/{hooks.post('/api/v1/alerts/rules', json=rule).json['rule_id']}"

    changed = [hooks.patch(webhook, json={"task": task}).json["warnings"] for task in ("load.nothing", "noop", "")]
    (of_rule,) = hooks.patch(path, json={"threshold": 0.1}).json["warnings"]

    assert ([len(warnings) for warnings in changed], "'load.nothing'" in changed[0][0]) == ([1, 0, 0], True)
    assert of_rule.startswith("there is no task 'load.nothing'; known: ")
