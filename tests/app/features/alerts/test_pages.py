"""The page of alerts, without scripts."""

from __future__ import annotations

import re
from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.features.alerts.pages import describe_rule, format_threshold, parse_threshold, subject_url
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.ui.base import InvalidForm
from dataloader.app.ui.formatter import Formatter


@pytest.fixture
def alerts(dsn: str, pool) -> Alerts:
    execute(dsn, "TRUNCATE dl_alerts, dl_alert_rules, dl_webhooks CASCADE")
    return Alerts(pool)


def execute(dsn: str, statement: str, *values: object) -> None:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
    connection.close()


def fire(dsn: str, rule_id: object = None, *, kind: str = "queue_age", subject: str = "etl") -> None:
    execute(
        dsn,
        "INSERT INTO dl_alerts (rule_id, kind, name, subject, detail) VALUES (%s, %s, 'a rule', %s, 'it waits')",
        None if rule_id is None else str(rule_id), kind, subject,
    )  # fmt: skip


def test_page_without_rules_says_what_to_do(client, alerts):
    assert "nothing can fire" in client.get("/alerts").text


def test_rule_is_created_and_shown_in_words(client, alerts):
    made = client.post(
        "/alerts/rules", data={"name": "rates", "kind": "failure_rate", "threshold": "20 %", "min_runs": "5"}
    )

    assert made.headers["Location"] == "/alerts#rules"
    (rule,) = alerts.rules()
    assert (rule.threshold, rule.min_runs, rule.window_sec) == (0.2, 5, 3600)
    page = client.get("/alerts").text
    assert "more than 20 % of the runs, if 5 or more, fail within 1 h" in page
    assert "Alerts are sent to no receiver" in page


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "failure_rate", "threshold": "120 %"}, "threshold"),
        ({"kind": "stalled", "threshold": "soon"}, "threshold"),
        ({"kind": "check_failed", "threshold": "many"}, "threshold"),
        ({"kind": "odd", "threshold": "5"}, "kind"),
        ({"kind": "stale_dataset", "threshold": "1h", "dataset": "d", "by_time": "7"}, "by_time"),
        ({"kind": "failure_rate", "threshold": "0.5", "window_sec": "10"}, "window_sec"),
    ],
)
def test_refused_rule_is_marked_at_its_field(lasting_client, values, field):
    refused = lasting_client.post("/alerts/rules", data={"name": "n", **values})

    assert refused.status_code == 422
    assert f'id="submit_alert_rule-{field}-error"' in refused.text


def test_second_rule_of_a_name_is_refused_on_the_page(client, alerts):
    alerts.add("n", RuleKind.STALLED, 60)

    refused = client.post("/alerts/rules", data={"name": "n", "kind": "stalled", "threshold": "1m"})

    assert (refused.status_code, "is there already" in refused.text) == (409, True)


def test_rule_is_changed_switched_muted_and_deleted(client, alerts):
    rule = alerts.add("n", RuleKind.STALLED, 60)
    path = f"/alerts/rules/{rule.rule_id}"
    assert 'value="1m"' in client.get(f"/alerts?edit={rule.rule_id}").text

    client.post(path, data={"action": "change", "threshold": "15m"})
    client.post(path, data={"action": "off"})
    assert (alerts.rule(rule.rule_id).threshold, alerts.rule(rule.rule_id).active) == (900, False)
    client.post(path, data={"action": "on"})
    client.post(path, data={"action": "mute", "mute_sec": "8h"})
    assert alerts.rule(rule.rule_id).is_muted
    assert "muted" in client.get("/alerts").text
    client.post(path, data={"action": "unmute"})
    assert not alerts.rule(rule.rule_id).is_muted
    client.post(path, data={"action": "delete"})
    assert alerts.rules() == []


def test_refused_change_shows_the_form_of_its_rule(client, alerts):
    rule = alerts.add("n", RuleKind.STALLED, 60)

    refused = client.post(f"/alerts/rules/{rule.rule_id}", data={"action": "change", "threshold": "soon"})

    assert (refused.status_code, "Change n" in refused.text) == (422, True)
    assert 'id="submit_alert_rule_change-threshold-error"' in refused.text


