"""Addresses name a format, and those of chats are not shown again."""

from __future__ import annotations

import pytest

from dataloader.app.config.smtp import parse_smtp_url
from dataloader.app.features.webhooks.receivers import Format, check_receiver, host_of, read_receiver, shown_url
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.features.webhooks.sender import WebhookOptions
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.net import AllowedHosts, ForbiddenAddress
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.databases import execute_sql

SLACK = "https://hooks.slack.com/services/T0/B0/secret-part"


@pytest.mark.parametrize(
    ("url", "sent_to", "format"),
    [
        (SLACK, SLACK, Format.SLACK),
        ("slack://chat.internal/hooks/1", "https://chat.internal/hooks/1", Format.SLACK),
        ("teams://flow.example.com/x?sig=1", "https://flow.example.com/x?sig=1", Format.TEAMS),
        ("https://a.b.logic.azure.com/x", "https://a.b.logic.azure.com/x", Format.TEAMS),
        ("gchat://chat.example.com/x", "https://chat.example.com/x", Format.GOOGLE_CHAT),
        ("https://chat.googleapis.com/v1/spaces/x", "https://chat.googleapis.com/v1/spaces/x", Format.GOOGLE_CHAT),
        ("mailto:ann@example.com", "mailto:ann@example.com", Format.EMAIL),
        ("https://hooks.example.com/x", "https://hooks.example.com/x", None),
        ("https://nothooks.slack.com.example.com/x", "https://nothooks.slack.com.example.com/x", None),
        ("https://evilhooks.slack.com/x", "https://evilhooks.slack.com/x", None),
    ],
)
def test_address_names_its_format(url, sent_to, format):
    assert read_receiver(url, None) == (sent_to, format)


def test_format_of_the_request_counts_more_than_the_host():
    assert read_receiver(SLACK, Format.JSON) == (SLACK, Format.JSON)


@pytest.mark.parametrize(
    ("url", "format"), [("slack://a.example.com/", Format.TEAMS), ("https://a.example.com/", Format.EMAIL)]
)
def test_format_that_contradicts_the_address_is_refused(url, format):
    with pytest.raises(ForbiddenAddress):
        read_receiver(url, format)


@pytest.mark.parametrize(
    "url", ["mailto:", "mailto:ann", "mailto:ann@example.com?cc=x@example.com", "mailto:a@b.c,,d@e.f",
            "mailto:a@example.com%0aBcc:b@example.com", "mailto:" + ",".join(["a@example.com"] * 21)]
)  # fmt: skip
def test_wrong_mail_address_is_refused(url):
    with pytest.raises(ForbiddenAddress):
        check_receiver(url, AllowedHosts())


def test_private_chat_is_refused_like_a_private_program():
    with pytest.raises(ForbiddenAddress):
        check_receiver("https://10.0.0.1/hooks", AllowedHosts())


def test_address_of_a_chat_is_shown_without_its_path():
    assert shown_url(SLACK, Format.SLACK) == "https://hooks.slack.com/…"
    assert shown_url("mailto:ann@example.com", Format.EMAIL) == "mailto:ann@example.com"
    assert shown_url("https://a.example.com/x", Format.JSON) == "https://a.example.com/x"
    assert host_of("https://a.example.com/?key=1") == "https://a.example.com/…"


def test_pages_and_api_never_show_the_address_of_a_chat(client, pool, dsn):
    execute_sql(dsn, "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts")
    made = client.post("/api/v1/webhooks", json={"url": SLACK, "events": ["alert.firing"]})
    webhook_id = made.get_json()["webhook_id"]
    client.post(f"/webhooks/{webhook_id}/ping")
    (delivery,) = client.get("/api/v1/deliveries").get_json()["deliveries"]

    assert (made.status_code, made.get_json()["format"], made.get_json()["secret"]) == (200, "slack", None)
    edited = client.patch(f"/api/v1/webhooks/{webhook_id}", json={"description": "on call"})
    pages = [
        made, edited, client.get("/api/v1/webhooks"), client.get("/webhooks"), client.get(f"/webhooks/{webhook_id}"),
        client.get("/alerts"), client.get("/api/v1/deliveries"), client.get(f"/deliveries/{delivery['delivery_id']}"),
    ]  # fmt: skip
    assert [page.status_code for page in pages if "secret-part" in page.text or page.status_code >= 400] == []
    assert Webhooks(pool).all()[0].url == SLACK


def test_edit_of_a_chat_without_an_address_keeps_it(client, pool, dsn):
    execute_sql(dsn, "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts")
    webhook, _ = Webhooks(pool).add(SLACK, events=["alert.firing"], format=Format.SLACK)
    form = {"url": "", "format": "slack", "description": "on call", "events": "alert.resolved"}
    client.post(f"/webhooks/{webhook.webhook_id}/edit", data=form)

    edited = Webhooks(pool).get(webhook.webhook_id)
    assert (edited.url, edited.format, edited.description) == (SLACK, Format.SLACK, "on call")
    assert edited.events == ["alert.resolved"]


@pytest.mark.parametrize(
    ("url", "host", "port", "security"),
    [
        ("smtps://u:p%40ss@mail.example.com?from=dl@example.com", "mail.example.com", 465, "tls"),
        ("smtp://u:p%40ss@mail.example.com:2525?from=dl@example.com", "mail.example.com", 2525, "starttls"),
        ("smtp://u:p%40ss@localhost:25?from=dl@example.com&tls=off", "localhost", 25, "off"),
    ],
)
def test_mail_server_is_read_from_its_url(url, host, port, security):
    server = parse_smtp_url(url)

    assert (server.host, server.port, server.security) == (host, port, security)
    assert (server.user, server.password, server.sender) == ("u", "p@ss", "dl@example.com")
    assert "p@ss" not in repr(server)


@pytest.mark.parametrize(
    "url",
    [
        "https://mail.example.com?from=dl@example.com", "smtp://?from=dl@example.com", "smtp://mail.example.com",
        "smtp://u:hunter2@mail.example.com?from=dl@example.com&tls=off", "smtp://u:hunter2@h:x?from=a@b.c",
        "smtps://u:hunter2@mail.example.com?from=dl@example.com&tls=off",
        "smtp://u:hunter2@mail.example.com?from=dl@example.com&starttls=1",
    ],
)  # fmt: skip
def test_wrong_mail_server_is_refused_without_its_password(url):
    with pytest.raises(ValueError, match="it ") as refused:
        parse_smtp_url(url)
    assert "hunter2" not in str(refused.value)


def test_mail_is_refused_by_a_service_without_a_mail_server(pool, dsn):
    execute_sql(dsn, "TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts")
    body = {"url": "mailto:ann@example.com"}
    server = parse_smtp_url("smtps://mail.example.com?from=dl@example.com")
    without, with_one = (
        create_app(
            JobQueue(pool),
            Pipelines(),
            WebOptions(version="1", features={"webhooks": WebhookOptions(smtp=smtp)}),
            pool=pool,
        ).test_client()
        for smtp in (None, server)
    )

    refused = without.post("/api/v1/webhooks", json=body)
    assert (refused.status_code, "DL_SMTP_URL" in refused.text) == (400, True)
    assert with_one.post("/api/v1/webhooks", json=body).get_json()["format"] == "email"
