"""One look at all rules: what begins is told once, and what is over is told once."""

from __future__ import annotations

import json

import pytest

from app.admin.alerts import Alerts, RuleKind
from app.admin.webhooks import WebhookEvent, Webhooks
from app.errors import RuleExists, RuleNotFound
from tests.support.queue_fixture import QueueFixture

AT_ONCE = 0.001  # seconds between two looks


@pytest.fixture
def alerts(desk: QueueFixture) -> Alerts:
    desk.sql(
        "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts, dl_alert_rules, dl_stalled_progress,"
        " dl_statistics,"
        " dl_recent_runs"
    )
    Webhooks(desk.session).add("http://127.0.0.1:1/", events=[WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED])
    return Alerts(desk.session)


def told(desk: QueueFixture) -> list[tuple[str, str]]:
    rows = desk.sql("SELECT event, body FROM dl_deliveries ORDER BY created_at, event")
    return [(event, json.loads(body)["data"]["subject"]) for event, body in rows]


def look(alerts: Alerts) -> tuple[int, int]:
    found = alerts.check(interval_sec=AT_ONCE)
    return found.fired, found.resolved


def ends(desk: QueueFixture, task: str, **numbers: int) -> None:
    for what, n in numbers.items():
        desk.sql(
            "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
            " VALUES (60, date_trunc('minute', now()), 'q', %s, %s, 0, %s)",
            task, what, n,
        )  # fmt: skip


def test_a_failure_rate_is_one_of_a_window_with_enough_runs(desk, alerts):
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2, min_runs=4)
    ends(desk, "bad", succeeded=2, failed=1, lost=1, canceled=50)
    ends(desk, "good", succeeded=9, failed=1)
    ends(desk, "rare", failed=3)

    assert look(alerts) == (1, 0)

    assert told(desk) == [("alert.firing", "bad")]
    (firing,) = alerts.all()
    assert (firing.value, firing.task, firing.detail) == (0.5, "bad", "2 of 4 runs of bad failed within 3600 s")
    desk.sql("UPDATE dl_statistics SET started_at = started_at - interval '2 hours'")
    assert look(alerts) == (0, 1)
    assert told(desk)[1] == ("alert.resolved", "bad")


def test_what_goes_on_is_told_once_also_by_another_process(desk, alerts):
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    ends(desk, "bad", failed=3)
    other = Alerts(desk.new_session())

    assert [look(alerts), look(other), look(alerts)] == [(1, 0), (0, 0), (0, 0)]
    assert len(told(desk)) == 1
    assert alerts.counts() == {"failure_rate": 1}


def test_no_success_counts_from_last_success_or_rule_creation(desk, alerts):
    alerts.add(name="n", kind=RuleKind.NO_SUCCESS, task="t", threshold=1800)
    assert look(alerts) == (0, 0), "the rule is young"
    desk.sql("UPDATE dl_alert_rules SET created_at = now() - interval '1 h'")
    assert look(alerts) == (1, 0)
    ends(desk, "t", succeeded=1)
    assert look(alerts) == (0, 1)
    desk.sql("DELETE FROM dl_statistics")
    desk.sql(
        "INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome)"
        " VALUES ('t', 1, gen_random_uuid(), 'q', now() - interval '40 min', 'succeeded')"
    )
    assert look(alerts) == (1, 0)
    assert alerts.all()[0].detail == "t has not succeeded for 2400 s"


def test_queue_age_is_oldest_ready_job_of_any_priority(desk, alerts):
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=60)
    alerts.add(name="r alone", kind=RuleKind.QUEUE_AGE, threshold=60, queue="r")
    desk.enqueue("fresh")
    for columns in (
        {"queue": "q", "priority": 500, "created_at": "now", "available_at": "2020-01-01"},
        {"queue": "r", "created_at": "2020-01-01", "available_at": "now"},
    ):
        desk.insert("old", wait_state="ready", **columns)
    desk.sql("UPDATE dl_jobs SET created_at = now() - interval '5 min' WHERE priority = 500")

    assert look(alerts) == (1, 0), "a job that became due a moment ago is not old"

    assert told(desk) == [("alert.firing", "q")]
    assert alerts.all()[0].detail == "a job of q has been ready for 300 s"


def test_stalled_progress_fires_and_new_progress_resolves(desk, alerts):
    alerts.add(name="s", kind=RuleKind.STALLED, threshold=60, task="t")
    run = desk.enqueue_and_claim()
    assert look(alerts) == (0, 0)
    desk.sql("UPDATE dl_stalled_progress SET since = now() - interval '2 min'")

    assert look(alerts) == (1, 0)

    assert told(desk) == [("alert.firing", str(run.id))]
    desk.sql("UPDATE dl_jobs SET progress = '{\"processed\": 1}'")
    assert look(alerts) == (0, 1)
    desk.queue.cancel(run.id)
    desk.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL")
    look(alerts)
    assert desk.sql("SELECT * FROM dl_stalled_progress") == []


def test_dead_worker_alert_resolves_after_window(desk, alerts):
    alerts.add(name="d", kind=RuleKind.DEAD_WORKER, threshold=30, window_sec=600)
    desk.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, seen_at)"
        " SELECT gen_random_uuid(), name, '0', '{q}', '{t}', 1, beat, now() - interval '60 s'"
        "   FROM (VALUES ('w-1', 10), ('slow beat', 30)) AS w (name, beat)"
    )

    assert look(alerts) == (1, 0)
    assert told(desk) == [("alert.firing", "w-1")]
    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '1 h'")
    assert look(alerts) == (0, 1)


def test_a_rule_that_is_switched_off_or_removed_fires_no_more(desk, alerts):
    off, gone = (alerts.add(name=name, kind=RuleKind.FAILURE_RATE, threshold=0.2) for name in ("off", "gone"))
    ends(desk, "bad", failed=3)
    assert look(alerts) == (2, 0)

    alerts.change(off.rule_id, active=False)
    alerts.remove(gone.rule_id)

    assert look(alerts) == (0, 2)
    assert [one.resolved_at is None for one in alerts.all(firing=False)] == [False, False]
    assert alerts.all() == []
    alerts.prune(keep_sec=0)
    assert alerts.all(firing=False) == []


def test_queue_webhook_gets_alerts_of_its_queue_or_no_queue(desk, alerts):
    desk.sql("UPDATE dl_webhooks SET queue = 'r'")
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=0)
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    desk.enqueue("a")
    desk.enqueue("b", queue="r")
    ends(desk, "bad", failed=3)

    assert look(alerts) == (3, 0)
    assert sorted(told(desk)) == [("alert.firing", "bad"), ("alert.firing", "r")]


def test_rules_are_kept_by_name_and_changed_in_their_numbers(alerts):
    rule = alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2, queue="q", task="t")
    with pytest.raises(RuleExists):
        alerts.add(name="f", kind=RuleKind.STALLED, threshold=60)

    changed = alerts.change(rule.rule_id, threshold=0.5, min_runs=9)

    assert (changed.threshold, changed.min_runs, changed.window_sec, changed.queue) == (0.5, 9, 3600, "q")
    assert alerts.rules() == [changed] == [alerts.rule(rule.rule_id)]
    alerts.remove(rule.rule_id)
    for ask in (alerts.rule, alerts.remove, alerts.change):
        with pytest.raises(RuleNotFound):
            ask(rule.rule_id)


def test_alerts_are_paged(desk, alerts):
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=0)
    for name in "abc":
        desk.enqueue(name, queue=name)
    look(alerts)

    newest = alerts.all(limit=2)

    assert len({one.subject for one in (*newest, *alerts.all(before=newest[-1].alert_id))}) == 3
