"""One look at all rules: what begins is reported once, and what is over is reported once."""

from __future__ import annotations

import json

import pytest

from dataloader.app.errors import AlertNotFound, RuleExists, RuleNotFound
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.quality.rows import DataQuality
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.queue.webhook_events import WebhookEvent
from tests.support import eventually
from tests.support.queue_fixture import QueueFixture

AT_ONCE = 0.001  # seconds between two looks


@pytest.fixture
def alerts(queue_db: QueueFixture) -> Alerts:
    queue_db.sql(
        "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts, dl_alert_rules, dl_stalled_progress,"
        " dl_statistics,"
        " dl_recent_runs, dl_checks, dl_dataset_events"
    )
    Webhooks(queue_db.session).add(
        "http://127.0.0.1:1/", events=[WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED]
    )
    return Alerts(queue_db.session)


def result(queue_db: QueueFixture) -> list[tuple[str, str]]:
    rows = queue_db.sql("SELECT event, body FROM dl_deliveries ORDER BY created_at, event")
    return [(event, json.loads(body)["data"]["subject"]) for event, body in rows]


def look(alerts: Alerts) -> tuple[int, int]:
    found = alerts.check(interval_sec=AT_ONCE)
    return found.fired, found.resolved


def ends(queue_db: QueueFixture, task: str, **numbers: int) -> None:
    for what, n in numbers.items():
        queue_db.sql(
            "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
            " VALUES (60, date_trunc('minute', now()), 'q', %s, %s, 0, %s)",
            task, what, n,
        )  # fmt: skip


def test_a_failure_rate_is_one_of_a_window_with_enough_runs(queue_db, alerts):
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2, min_runs=4)
    ends(queue_db, "bad", succeeded=2, failed=1, lost=1, canceled=50)
    ends(queue_db, "good", succeeded=9, failed=1)
    ends(queue_db, "rare", failed=3)

    assert look(alerts) == (1, 0)

    assert result(queue_db) == [("alert.firing", "bad")]
    (firing,) = alerts.all()
    assert (firing.value, firing.task, firing.detail) == (0.5, "bad", "2 of 4 runs of bad failed within 1 h")
    queue_db.sql("UPDATE dl_statistics SET started_at = started_at - interval '2 hours'")
    assert look(alerts) == (0, 1)
    assert result(queue_db)[1] == ("alert.resolved", "bad")


def test_lasting_alert_is_reported_once_across_processes(queue_db, alerts):
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    ends(queue_db, "bad", failed=3)
    other = Alerts(queue_db.new_session())

    assert [look(alerts), look(other), look(alerts)] == [(1, 0), (0, 0), (0, 0)]
    assert len(result(queue_db)) == 1
    assert alerts.counts() == {"failure_rate": 1}


def test_no_success_counts_from_last_success_or_rule_creation(queue_db, alerts):
    alerts.add(name="n", kind=RuleKind.NO_SUCCESS, task="t", threshold=1800)
    assert look(alerts) == (0, 0), "the rule is young"
    queue_db.sql("UPDATE dl_alert_rules SET created_at = now() - interval '1 h'")
    assert look(alerts) == (1, 0)
    ends(queue_db, "t", succeeded=1)
    assert look(alerts) == (0, 1)
    queue_db.sql("DELETE FROM dl_statistics")
    queue_db.sql(
        "INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome)"
        " VALUES ('t', 1, gen_random_uuid(), 'q', now() - interval '40 min', 'succeeded')"
    )
    assert look(alerts) == (1, 0)
    assert alerts.all()[0].detail == "t has not succeeded for 40 min"


def test_queue_age_is_oldest_ready_job_of_any_priority(queue_db, alerts):
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=60)
    alerts.add(name="r alone", kind=RuleKind.QUEUE_AGE, threshold=60, queue="r")
    queue_db.enqueue("fresh")
    for columns in (
        {"queue": "q", "priority": 500, "created_at": "now", "available_at": "2020-01-01"},
        {"queue": "r", "created_at": "2020-01-01", "available_at": "now"},
    ):
        queue_db.insert("old", wait_state="ready", **columns)
    queue_db.sql("UPDATE dl_jobs SET created_at = now() - interval '5 min' WHERE priority = 500")

    assert look(alerts) == (1, 0), "a job that became due a moment ago is not old"

    assert result(queue_db) == [("alert.firing", "q")]
    assert alerts.all()[0].detail == "a job of q has been ready for 5 min"


