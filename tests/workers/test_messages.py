"""Alerts and ends of jobs arrive as messages for people: in chats and by e-mail, in one message for many subjects."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.config.smtp import SmtpServer
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.webhooks.messages import Origin
from dataloader.app.features.webhooks.receivers import Format
from dataloader.app.features.webhooks.rows import DeliveryState, Webhooks
from dataloader.app.features.webhooks.sender import WebhookOptions
from dataloader.app.queue.job import Status
from dataloader.workers.duties import MaintenanceOptions
from tests.support.certificates import make_certificates
from tests.support.smtp_receiver import SmtpReceiver
from tests.support.waiting import eventually
from tests.support.webhook_receiver import LOOPBACK, OK, WebhookReceiver, respond_with
from tests.support.worker_pool_fixture import WorkerPoolFixture

ALERT_EVENTS = ["alert.firing", "alert.resolved"]
ORIGIN = Origin("production", "https://dl.example.com", "UTC")
PASSWORD = "correct horse"


@pytest.fixture
def hooks(worker_pools: WorkerPoolFixture) -> Webhooks:
    worker_pools.queue_fixture.sql(
        "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts, dl_alert_rules, dl_statistics"
    )
    return Webhooks(worker_pools.queue_fixture.new_session())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture
def start(worker_pools: WorkerPoolFixture) -> Callable[..., None]:
    def run(**more: Any) -> None:
        values = {"allowed_hosts": LOOPBACK, "timeout_sec": 3.0, "retry_delays_sec": (0.01,) * 11, "origin": ORIGIN}
        options = WebhookOptions(**{**values, **more})
        worker_pools.listening_pool(maintenance=MaintenanceOptions(features={"webhooks": options}))

    return run


def fail(worker_pools: WorkerPoolFixture, *tasks: str) -> None:
    """In one statement, so that the check of the pool's own leader sees all of them or none."""
    worker_pools.queue_fixture.sql(
        "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
        " SELECT 60, date_trunc('minute', now()), 'q', task, 'failed', 0, 3 FROM unnest(%s) AS task",
        list(tasks),
    )


@pytest.fixture
def alerts(worker_pools: WorkerPoolFixture, hooks: Webhooks) -> Alerts:
    alerts = Alerts(worker_pools.queue_fixture.new_session())
    alerts.add(name="rates <fail>", kind=RuleKind.FAILURE_RATE, threshold=0.2)
    return alerts


def check(alerts: Alerts) -> None:
    alerts.check(interval_sec=0.0)


def texts_of(value: Any) -> str:
    """All texts in a body."""
    if isinstance(value, dict):
        return "\n".join(map(texts_of, value.values()))
    return "\n".join(map(texts_of, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(
    ("format", "link", "rule"),
    [
        (Format.SLACK, "<https://dl.example.com/tasks/load.a|load.a>", "rates &lt;fail&gt;"),
        (Format.TEAMS, "[load.a](https://dl.example.com/tasks/load.a)", "rates <fail>"),
        (Format.GOOGLE_CHAT, "<https://dl.example.com/tasks/load.a|load.a>", "rates &lt;fail&gt;"),
    ],
)
def test_chat_gets_one_message_for_many_subjects(worker_pools, hooks, alerts, start, format, link, rule):
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS, format=format)
        fail(worker_pools, "load.a", "load.b", "load.c")
        check(alerts)
        receiver.wait_for(1)
        worker_pools.queue_fixture.sql("DELETE FROM dl_statistics")
        check(alerts)
        firing, resolved = receiver.wait_for(2)

    text = texts_of(firing.json)
    assert link in text
    assert all(word in text for word in (rule, "Firing", "3 alerts", "production", "load.b", "load.c", "since "))
    assert "3 of 3 runs of load.a failed within 1 h" in text.replace("\\_", "_")
    assert "https://dl.example.com/alerts" in text
    assert "Resolved" in texts_of(resolved.json)
    assert "resolved" in texts_of(resolved.json)
    assert "webhook-signature" not in firing.headers
    eventually(lambda: len(hooks.deliveries(state=DeliveryState.DELIVERED)) == 2)


def test_bodies_have_the_form_that_each_chat_takes(worker_pools, hooks, alerts, start):
    start()
    with WebhookReceiver() as slack, WebhookReceiver() as teams, WebhookReceiver() as chat:
        for receiver, format in ((slack, Format.SLACK), (teams, Format.TEAMS), (chat, Format.GOOGLE_CHAT)):
            hooks.add(receiver.url, events=ALERT_EVENTS, format=format)
        fail(worker_pools, "load.a")
        check(alerts)
        (to_slack,), (to_teams,), (to_chat,) = (receiver.wait_for(1) for receiver in (slack, teams, chat))

    (attachment,) = to_slack.json["attachments"]
    assert {block["type"] for block in attachment["blocks"]} == {"header", "section", "actions"}
    assert to_slack.json["text"] == "Firing: rates &lt;fail&gt; · production"
    (card,) = to_teams.json["attachments"]
    assert to_teams.json["type"] == "message"
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert (card["content"]["type"], card["content"]["version"]) == ("AdaptiveCard", "1.4")
    assert card["content"]["actions"][0]["type"] == "Action.OpenUrl"
    assert to_chat.json.keys() == {"text"}
    assert to_chat.json["text"].endswith("<https://dl.example.com/alerts|Open the alerts>")


def test_program_still_gets_each_alert_signed(worker_pools, hooks, alerts, start):
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS)
        fail(worker_pools, "load.a", "load.b")
        check(alerts)
        received = receiver.wait_for(2)

    assert sorted(each.json["data"]["subject"] for each in received) == ["load.a", "load.b"]
    assert all("webhook-signature" in each.headers for each in received)


