"""The page of limits and circuit breakers, without scripts."""

from __future__ import annotations

import re

import pytest

from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.limits.rows import Limits
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def _no_limits(dsn: str) -> None:
    execute_sql(dsn, "TRUNCATE dl_limits, dl_breakers")


def test_limit_is_created_shown_for_a_change_and_deleted(client, pool):
    client.post("/limits", data={"name": "partner", "rate": "10", "per_sec": "1m", "burst": "2", "note": "their API"})
    page = client.get("/limits?edit=partner").text

    assert Limits(pool).status("partner").per_sec == 60
    assert "10 in 1 min, 2 at once" in page
    assert 'value="1m"' in page
    assert "Change partner" in page
    client.post("/limits", data={"name": "partner", "action": "delete"})
    assert Limits(pool).statuses() == []


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"name": "a b*", "concurrency": "1"}, "name", "which only a prefix may precede"),
        ({"name": "api", "concurrency": "few"}, "concurrency", "is not a whole number"),
        ({"name": "api", "rate": "0"}, "rate", "greater than or equal to 1"),
        ({"name": "api", "rate": "1", "per_sec": "soon"}, "per_sec", "is not a duration"),
    ],
)
def test_refused_limit_is_marked_at_its_field(client, values, field, message):
    refused = client.post("/limits", data=values)

    assert refused.status_code == 422
    assert f'id="submit_limit-{field}-error"' in refused.text
    assert message in refused.text


def test_limit_that_allows_everything_is_refused(client):
    refused = client.post("/limits", data={"name": "api"})

    assert (refused.status_code, "limits nothing" in refused.text) == (422, True)


def test_task_is_paused_set_resumed_and_deleted(client, pool):
    client.post("/breakers", data={"task": "load", "action": "pause", "reason": "moving", "create": "yes"})
    assert "was paused" in client.get("/limits").text
    client.post("/breakers", data={"task": "load", "action": "resume"})
    client.post("/breakers", data={"task": "load", "action": "set", "failures": "5", "window_sec": "1h"})

    breaker = Breakers(pool).status("load")
    assert (breaker.state.value, breaker.failures, breaker.window_sec) == ("closed", 5, 3600)
    assert "5 failures within 1 h" in client.get("/limits").text
    client.post("/breakers", data={"task": "load", "action": "delete"})
    assert Breakers(pool).statuses() == []


def test_refused_breaker_is_marked_at_its_field(client):
    refused = client.post("/breakers", data={"task": "load", "action": "set", "failures": "x"})

    assert (refused.status_code, 'id="submit_breaker-failures-error"' in refused.text) == (422, True)


def test_all_holders_of_a_limit_are_a_link_away(client, dsn, trigger):
    client.post("/limits", data={"name": "partner api", "concurrency": "9"})
    for n in range(6):
        trigger(lock_key=f"holder-{n}", idempotency_key=None, limits={"partner api": 1})
    execute_sql(dsn, "UPDATE dl_jobs SET status = 'running', started_at = now()")

    page = client.get("/limits").text
    link = '<a class="small" href="/limits?holders=partner%20api#limit-partner%20api">2 more<'
    assert (page.count("× 1, "), link in page) == (4, True)
    page = client.get("/limits?holders=partner%20api").text
    assert (page.count("× 1, "), '#limit-partner%20api">fewer<' in page) == (6, True)


def test_open_breaker_leaves_the_limit_of_its_task_as_it_was_set(client, pool):
    client.post("/limits", data={"name": "task:load", "concurrency": "5", "create": "yes"})
    client.post("/breakers", data={"task": "load", "action": "pause", "create": "yes"})
    read = client.get("/api/v1/limits/task:load").json
    form = client.get("/limits?edit=task:load").text

    assert (read["concurrency"], read["own_concurrency"]) == (0, 5)
    assert re.search(r'name="concurrency"[^>]* value="5"', form)
