"""The pages of queues, without scripts."""

from __future__ import annotations

import pytest

from dataloader.app.queue.queues import QueueState
from dataloader.app.state.queues import Queues
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def _no_settings(dsn: str) -> None:
    execute_sql(dsn, "TRUNCATE dl_queues, dl_fair_weights, dl_workers, dl_audit")


def test_queue_without_worker_is_a_problem_of_the_list(client, trigger):
    trigger()

    page = client.get("/queues").text

    assert "no live worker serves it, 1 ready" in page
    assert 'href="/queues/etl"' in page


def test_queue_page_shows_next_jobs_in_claim_order(client, trigger):
    later = trigger(lock_key="a", priority=200)
    first = trigger(lock_key="b", priority=5)

    page = client.get("/queues/etl").text

    assert page.index(first) < page.index(later)
    assert "No live worker serves this queue" in page


def test_queue_page_shows_tenants_and_limits(client, trigger):
    client.patch("/api/v1/queues", json={"queue": "etl", "fair": "args.tenant", "weights": {"acme": 3}})
    client.put("/api/v1/limits/queue:etl", json={"concurrency": 0})
    trigger(args={"tenant": "acme"})

    page = client.get("/queues/etl").text

    assert "weight 3" in page
    assert "queue:etl" in page


def test_unknown_queue_is_not_found(client):
    assert client.get("/queues/none").status_code == 404


def test_queue_with_slashes_has_a_page(client, trigger):
    trigger(queue="a/b c")

    assert 'href="/queues/a%2Fb%20c"' in client.get("/queues").text
    acted = client.post("/queues/a%2Fb%20c/state", data={"state": "paused", "note": "moving"})
    assert (acted.status_code, acted.headers["Location"]) == (303, "/queues/a%2Fb%20c")
    assert "moving" in client.get("/queues/a%2Fb%20c").text


def test_queue_is_paused_and_resumed_from_the_list(client, trigger, pool):
    trigger()

    client.post("/queues", data={"queue": "etl", "state": "paused"})
    assert Queues(pool).settings()["etl"].state is QueueState.PAUSED
    client.post("/queues", data={"queue": "etl", "state": "open"})

    assert Queues(pool).settings()["etl"].state is QueueState.OPEN
    assert client.post("/queues", data={"queue": "etl", "state": "closed"}).status_code == 422


def test_unknown_queue_is_paused_only_when_asked_to_create_it(client, trigger, pool):
    trigger()
    form = {"queue": "elt", "state": "paused", "note": "moving"}

    refused = client.post("/queues", data=form)
    of_page = [client.post(f"/queues/elt/{path}", data={"state": "paused"}) for path in ("state", "settings")]

    assert (refused.status_code, [response.status_code for response in of_page]) == (422, [404, 404])
    assert "known: etl" in refused.text
    assert "elt" not in Queues(pool).settings()
    assert client.post("/queues", data={**form, "create": "yes"}).status_code == 303
    assert Queues(pool).settings()["elt"].note == "moving"


def test_settings_form_replaces_all_settings(client, trigger, pool):
    trigger()
    values = {"concurrency": "8", "per_worker": "2", "fair": "args.tenant", "share": "0.5", "weights": "acme=3, b=2"}

    saved = client.post("/queues/etl/settings", data=values)
    filled = Queues(pool).settings()["etl"]
    client.post("/queues/etl/settings", data={"concurrency": "4", "weights": "acme=5"})
    changed = Queues(pool).settings()["etl"]

    assert saved.headers["Location"] == "/queues/etl"
    assert (filled.concurrency, filled.per_worker, filled.fair, filled.share) == (8, 2, "args.tenant", 0.5)
    assert filled.weights == {"acme": 3, "b": 2}
    assert (changed.concurrency, changed.per_worker, changed.fair, changed.share) == (4, None, None, None)
    assert changed.weights == {"acme": 5}
    assert "concurrency: 8 → 4" in client.get("/queues/etl").text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("concurrency", "many", "valid integer"),
        ("per_worker", "0", "greater than or equal to 1"),
        ("fair", "tenant", "match pattern"),
        ("share", "2", "less than or equal to 1"),
        ("weights", "acme", "such as acme=3"),
    ],
)
def test_refused_setting_is_marked_with_the_input(client, trigger, field, value, message):
    trigger()

    refused = client.post("/queues/etl/settings", data={field: value})

    assert refused.status_code == 422
    assert f'aria-describedby="submit_queue_settings-{field}-error"' in refused.text
    assert f'value="{value}"' in refused.text
    assert message in refused.text