def test_muted_rule_sends_no_message_until_its_end(worker_pools, hooks, alerts, start):
    (rule,) = alerts.rules()
    alerts.mute(rule.rule_id, mute_sec=3600, muted_by="ann")
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS, format=Format.SLACK)
        fail(worker_pools, "load.a")
        check(alerts)
        assert hooks.deliveries() == []
        alerts.mute(rule.rule_id, mute_sec=0, muted_by="ann")
        check(alerts)
        (message,) = receiver.wait_for(1)

    assert "load.a" in texts_of(message.json)


def test_message_of_a_hundred_subjects_is_bounded(worker_pools, hooks, alerts, start):
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS, format=Format.SLACK)
        fail(worker_pools, *(f"load.{n}" for n in range(100)))
        check(alerts)
        (message,) = receiver.wait_for(1)

    blocks = message.json["attachments"][0]["blocks"]
    assert len(blocks) <= 50, "Slack refuses more"
    assert "and 90 more" in texts_of(message.json)


def test_failed_job_is_a_message_that_masks_its_secrets(worker_pools, hooks, start):
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=["job.failed"], format=Format.TEAMS)
        run = worker_pools.queue_fixture.enqueue_and_claim(task="load.rates", max_attempts=1)
        error = "HTTPError: 502\nno answer of https://ann:hunter2@db.example.com/"
        worker_pools.queue_fixture.settle(run, Status.FAILED, error=error)
        (message,) = receiver.wait_for(1)

    text = texts_of(message.json)
    assert "load.rates failed" in text
    assert f"https://dl.example.com/jobs/{run.id}" in text
    assert "hunter2" not in text


def test_busy_chat_is_retried_when_it_says_so(worker_pools, hooks, alerts, start):
    start()
    with WebhookReceiver(respond_with(429, "Retry-After: 0"), OK) as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS, format=Format.SLACK)
        fail(worker_pools, "load.a")
        check(alerts)
        receiver.wait_for(1)

        def hurried() -> bool:
            worker_pools.queue_fixture.sql("UPDATE dl_webhooks SET paused_until = NULL")
            return len(hooks.deliveries(state=DeliveryState.DELIVERED)) == 1

        eventually(hurried, 30, lambda: str(hooks.deliveries()))


# ── e-mail ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def contexts(folder: Path) -> tuple[ssl.SSLContext, Callable[[], ssl.SSLContext]]:
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(folder / "server.crt", folder / "server.key")
    return theirs, lambda: ssl.create_default_context(cafile=folder / "ca.crt")


def send_alert(worker_pools: WorkerPoolFixture, hooks: Webhooks, alerts: Alerts) -> None:
    hooks.add("mailto:ann@example.com,ben@example.com", events=ALERT_EVENTS, format=Format.EMAIL)
    fail(worker_pools, "load.a", "load.b")
    check(alerts)