def test_stalled_progress_fires_and_new_progress_resolves(queue_db, alerts):
    alerts.add(name="s", kind=RuleKind.STALLED, threshold=60, task="t")
    run = queue_db.enqueue_and_claim()
    assert look(alerts) == (0, 0)
    queue_db.sql("UPDATE dl_stalled_progress SET since = now() - interval '2 min'")

    assert look(alerts) == (1, 0)

    assert result(queue_db) == [("alert.firing", str(run.id))]
    queue_db.sql("UPDATE dl_jobs SET progress = '{\"processed\": 1}'")
    assert look(alerts) == (0, 1)
    queue_db.queue.cancel(run.id)
    queue_db.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL")
    look(alerts)
    assert queue_db.sql("SELECT * FROM dl_stalled_progress") == []


def test_dead_worker_alert_resolves_after_window(queue_db, alerts):
    alerts.add(name="d", kind=RuleKind.DEAD_WORKER, threshold=30, window_sec=600)
    queue_db.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, seen_at)"
        " SELECT gen_random_uuid(), name, '0', '{q}', '{t}', 1, heartbeat, now() - interval '60 s'"
        "   FROM (VALUES ('w-1', 10), ('slow heartbeat', 30)) AS w (name, heartbeat)"
    )

    assert look(alerts) == (1, 0)
    assert result(queue_db) == [("alert.firing", "w-1")]
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '1 h'")
    assert look(alerts) == (0, 1)


def test_a_rule_that_is_switched_off_or_removed_fires_no_more(queue_db, alerts):
    off, gone = (alerts.add(name=name, kind=RuleKind.FAILURE_RATE, threshold=0.2) for name in ("off", "gone"))
    ends(queue_db, "bad", failed=3)
    assert look(alerts) == (2, 0)

    alerts.change(off.rule_id, active=False)
    alerts.remove(gone.rule_id)

    assert look(alerts) == (0, 2)
    assert [one.resolved_at is None for one in alerts.all(firing=False)] == [False, False]
    assert alerts.all() == []
    alerts.prune(keep_sec=0)
    assert alerts.all(firing=False) == []


def test_queue_webhook_gets_alerts_of_its_queue_or_no_queue(queue_db, alerts):
    queue_db.sql("UPDATE dl_webhooks SET queue = 'r'")
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=0)
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    queue_db.enqueue("a")
    queue_db.enqueue("b", queue="r")
    ends(queue_db, "bad", failed=3)

    assert look(alerts) == (3, 0)
    assert sorted(result(queue_db)) == [("alert.firing", "bad"), ("alert.firing", "r")]


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


def test_alerts_are_paged(queue_db, alerts):
    alerts.add(name="q", kind=RuleKind.QUEUE_AGE, threshold=0)
    for name in "abc":
        queue_db.enqueue(name, queue=name)
    look(alerts)

    newest = alerts.all(limit=2)

    assert len({one.subject for one in (*newest, *alerts.all(before=newest[-1].alert_id))}) == 3


# ── data quality ────────────────────────────────────────────────────────────────────────────────────────────────────


def add_check(queue_db: QueueFixture, outcome: str, *, task: str = "t", name: str = "rows", age_sec: float = 0) -> None:
    queue_db.sql(
        "INSERT INTO dl_checks (task, name, at, job_id, attempt, partition_key, value, outcome, detail)"
        " VALUES (%s, %s, clock_timestamp() - %s * interval '1 s', dl_new_id(), 1, '', 0, %s, 'below 1')",
        task, name, age_sec, outcome,
    )  # fmt: skip


def test_a_check_alert_lasts_until_the_check_passes(queue_db, alerts):
    alerts.add(name="c", kind=RuleKind.CHECK_FAILED, threshold=0, window_sec=3600)
    add_check(queue_db, "failed", name="old", age_sec=4000)
    add_check(queue_db, "passed", name="good")
    assert look(alerts) == (0, 0)

    add_check(queue_db, "warned")
    assert look(alerts) == (1, 0)
    (firing,) = alerts.all()
    assert (firing.subject, firing.task, firing.value) == ("t: rows", "t", 1)
    assert firing.detail == "the check rows of t warned: below 1"

    add_check(queue_db, "passed")
    eventually(lambda: look(alerts) == (0, 1))


def test_a_check_alert_counts_and_is_for_a_task(queue_db, alerts):
    alerts.add(name="c", kind=RuleKind.CHECK_FAILED, threshold=1, task="t", window_sec=3600)
    add_check(queue_db, "failed")
    add_check(queue_db, "failed", task="other")
    add_check(queue_db, "failed", task="other")
    assert look(alerts) == (0, 0)

    add_check(queue_db, "failed")
    assert look(alerts) == (1, 0)


def add_update(queue_db: QueueFixture, at: str, *, dataset: str = "sales", kind: str = "produced") -> None:
    queue_db.sql("DELETE FROM dl_dataset_events WHERE dataset = %s AND kind = %s", dataset, kind)
    queue_db.sql(
        "INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key)"
        f" VALUES (%s, %s, 't', {at}, dl_new_id(), '')",
        dataset, kind,
    )  # fmt: skip


