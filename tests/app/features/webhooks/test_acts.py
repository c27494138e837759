"""Each act of a webhook by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

URL, OTHER_URL, LOCAL_URL = "https://hooks.example.com/a", "https://hooks.example.com/b", "http://127.0.0.1/"
SLACK = "https://hooks.slack.com/services/T0/B0/x"
HOOK, DELIVERY = (f"01900000-0000-7000-8000-00000000000{n}" for n in (1, 2))
KNOWN = (
    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
    f" VALUES ('{HOOK}', 'w', '1', '{{etl}}', '{{load}}', 1, 10);"
)
WEBHOOK = (
    "INSERT INTO dl_webhooks (webhook_id, url, events, queue, description, secret)"
    f" VALUES ('{HOOK}', '{URL}', '{{job.failed}}', 'etl', 'on call', 'whsec_eA==');"
)
UNDELIVERED = WEBHOOK + (
    "INSERT INTO dl_deliveries (delivery_id, webhook_id, target, event, body, state, attempts)"
    f" VALUES ('{DELIVERY}', '{HOOK}', 'hooks.example.com', 'webhook.ping', '{{}}', 'failed', 3);"
)
PATH, PAGE = f"/webhooks/{HOOK}", f"/webhooks/{HOOK}"
CASES = {
    "created": Case(
        "webhook.created",
        ("POST", "/webhooks", {"url": URL, "events": ["job.lost", "alert.firing"], "task": "load", "description": "d"}),
        ("/webhooks", {"url": URL, "events": ["job.lost", "alert.firing"], "task": "load", "description": "d"}),
        ["webhooks", "create", URL, "--event", "job.lost", "--event", "alert.firing", "--task", "load",
         "--description", "d"],
        "dl_webhooks", before=KNOWN, audit={"events": ["job.lost", "alert.firing"], "task": "load", "url": None},
    ),
    "created for an address that is not allowed": Case(
        "webhook.created", ("POST", "/webhooks", {"url": LOCAL_URL}), ("/webhooks", {"url": LOCAL_URL}),
        ["webhooks", "create", LOCAL_URL], "dl_webhooks", refused="not public",
    ),
    "created for an unknown event": Case(
        "webhook.created", ("POST", "/webhooks", {"url": URL, "events": ["x"]}),
        ("/webhooks", {"url": URL, "events": ["x"]}), None, "dl_webhooks", refused="names none of",
    ),
    "created for an unknown task on the page": Case(
        "webhook.created", None, ("/webhooks", {"url": URL, "task": "laod"}), None, "dl_webhooks", before=KNOWN,
        refused="there is no task 'laod'",
    ),
    "created for a chat": Case(
        "webhook.created", ("POST", "/webhooks", {"url": SLACK, "events": ["alert.firing"]}),
        ("/webhooks", {"url": SLACK, "events": ["alert.firing"]}),
        ["webhooks", "create", SLACK, "--event", "alert.firing"], "dl_webhooks", audit={"url": None},
    ),
    "created in a format": Case(
        "webhook.created", ("POST", "/webhooks", {"url": URL, "format": "teams"}),
        ("/webhooks", {"url": URL, "events": ["job.succeeded", "job.failed", "job.canceled", "job.lost"],
                       "format": "teams"}),
        ["webhooks", "create", URL, "--format", "teams"], "dl_webhooks", audit={"format": "teams"},
    ),
    "created for an address of another format": Case(
        "webhook.created", ("POST", "/webhooks", {"url": "mailto:ann@example.com", "format": "slack"}),
        ("/webhooks", {"url": "mailto:ann@example.com", "events": ["job.lost"], "format": "slack"}),
        ["webhooks", "create", "mailto:ann@example.com", "--format", "slack"], "dl_webhooks",
        refused="of the format email",
    ),
    "edited": Case(
        "webhook.changed",
        ("PATCH", PATH, {"url": OTHER_URL, "events": ["job.lost"], "queue": "", "task": "load", "description": ""}),
        (f"{PAGE}/edit", {"url": OTHER_URL, "events": ["job.lost"], "queue": "", "task": "load"}),
        ["webhooks", "edit", HOOK, "--to", OTHER_URL, "--event", "job.lost", "--queue", "", "--task", "load",
         "--description", ""],
        "dl_webhooks", before=KNOWN + WEBHOOK, audit={"webhook_id": HOOK, "events": ["job.lost"], "task": "load"},
    ),
    "switched off": Case(
        "webhook.changed", ("PATCH", PATH, {"active": False}), (f"{PAGE}/act", {"action": "off"}),
        ["webhooks", "edit", HOOK, "--off"], "dl_webhooks", before=WEBHOOK,
        audit={"webhook_id": HOOK, "active": False},
    ),
    "none switched on": Case(
        "webhook.changed", ("PATCH", PATH, {"active": True}), (f"{PAGE}/act", {"action": "on"}),
        ["webhooks", "edit", HOOK, "--on"], "dl_webhooks", refused="webhook",
    ),
    "deleted": Case(
        "webhook.deleted", ("DELETE", PATH, None), (f"{PAGE}/act", {"action": "delete"}),
        ["webhooks", "delete", HOOK], "dl_webhooks", before=UNDELIVERED, audit={"webhook_id": HOOK},
    ),
    "secret rotated": Case(
        "webhook.secret_rotated", ("POST", f"{PATH}/rotate", {"overlap_sec": 60}),
        (f"{PAGE}/rotate", {"overlap_sec": "1m"}), ["webhooks", "rotate", HOOK, "--overlap", "1m"], "dl_webhooks",
        before=WEBHOOK, audit={"webhook_id": HOOK, "overlap_sec": 60, "secret": None},
    ),
    "pinged": Case(
        "webhook.pinged", ("POST", f"{PATH}/ping", None), (f"{PAGE}/ping", {}), ["webhooks", "ping", HOOK],
        "dl_deliveries", before=WEBHOOK, audit={"webhook_id": HOOK},
    ),
    "undelivered sent again": Case(
        "webhook.redelivered", ("POST", f"{PATH}/redeliver", None), (f"{PAGE}/redeliver", {}),
        ["webhooks", "redeliver", "--webhook", HOOK], "dl_deliveries", before=UNDELIVERED,
        audit={"webhook_id": HOOK, "deliveries": 1},
    ),
    "delivery sent again": Case(
        "webhook.redelivered", ("POST", f"/deliveries/{DELIVERY}/redeliver", None),
        (f"/deliveries/{DELIVERY}/retry", {}), ["webhooks", "redeliver", DELIVERY], "dl_deliveries",
        before=UNDELIVERED, audit={"delivery_id": DELIVERY},
    ),
    "delivery that is none sent again": Case(
        "webhook.redelivered", ("POST", f"/deliveries/{DELIVERY}/redeliver", None),
        (f"/deliveries/{DELIVERY}/retry", {}), ["webhooks", "redeliver", DELIVERY], "dl_deliveries",
        refused="delivery",
    ),
    "same key again": Case(
        "webhook.created", ("POST", "/webhooks", {"url": URL, "idempotency_key": "k"}), None,
        ["webhooks", "create", URL, "--idempotency-key", "k"], "dl_webhooks", audit={},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