def test_selected_alerts_are_acknowledged_and_their_rules_muted(client, alerts, dsn):
    rule = alerts.add("n", RuleKind.QUEUE_AGE, 60)
    fire(dsn, rule.rule_id)
    fire(dsn, rule.rule_id, subject="other")
    first, second = alerts.all()

    client.post("/alerts", data={"action": "acknowledge", f"alert-{first.alert_id}": "yes"})
    client.post("/alerts", data={"action": "mute", "mute_sec": "1h", f"alert-{second.alert_id}": "yes"})

    assert [bool(alert.acknowledged_at) for alert in alerts.all()] == [True, False]
    assert alerts.rule(rule.rule_id).is_muted
    for fields, message in (({}, "Select at least one"), ({"alert-1": "yes"}, "no valid id")):
        refused = client.post("/alerts", data={"action": "acknowledge", **fields})
        assert (refused.status_code, message in refused.text) == (422, True)


def test_critical_alerts_come_before_warnings(client, alerts, dsn):
    for kind, subject in (("stalled", str(uuid4())), ("check_failed", "checked"), ("breaker_open", "opened")):
        fire(dsn, kind=kind, subject=subject)
    fire(dsn, kind="dead_worker", subject="taken care of")
    (handled,) = (alert for alert in alerts.all() if alert.kind == "dead_worker")
    alerts.acknowledge(handled.alert_id, acknowledged_by="olga")

    rows = client.get("/alerts").text.split('<tr id="alert-')[1:]

    severities = [re.findall(r'class="st (?:alert|warning)">(critical|warning)<', row) for row in rows]
    assert severities == [["critical"], ["warning"], ["warning"], ["critical"]]
    assert "opened" in rows[0]
    assert "acknowledged by olga" in rows[3]


def test_resolved_alerts_are_paged(client, alerts, dsn):
    for number in range(21):
        fire(dsn, subject=f"s{number}")
    execute(dsn, "UPDATE dl_alerts SET ended_at = now()")

    page = client.get("/alerts").text
    older = page[page.index("/alerts?before=") :].partition('"')[0].partition("#")[0]

    assert page.count('"Rule">a rule<') == 20
    assert client.get(older).text.count('"Rule">a rule<') == 1


@pytest.mark.parametrize("kind", RuleKind)
def test_threshold_of_each_kind_is_read_as_it_is_shown(alerts, kind):
    parameters = {"task": "t"} if kind is RuleKind.NO_SUCCESS else {}
    rule = alerts.add(kind.value, kind, 0.25 if kind is RuleKind.FAILURE_RATE else 120, **parameters)

    assert parse_threshold(kind, format_threshold(rule)) == rule.threshold
    assert describe_rule(rule, Formatter("UTC"))


def test_threshold_is_required():
    with pytest.raises(InvalidForm):
        parse_threshold(RuleKind.STALLED, "")


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("queue_age", "/queues/a%2Fb"), ("schedule_late", "/schedules/a%2Fb"), ("stale_dataset", "/datasets/a%2Fb"),
        ("dead_worker", "/workers"), ("limit_starved", "/limits#limit-a%2Fb"), ("breaker_open", "/limits#breakers"),
        ("no_success", "/tasks/a%2Fb"), ("webhook_disabled", "/webhooks/a%2Fb"),
    ],
)  # fmt: skip
def test_alert_links_what_it_is_about(client, alerts, dsn, kind, url):
    fire(dsn, kind=kind, subject="a/b")

    assert subject_url(alerts.all()[0]) == url


def test_alert_of_a_stalled_job_links_the_job(alerts, dsn):
    job_id = str(uuid4())
    fire(dsn, kind="stalled", subject=job_id)

    assert subject_url(alerts.all()[0]) == f"/jobs/{job_id}"


def test_alert_is_muted_and_acknowledged_in_its_row_of_the_overview(client, alerts, trigger):
    rule = alerts.add(name="old jobs of etl", kind=RuleKind.QUEUE_AGE, threshold=0.0, queue="etl")
    trigger()
    alerts.check(interval_sec=1)
    forms = re.findall(r'<form method="post" action="/alerts".*?</form>', client.get("/").text, re.DOTALL)
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', forms[0]))

    muted = client.post("/alerts", data=fields)

    assert [re.findall("<button[^>]*>([^<]+)", form)[0] for form in forms] == ["Mute 1 h", "Acknowledge"]
    assert muted.location == "/"
    assert alerts.rule(rule.rule_id).is_muted
    acknowledged = {**fields, "action": "acknowledge", "next": "//evil.example"}
    assert client.post("/alerts", data=acknowledged).location == "/"
    assert alerts.all()[0].acknowledged_at is not None
    assert 'action="/alerts"' not in client.get("/").text