def test_a_dataset_is_stale_until_it_is_updated(queue_db, alerts):
    alerts.add(name="s", kind=RuleKind.STALE_DATASET, threshold=3600, dataset="sales")
    add_update(queue_db, "now()", kind="consumed")
    add_update(queue_db, "now()", dataset="other")
    assert look(alerts) == (0, 0)  # the rule is new

    queue_db.sql("UPDATE dl_alert_rules SET created_at = now() - interval '2 hours'")
    assert look(alerts) == (1, 0)
    (firing,) = alerts.all()
    assert (firing.subject, firing.detail) == ("sales", "the dataset sales has not been updated")
    add_update(queue_db, "now() - interval '61 minutes'")
    assert look(alerts) == (0, 0)
    assert alerts.all()[0].detail == "the dataset sales was last updated 1 h 1 min ago"
    assert DataQuality(queue_db.session).dataset("sales").stale

    add_update(queue_db, "now()")
    eventually(lambda: look(alerts) == (0, 1))
    assert not DataQuality(queue_db.session).dataset("sales").stale


@pytest.mark.parametrize("zone", ["Europe/Moscow", None, "Not/AZone"])
def test_a_dataset_is_due_by_a_time_of_day(queue_db, alerts, zone):
    """The deadline was a minute ago: an update may be an hour older than that."""
    known = "UTC" if zone in (None, "Not/AZone") else zone
    deadline = "date_trunc('minute', now())"
    by_time = queue_db.fetch_row(f"SELECT to_char({deadline} AT TIME ZONE %s, 'HH24:MI')", known)
    alerts.add(name="s", kind=RuleKind.STALE_DATASET, threshold=3600, dataset="sales", by_time=by_time, zone=zone)
    queue_db.sql("UPDATE dl_alert_rules SET created_at = now() - interval '2 days'")

    add_update(queue_db, f"{deadline} - interval '61 minutes'")
    assert look(alerts) == (1, 0)
    assert f"an update was due by {by_time} {zone or 'UTC'}" in alerts.all()[0].detail

    add_update(queue_db, f"{deadline} - interval '50 minutes'")
    eventually(lambda: look(alerts) == (0, 1))


def test_a_deadline_later_today_is_that_of_yesterday(queue_db, alerts):
    by_time = queue_db.fetch_row("SELECT to_char(now() + interval '3 minutes', 'HH24:MI')")

    age = queue_db.fetch_row("SELECT extract(epoch FROM now() - dl_last_deadline(%s, 'UTC'))::float8", by_time)

    assert 86_400 - 240 < age < 86_400 - 60


def test_muted_rule_fires_without_deliveries_until_it_ends(queue_db, alerts):
    rule = alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    alerts.mute(rule.rule_id, mute_sec=3600, muted_by="on-call")
    ends(queue_db, "bad", failed=3)

    assert look(alerts) == (1, 0)
    assert (alerts.rule(rule.rule_id).is_muted, alerts.all()[0].sent_at, result(queue_db)) == (True, None, [])
    assert alerts.firing_hours() == {rule.rule_id: [0]}

    alerts.mute(rule.rule_id, mute_sec=0, muted_by="on-call")
    assert look(alerts) == (0, 0)
    assert (alerts.rule(rule.rule_id).muted_by, result(queue_db)) == (None, [("alert.firing", "bad")])
    assert look(alerts) == (0, 0)
    assert len(result(queue_db)) == 1


def test_alert_resolved_while_muted_is_reported_only_if_sent(queue_db, alerts):
    rule = alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    ends(queue_db, "sent", failed=3)
    look(alerts)
    alerts.mute(rule.rule_id, mute_sec=3600, muted_by="on-call")
    ends(queue_db, "unsent", failed=3)
    look(alerts)

    queue_db.sql("DELETE FROM dl_statistics")

    assert look(alerts) == (0, 2)
    assert result(queue_db) == [("alert.firing", "sent"), ("alert.resolved", "sent")]


def test_first_acknowledgement_is_kept_until_resolved(queue_db, alerts):
    alerts.add(name="f", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    ends(queue_db, "bad", failed=3)
    look(alerts)
    (firing,) = alerts.all()

    first = alerts.acknowledge(firing.alert_id, acknowledged_by="first")
    assert alerts.acknowledge(firing.alert_id, acknowledged_by="second") == first
    queue_db.sql("DELETE FROM dl_statistics")
    look(alerts)

    assert first.acknowledged_by == "first"
    with pytest.raises(AlertNotFound):
        alerts.acknowledge(firing.alert_id, acknowledged_by="late")
