"""Misspelt names of queues and tasks: every form refuses them at their field, unless it is asked to use them."""

from __future__ import annotations

import pytest

from tests.support.databases import execute_sql

_RULE = {"name": "rare", "kind": "failure_rate", "threshold": "20 %"}
_HOOK = {"url": "https://hooks.example.com/x", "events": "job.failed"}
_UNKNOWN = {"task": "nop", "queue": "elt"}


@pytest.fixture(autouse=True)
def _nothing_set(dsn: str) -> None:
    execute_sql(dsn, "TRUNCATE dl_limits, dl_breakers, dl_webhooks, dl_alert_rules, dl_queues CASCADE")


@pytest.mark.parametrize(
    ("path", "values", "marked"),
    [
        ("/queues", {"queue": "elt", "state": "paused"}, ["submit_queue_state-queue"]),
        ("/webhooks", {**_HOOK, **_UNKNOWN}, ["submit_webhook-queue", "submit_webhook-task"]),
        ("/alerts/rules", {**_RULE, **_UNKNOWN}, ["submit_alert_rule-queue", "submit_alert_rule-task"]),
        ("/limits", {"name": "queue:elt", "concurrency": "2"}, ["submit_limit-name"]),
        ("/limits", {"name": "task:nop", "concurrency": "2"}, ["submit_limit-name"]),
        ("/breakers", {"task": "nop", "action": "pause"}, ["submit_breaker-task"]),
    ],
)
def test_form_with_unknown_name_is_refused_until_confirmed(client, trigger, path, values, marked):
    trigger()

    refused = client.post(path, data=values)

    assert refused.status_code == 422
    assert [name for name in marked if f'id="{name}-error"' not in refused.text] == []
    assert "; known: " in refused.text
    assert 'name="create"' in refused.text
    assert 'name="create"' not in client.get(path.removesuffix("/rules").replace("/breakers", "/limits")).text
    assert client.post(path, data={**values, "create": "yes"}).status_code in (200, 303)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/webhooks", {**_HOOK, "task": "noop"}),
        ("/alerts/rules", {**_RULE, "task": "noop", "queue": "etl"}),
        ("/limits", {"name": "queue:etl", "concurrency": "2"}),
        ("/limits", {"name": "task:*", "concurrency": "2"}),
        ("/limits", {"name": "partner", "concurrency": "2"}),
        ("/breakers", {"task": "noop", "action": "pause"}),
        ("/breakers/noop", {"action": "pause"}),
    ],
)
def test_form_with_known_names_is_accepted(client, trigger, path, values):
    trigger()

    assert client.post(path, data=values).status_code in (200, 303)


def test_edit_of_a_webhook_and_pause_of_a_task_check_names(client):
    webhook = client.post("/api/v1/webhooks", json={"url": _HOOK["url"]}).json["webhook_id"]

    edited = client.post(f"/webhooks/{webhook}/edit", data={**_HOOK, "task": "nop"})
    paused = client.post("/breakers/nop", data={"action": "pause"})

    assert (edited.status_code, "did you mean" in edited.text) == (422, True)
    assert (paused.status_code, "there is no task" in paused.text) == (422, True)
    assert client.get("/api/v1/breakers").json["breakers"] == []