@pytest.mark.parametrize("security", ["tls", "starttls", "off"])
def test_mail_arrives_encrypted_and_after_a_login(worker_pools, hooks, alerts, start, certificates, security):
    theirs, ours = contexts(certificates)
    with SmtpReceiver(
        tls=theirs if security == "tls" else None,
        starttls=theirs if security == "starttls" else None,
        login=("ann", PASSWORD),
    ) as receiver:
        server = SmtpServer("localhost", receiver.port, security, "dataloader@example.com", "ann", PASSWORD)
        start(smtp=server, tls_context=ours)
        send_alert(worker_pools, hooks, alerts)
        (mail,) = receiver.wait_for(1)
        eventually(lambda: len(hooks.deliveries(state=DeliveryState.DELIVERED)) == 1)

    assert receiver.was_encrypted == [security != "off"]
    assert receiver.recipients == [["ann@example.com", "ben@example.com"]]
    assert (mail["From"], mail["Subject"]) == (
        "dataloader@example.com",
        "Firing: rates <fail> (2 alerts) · production",
    )
    text, html = (part.get_content() for part in mail.iter_parts())
    assert "https://dl.example.com/tasks/load.a" in text
    assert "3 of 3 runs of load.b failed within 1 h" in text
    assert '<a href="https://dl.example.com/tasks/load.a">load.a</a>' in html
    assert "<fail>" not in html


@pytest.mark.parametrize(
    ("setup", "reason", "state"),
    [
        ({"replies": {"RCPT": "550 no such user"}}, "550 no such user", DeliveryState.FAILED),
        ({"login": ("ann", "other")}, "the login is refused (535)", DeliveryState.PENDING),
        ({"replies": {"MAIL": "451 busy"}}, "451 busy", DeliveryState.PENDING),
        ({"is_hanging": True}, "no answer within 0.5 s", DeliveryState.PENDING),
    ],
)
def test_fault_of_the_mail_server_is_named(worker_pools, hooks, alerts, start, setup, reason, state):
    with SmtpReceiver(**setup) as receiver:
        user = ("ann", PASSWORD) if "login" in setup else (None, None)
        server = SmtpServer("localhost", receiver.port, "off", "dataloader@example.com", *user)
        start(smtp=server, timeout_sec=0.5, retry_delays_sec=(60.0,) * 11)
        send_alert(worker_pools, hooks, alerts)
        eventually(lambda: hooks.deliveries()[0].error is not None, 20, lambda: str(hooks.deliveries()))

    (delivery,) = hooks.deliveries()
    assert reason in (delivery.error or "")
    assert delivery.state is state
    assert PASSWORD not in (delivery.error or "")


def test_password_is_not_sent_without_starttls(worker_pools, hooks, alerts, start):
    with SmtpReceiver(login=("ann", PASSWORD)) as receiver:
        server = SmtpServer("localhost", receiver.port, "starttls", "dataloader@example.com", "ann", PASSWORD)
        start(smtp=server, retry_delays_sec=(60.0,) * 11)
        send_alert(worker_pools, hooks, alerts)
        eventually(lambda: hooks.deliveries()[0].error is not None, 20, lambda: str(hooks.deliveries()))

    assert "STARTTLS" in (hooks.deliveries()[0].error or "")
    assert receiver.mails == []


def test_certificate_of_another_authority_is_refused(worker_pools, hooks, alerts, start, certificates):
    theirs, _ = contexts(certificates)
    with SmtpReceiver(starttls=theirs) as receiver:
        server = SmtpServer("localhost", receiver.port, "starttls", "dataloader@example.com")
        start(smtp=server, retry_delays_sec=(60.0,) * 11)
        send_alert(worker_pools, hooks, alerts)
        eventually(lambda: hooks.deliveries()[0].error is not None, 20, lambda: str(hooks.deliveries()))

    assert (hooks.deliveries()[0].error or "").startswith("TLS: ")
    assert receiver.mails == []


def test_mail_waits_for_a_worker_with_a_mail_server(worker_pools, hooks, alerts, start):
    start(retry_delays_sec=(60.0,) * 11)
    send_alert(worker_pools, hooks, alerts)
    eventually(lambda: hooks.deliveries()[0].error is not None, 20, lambda: str(hooks.deliveries()))

    assert "DL_SMTP_URL is not set" in (hooks.deliveries()[0].error or "")


@pytest.mark.parametrize("format", [Format.SLACK, Format.TEAMS, Format.GOOGLE_CHAT])
def test_test_message_says_that_nothing_is_wrong(hooks, start, format):
    start()
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url, events=ALERT_EVENTS, format=format)
        hooks.ping_alert_receivers()
        (message,) = receiver.wait_for(1)

    assert "Test message" in texts_of(message.json)
    assert "Nothing is wrong" in texts_of(message.json)
