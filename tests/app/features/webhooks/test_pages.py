"""The pages of webhooks and deliveries, without scripts."""

from __future__ import annotations

import re

import psycopg2
import pytest

from dataloader.app.features.webhooks.rows import DeliveryState, Webhooks
from tests.support.databases import execute_sql

URL = "https://hooks.example.com/x"


@pytest.fixture
def webhooks(dsn: str, pool) -> Webhooks:
    execute_sql(dsn, "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts")
    return Webhooks(pool)


def test_webhook_is_created_and_its_secret_shown_once(client, webhooks):
    made = client.post("/webhooks", data={"url": URL, "description": "on call", "events": "alert.firing"})

    (webhook,) = webhooks.all()
    assert (webhook.url, webhook.events, webhook.description) == (URL, ["alert.firing"], "on call")
    assert (made.status_code, "whsec_" in made.text) == (200, True)
    assert "whsec_" not in client.get(f"/webhooks/{webhook.webhook_id}").text
    assert "on call" in client.get("/webhooks").text


@pytest.mark.parametrize(("url", "message"), [("ftp://x", "http"), ("http://10.0.0.1/", "not public"), ("", "url")])
def test_refused_address_is_marked(client, webhooks, url, message):
    refused = client.post("/webhooks", data={"url": url})

    assert (refused.status_code, 'id="submit_webhook-url-error"' in refused.text) == (422, True)
    assert message in refused.text
    assert webhooks.all() == []


def test_webhook_is_edited_switched_and_deleted(client, webhooks):
    webhook, _ = webhooks.add(URL, queue="etl")
    path = f"/webhooks/{webhook.webhook_id}"

    client.post(f"{path}/edit", data={"url": URL + "/new", "task": "noop", "events": "job.failed"})
    edited = webhooks.get(webhook.webhook_id)
    assert (edited.url, edited.queue, edited.task, edited.events) == (URL + "/new", None, "noop", ["job.failed"])
    assert client.post(f"{path}/edit", data={"url": URL}).status_code == 422  # without an event
    client.post(f"{path}/act", data={"action": "off"})
    assert "It is off: by hand" in client.get(path).text
    client.post(f"{path}/act", data={"action": "on"})
    assert webhooks.get(webhook.webhook_id).active
    assert client.post(f"{path}/act", data={"action": "delete"}).headers["Location"] == "/webhooks"
    assert client.get(path).status_code == 404


def test_rotated_secret_is_shown_and_the_old_one_kept(client, webhooks):
    webhook, secret = webhooks.add(URL)

    rotated = client.post(f"/webhooks/{webhook.webhook_id}/rotate", data={"overlap_sec": "1h"})

    assert "whsec_" in rotated.text
    assert secret not in rotated.text
    assert webhooks.get(webhook.webhook_id).old_secret_expires_at is not None
    refused = client.post(f"/webhooks/{webhook.webhook_id}/rotate", data={"overlap_sec": "long"})
    assert (refused.status_code, 'id="submit_secret_rotation-overlap_sec-error"' in refused.text) == (422, True)


def test_delivery_is_sent_shown_and_sent_again(client, webhooks, dsn):
    webhook, _ = webhooks.add(URL)
    sent = client.post(f"/webhooks/{webhook.webhook_id}/ping")
    path = sent.headers["Location"]
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE dl_deliveries SET state = 'failed', due_at = NULL, attempts = 1")
        cursor.execute(
            "INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms, answer, error)"
            " SELECT delivery_id, 1, 503, 84, 'upstream down', 'HTTP 503' FROM dl_deliveries"
        )
    connection.close()

    page = client.get(path).text
    assert "upstream down" in page
    assert "webhook.ping" in page
    assert "failed" in client.get("/webhooks").text
    listed = f"/webhooks/{webhook.webhook_id}?state=failed"
    assert "503" in client.get(listed).text
    client.post(f"{path}/retry")
    assert [delivery.state for delivery in webhooks.deliveries()] == [DeliveryState.PENDING]
    assert "No deliveries in this state" in client.get(listed).text


def test_paused_receiver_has_its_next_attempt_after_the_pause(client, webhooks, dsn):
    webhook, _ = webhooks.add(URL)
    sent = client.post(f"/webhooks/{webhook.webhook_id}/ping").headers["Location"]
    execute_sql(
        dsn,
        "UPDATE dl_webhooks SET failures = 3, failing_since = now(), paused_until = now() + interval '4 min 30 s'",
        "UPDATE dl_deliveries SET due_at = now() - interval '7 min', attempts = 1",
        "INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms, answer, error)"
        " SELECT delivery_id, 1, 503, 84, '', 'answered 503' FROM dl_deliveries",
    )

    listed, page = client.get(f"/webhooks/{webhook.webhook_id}").text, client.get(sent).text

    assert [text.count(">in 4 min ") for text in (listed, page)] == [1, 1]
    assert "7 min ago" not in listed + page
    assert [len(re.findall(r"\b503\b", text)) for text in (listed, page)] == [1, 1]  # not within an id
    execute_sql(dsn, "UPDATE dl_webhooks SET paused_until = NULL")
    assert "waits for a worker process, due" in client.get(sent).text


def test_undelivered_are_sent_again_together(client, webhooks, dsn):
    webhook, other = webhooks.add(URL)[0], webhooks.add(URL)[0]
    for receiver in (webhook, webhook, webhook, other):
        webhooks.ping(receiver.webhook_id)
    execute_sql(
        dsn,
        "UPDATE dl_webhooks SET failures = 3, failing_since = now(), paused_until = now() + interval '4 min'",
        "UPDATE dl_deliveries SET attempts = 12, state = 'failed', due_at = NULL",
        "UPDATE dl_deliveries SET state = 'delivered', delivered_at = now() WHERE ctid = (SELECT max(ctid) FROM"
        f" dl_deliveries WHERE webhook_id = '{webhook.webhook_id}')",
    )

    assert client.get("/webhooks").text.count("Send undelivered again") == 2
    sent = client.post(f"/webhooks/{webhook.webhook_id}/redeliver")

    assert (sent.status_code, sent.headers["Location"]) == (303, f"/webhooks/{webhook.webhook_id}")
    states = sorted(delivery.state for delivery in webhooks.deliveries(webhook_id=webhook.webhook_id))
    assert states == [DeliveryState.DELIVERED, DeliveryState.PENDING, DeliveryState.PENDING]
    assert [d.state for d in webhooks.deliveries(webhook_id=other.webhook_id)] == [DeliveryState.FAILED]
    assert webhooks.get(webhook.webhook_id).paused_until is None
    assert webhooks.get(other.webhook_id).paused_until is not None
