"""The message after an act, and its undo."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from html import unescape
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from tests.support import eventually
from tests.support.databases import execute_sql


@pytest.fixture
def source(queue, dsn):
    tables = ("dl_queues", "dl_limits", "dl_breakers", "dl_schedules", "dl_alerts", "dl_alert_rules")
    execute_sql(dsn, *(f"DELETE FROM {table}" for table in tables))
    return queue.executor


@pytest.fixture
def act(client):
    """Submit a form; return the note on the page to which it leads."""

    def submit(path: str, **fields: str) -> str:
        answer = client.post(path, data=fields)
        assert answer.status_code == 303, answer.text
        page = client.get(answer.location).text
        note = re.search(r'<div class="note info done".*?</div>\s*(?:<form.*?</form>)?</div>', page, re.DOTALL)
        return "" if note is None else " ".join(unescape(note[0]).split())

    return submit


@pytest.fixture
def undo(client):
    """Press the button of a note; return the answer."""

    def press(note: str):
        fields = dict(re.findall(r'name="(act|next)" value="([^"]*)"', note))
        assert fields, note
        return client.post("/undo", data=fields)

    return press


def test_pause_of_a_queue_is_undone_once(client, source, trigger, act, undo):
    trigger()
    note = act("/queues/etl/state", state="paused", note="moving")

    assert "state open → paused" in note
    assert "Done" not in client.get("/queues/etl").text  # shown once
    answer = undo(note)
    assert answer.location == "/queues/etl"
    assert Queues(source).settings()["etl"].state == "open"
    assert "Undone." in client.get(answer.location).text

    again = undo(note)
    assert again.status_code == 409
    assert "has changed since" in again.text
    actions = [entry.action for entry in AuditLog(source).entries(subject="queue", subject_id="etl")]
    assert actions == ["undo_act", "submit_queue_action"]


def test_undo_of_changed_settings_writes_the_old_ones(client, source, trigger, act, undo):
    trigger()
    act("/queues/etl/settings", concurrency="4", fair="args.tenant")
    note = act("/queues/etl/settings", concurrency="9", per_worker="2")

    assert "concurrency 4 → 9" in note
    undo(note)

    settings = Queues(source).settings()["etl"]
    assert (settings.concurrency, settings.per_worker, settings.fair) == (4, None, "args.tenant")


def test_undo_of_a_limit_deletes_restores_and_remakes_it(source, act, undo):
    limits = Limits(source)
    made = act("/limits", name="crm", concurrency="3", note="three slots")
    changed = act("/limits", name="crm", concurrency="5")

    assert "crm</span> created: " in made
    assert "concurrency 3" in made
    undo(changed)
    assert (limits.status("crm").concurrency, limits.status("crm").note) == (3, "three slots")
    deleted = act("/limits", name="crm", action="delete")
    assert "crm</span> deleted." in deleted
    undo(deleted)
    assert (limits.status("crm").concurrency, limits.status("crm").note) == (3, "three slots")
    undo(made)
    assert [status for status in limits.statuses() if status.setting == "crm"] == []


def test_undo_is_refused_after_another_change(source, act, undo):
    note = act("/limits", name="crm", concurrency="3")
    Limits(source).set("crm", concurrency=8)

    answer = undo(note)

    assert answer.status_code == 409
    assert "limit crm has changed since" in answer.text
    assert Limits(source).status("crm").concurrency == 8


def test_pause_of_a_task_and_its_resume_are_undone(source, act, undo):
    breakers = Breakers(source)
    act("/breakers/noop", action="breaker", failures="3")
    paused = act("/breakers/noop", action="pause", reason="moving")
    undo(paused)
    assert breakers.status("noop").state == "closed"

    act("/breakers", task="noop", action="pause", reason="again")
    resumed = act("/breakers", task="noop", action="resume")
    undo(resumed)
    assert (breakers.status("noop").state, breakers.status("noop").reason) == ("open", "again")
    changed = act("/breakers/noop", action="breaker", failures="7")
    undo(changed)
    assert breakers.status("noop").failures == 3


def test_undo_of_a_reason_alone_leaves_the_task_as_it_runs(source, act, undo):
    breakers = Breakers(source)
    act("/breakers/noop", action="breaker", failures="3")
    undo(act("/breakers", task="noop", action="resume", reason="checked"))
    assert (breakers.status("noop").state, breakers.status("noop").reason) == ("closed", None)

    act("/breakers", task="noop", action="pause", reason="same")
    undo(act("/breakers", task="noop", action="resume", reason="same"))
    assert (breakers.status("noop").state, breakers.status("noop").reason) == ("open", "same")


@pytest.mark.parametrize("state", ["open", "half_open"])
@pytest.mark.parametrize("action", ["resume", "pause", "delete"])
def test_undo_leaves_a_breaker_that_attempts_opened_to_be_tried_again(source, dsn, act, undo, state, action):
    execute_sql(
        dsn,
        "INSERT INTO dl_breakers (task, failures, state, opened_at, probe_at, reason) VALUES"
        f" ('noop', 3, '{state}', now(), CASE '{state}' WHEN 'open' THEN now() + interval '1 hour' END, '3 failed')",
    )
    before = Breakers(source).status("noop")

    undo(act("/breakers", task="noop", action=action, **({"reason": "3 failed"} if action == "pause" else {})))

    after = Breakers(source).status("noop")
    assert (after.state, after.probe_at, after.reason) == (before.state, before.probe_at, before.reason)
    assert after.opened_at is not None


def test_pause_of_a_schedule_and_its_resume_are_undone(client, source, act, undo):
    client.put("/api/v1/schedules/nightly", json={"expression": "0 3 * * *", "task": "noop", "queue": "etl"})
    schedules = Schedules(source)

    undo(act("/schedules/nightly/act", action="pause", reason="source moves"))
    assert schedules.get("nightly").paused_at is None
    act("/schedules/nightly/act", action="pause", reason="source moves")
    undo(act("/schedules/nightly/act", action="resume"))
    assert schedules.get("nightly").paused_reason == "source moves"


def test_acknowledgement_and_mute_of_an_alert_are_undone(source, act, undo, trigger):
    alerts = Alerts(source)
    rule = alerts.add(name="old queue", kind=RuleKind.QUEUE_AGE, threshold=0.0, queue="etl")
    trigger()
    alerts.check(interval_sec=1)
    (alert,) = alerts.all()

    undo(act("/alerts", action="acknowledge", **{f"alert-{alert.alert_id}": "yes"}))
    assert alerts.all()[0].acknowledged_at is None
    undo(act(f"/alerts/rules/{rule.rule_id}", action="mute", mute_sec="1h"))
    assert not alerts.rule(rule.rule_id).is_muted
    undo(act(f"/alerts/rules/{rule.rule_id}", action="off"))
    assert alerts.rule(rule.rule_id).active


def test_drain_of_a_worker_is_undone(source, act, undo):
    info = WorkerInfo(uuid4(), "host:1", "1", ("etl",), ("noop",), 2)
    WorkerLiveness(source).send_heartbeat(info, heartbeat_sec=60)

    note = act(f"/workers/{info.id}", draining="yes")
    assert Queues(source).worker(info.id).draining
    undo(note)
    assert not Queues(source).worker(info.id).draining


def test_edit_of_a_waiting_job_is_undone_with_its_args(client, source, act, undo, trigger, queue):
    job_id = trigger(args={"day": 1, "password": "s3cretword"}, priority=5, available_at="2099-01-01T00:00:00Z")
    version = re.search(r'name="version" value="([^"]+)"', client.get(f"/jobs/{job_id}/edit").text)
    assert version

    note = act(f"/jobs/{job_id}/edit", version=version[1], priority="9", args='{"day": 2, "password": "***"}')
    assert "priority 5 → 9" in note
    undo(note)
    moved = act(f"/jobs/{job_id}/start")
    undo(moved)

    job = client.get(f"/api/v1/jobs/{job_id}").json
    assert (job["priority"], job["available_at"][:4]) == (5, "2099")
    assert queue.get(job["job_id"]).args == {"day": 1, "password": "s3cretword"}


def test_cancel_of_a_waiting_job_is_undone_and_a_retry_is_not(source, client, act, undo, trigger):
    job_id = trigger()

    undo(act(f"/jobs/{job_id}/cancel"))
    assert client.get(f"/api/v1/jobs/{job_id}").json["status"] == "queued"
    act("/jobs/bulk", row=f"cancel {job_id}")
    retried = act(f"/jobs/{job_id}/retry")
    assert "There is no undo." in retried


def test_act_of_another_caller_is_not_undone(client, source, dsn, act, undo):
    note = act("/limits", name="crm", concurrency="3")
    execute_sql(dsn, "UPDATE dl_audit SET actor = 'another key'")

    refused = undo(note)

    assert refused.status_code == 409
    assert "cannot be undone" in refused.text
    assert Limits(source).status("crm").concurrency == 3


def test_undo_of_an_edit_leaves_the_later_edit_of_another(client, source, act, undo, trigger):
    job_id = trigger(args={"day": 1}, priority=5)
    version = re.search(r'name="version" value="([^"]+)"', client.get(f"/jobs/{job_id}/edit").text)
    assert version
    note = act(f"/jobs/{job_id}/edit", version=version[1], priority="9", args='{"day": 2}')
    client.patch(f"/api/v1/jobs/{job_id}", json={"args": {"day": 7}})

    answer = undo(note)

    assert answer.status_code == 409
    assert "has changed since" in answer.text
    job = client.get(f"/api/v1/jobs/{job_id}").json
    assert (job["priority"], job["args"]) == (9, {"day": 7})


def test_undo_of_a_cancel_keeps_the_time_of_the_job(client, source, act, undo, trigger, queue):
    job_id = trigger(available_at="2099-01-01T00:00:00Z")

    undo(act(f"/jobs/{job_id}/cancel"))

    job = client.get(f"/api/v1/jobs/{job_id}").json
    assert (job["status"], job["available_at"][:4]) == ("queued", "2099")
    assert queue.get(job["job_id"]).status == "queued"
    assert [event.kind for event in queue.events(job["job_id"])] == ["queued", "canceled", "requeue"]


def test_undo_of_a_state_keeps_the_note_that_stayed(source, act, undo, trigger):
    trigger()
    act("/queues/etl/state", state="paused", note="moving")
    undo(act("/queues/etl/state", state="draining", note="moving"))

    settings = Queues(source).settings()["etl"]
    assert (settings.state, settings.note) == ("paused", "moving")


def test_act_of_too_many_or_too_old_changes_has_no_undo(source, client, act, undo, dsn):
    note = act("/limits", name="crm", concurrency="3")
    execute_sql(
        dsn,
        "INSERT INTO dl_audit (action, actor, key_id, via, request_id, subject, subject_id, before, after) "
        "SELECT action, actor, key_id, via, request_id, 'alert', dl_new_id()::text, '{\"acknowledged_at\": null}', "
        '\'{"acknowledged_at": "2026-01-01T00:00:00Z"}\' '
        "FROM dl_audit, generate_series(1, 50) WHERE audit_id = (SELECT max(audit_id) FROM dl_audit)",
    )

    assert "cannot be undone" in undo(note).text
    execute_sql(dsn, "DELETE FROM dl_audit WHERE subject = 'alert'", "SELECT setval('dl_audit_audit_id_seq', 2000)")
    act("/limits", name="other", concurrency="3")
    assert "cannot be undone" in undo(note).text
    assert Limits(source).status("crm").concurrency == 3


@pytest.mark.parametrize("cookie", ['"a\\000b"', "\\", "x" * 3_000])
def test_page_with_a_broken_cookie_of_an_act_answers(client, source, cookie):
    assert client.get("/queues", headers={"Cookie": f"dl_act={cookie}"}).status_code == 200


@pytest.fixture
def definitions(client, source, trigger) -> str:
    """A queue, a schedule and an alert rule; return the id of the rule."""
    trigger()
    client.put("/api/v1/schedules/nightly", json={"expression": "0 3 * * *", "task": "noop", "queue": "etl"})
    return str(Alerts(source).add(name="old queue", kind=RuleKind.QUEUE_AGE, threshold=60.0).rule_id)


_RACES = {
    "queue": (
        ("/queues/etl/state", {"state": "paused"}),
        "UPDATE dl_queues SET state = 'draining'",
        "SELECT state FROM dl_queues",
    ),
    "limit": (
        ("/limits", {"name": "crm", "concurrency": "3"}),
        "UPDATE dl_limits SET concurrency = 8",
        "SELECT concurrency FROM dl_limits",
    ),
    "deleted limit": (
        ("/limits", {"name": "crm", "action": "delete"}),
        "SELECT dl_lock_limits(ARRAY['crm']); INSERT INTO dl_limits (name, concurrency) VALUES ('crm', 8)",
        "SELECT concurrency FROM dl_limits",
    ),
    "breaker": (
        ("/breakers", {"task": "noop", "action": "set", "failures": "3"}),
        "UPDATE dl_breakers SET failures = 8",
        "SELECT failures FROM dl_breakers",
    ),
    "deleted breaker": (
        ("/breakers", {"task": "noop", "action": "delete"}),
        "INSERT INTO dl_breakers (task, failures, resume_sec) VALUES ('noop', 8, 60)",
        "SELECT failures FROM dl_breakers",
    ),
    "schedule": (
        ("/schedules/nightly/act", {"action": "pause", "reason": "moving"}),
        "UPDATE dl_schedules SET paused_reason = 'another'",
        "SELECT paused_reason FROM dl_schedules",
    ),
    "alert rule": (
        ("/alerts/rules/RULE", {"action": "change", "threshold": "5m"}),
        "UPDATE dl_alert_rules SET threshold = 8",
        "SELECT threshold FROM dl_alert_rules",
    ),
}


@pytest.mark.parametrize("subject", _RACES)
def test_undo_never_overwrites_a_change_that_commits_meanwhile(source, definitions, dsn, act, undo, subject):
    (path, fields), change, value = _RACES[subject]
    if subject.startswith("deleted"):
        act(path, **{**fields, "action": "set", "concurrency": "3"} if path == "/limits" else _RACES["breaker"][0][1])
    note = act(path.replace("RULE", definitions), **fields)
    with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor, ThreadPoolExecutor(1) as thread:
        cursor.execute(change)
        before = fetch_value(dsn, value)
        answer = thread.submit(undo, note)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        eventually(lambda: fetch_value(dsn, waiting, other.info.backend_pid) == 1)
        other.commit()

    assert answer.result().status_code == 409
    assert "has changed since" in answer.result().text
    assert fetch_value(dsn, value) not in (before, None)


def fetch_value(dsn: str, query: str, *parameters: object) -> object:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        row = cursor.fetchone()
        return None if row is None else row[0]


def test_undo_of_many_changes_writes_all_or_none(source, act, undo, trigger, dsn):
    alerts = Alerts(source)
    alerts.add(name="old queue", kind=RuleKind.QUEUE_AGE, threshold=0.0)
    trigger()
    trigger(queue="other")
    alerts.check(interval_sec=1)
    first, second = alerts.all()
    note = act("/alerts", action="acknowledge", **{f"alert-{alert.alert_id}": "yes" for alert in (first, second)})
    execute_sql(dsn, f"UPDATE dl_alerts SET acknowledged_by = 'another' WHERE alert_id = '{second.alert_id}'")

    assert undo(note).status_code == 409
    assert [alert.acknowledged_at is not None for alert in alerts.all()] == [True, True]
