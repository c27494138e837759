"""Names with every kind of character in the addresses of pages."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote, unquote, urlsplit

import pytest

from dataloader.app.http.links import quote_in_template

NAME = "/x/../y?a=1#b%2F c\"<é&+;'"
_PART = "x/../y?"
_ADDRESS = re.compile(r"""\b(href|action|hx-get)="(/[^"]*)\"""")


@pytest.fixture
def named(client, pipelines) -> dict[str, str]:
    """A queue, a task with a job, a breaker, a schedule, a limit and a backfill of this name."""
    pipelines.register(NAME)(lambda args, ctx: None)
    quoted = quote(NAME, safe="")
    job = {"queue": NAME, "task": NAME, "lock_key": NAME}
    job_id = client.post("/api/v1/jobs/trigger", json=job).json["job_id"]
    schedule = quote(NAME.replace("/", "|"), safe="")
    made = [
        client.put(f"/api/v1/schedules/{schedule}", json={"expression": "0 6 * * *", "task": NAME, "queue": NAME}),
        client.put(f"/api/v1/limits/{quoted}", json={"concurrency": 3}),
        client.put(f"/api/v1/tasks/{quoted}/breaker", json={"state": "open", "reason": NAME}),
        client.post("/api/v1/alerts/rules", json={"name": NAME, "kind": "queue_age", "threshold": 60, "queue": NAME}),
    ]
    assert [response.text for response in made if response.status_code not in (200, 201, 409)] == []
    slices = {"from": "2026-01-01", "to": "2026-01-03", "unit": "day"}
    backfill = client.post("/api/v1/backfills", json={"task": NAME, "queue": NAME, "slices": slices}).json["backfill"]
    return {
        "queue": f"/queues/{quoted}",
        "task": f"/tasks/{quoted}",
        "slices": f"/slices/{quoted}",
        "schedule": f"/schedules/{schedule}",
        "job": f"/jobs/{job_id}",
        "backfill": f"/backfills/{backfill['backfill_id']}",
    }


def addresses(text: str) -> set[tuple[str, str]]:
    """The addresses in a page that hold the name, with their attributes."""
    found = {(attribute, unescape(address)) for attribute, address in _ADDRESS.findall(text)}
    return {(attribute, address) for attribute, address in found if _PART in unquote(address).replace("|", "/")}


def test_links_to_any_name_lead_to_its_page(client, named):
    lists = (
        "/", "/jobs", "/tasks", "/queues", "/schedules", "/calendar", "/backfills", "/limits", "/alerts", "/audit",
        "/failures", f"/search?q={quote('x/../y')}",
    )  # fmt: skip
    unquoted, reached, answers = [], set(), {}

    for page in (*lists, *named.values()):
        for attribute, address in addresses(client.get(page).text):
            unquoted += [f"{page}: {address}"] if re.search(r"\.\./|[ \"<>]", address) or not address.isascii() else []
            if attribute != "action":
                reached.add(urlsplit(address).path)
                answers[address] = client.get(address).status_code

    assert unquoted == []
    assert {address for address, status in answers.items() if status != 200} == set()
    assert reached >= {named[kind] for kind in ("queue", "task", "slices")}


@pytest.mark.parametrize("kind", ["queue", "task", "slices", "schedule"])
def test_page_of_any_name_refreshes_itself(client, named, kind):
    text = client.get(named[kind]).text

    (live,) = (unescape(found) for found in re.findall(r'hx-get="([^"]*)"', text))
    assert live == named[kind]
    assert client.get(live, headers={"HX-Request": "true"}).status_code == 200


def test_act_on_any_name_returns_to_its_page(client, named):
    acts = (
        client.post(f"{named['queue']}/state", data={"state": "paused"}),
        client.post(named["task"].replace("/tasks/", "/breakers/"), data={"action": "pause"}),
        client.post(f"{named['schedule']}/act", data={"action": "pause"}),
    )

    assert [response.location for response in acts] == [named["queue"], named["task"], named["schedule"]]
    refused = client.post(f"{named['queue']}/state", data={"state": "on fire"})
    assert refused.status_code == 422
    assert f'hx-get="{named["queue"]}"' in refused.text


@pytest.mark.parametrize(
    ("value", "text"),
    [("a/b c", "a%2Fb%20c"), (5, "5"), ({"a": "x/y"}, "a=x%2Fy"), ([("a", "1"), ("b", "&")], "a=1&b=%26")],
)
def test_filter_of_templates_quotes_names_and_pairs(value, text):
    assert quote_in_template(value) == text


@pytest.mark.parametrize("end", ["slices", "act", "why", "breaker"])
def test_task_whose_name_ends_as_an_address_has_its_page(client, pipelines, end):
    name = f"rates/{end}"
    pipelines.register(name, queue="etl", lock_key="k")(lambda args, ctx: None)
    page = f"/tasks/{quote(name, safe='')}"

    shown = client.get(page)
    started = client.post(page, data={"queue": "etl", "lock_key": "k"})
    job = client.get(f"/api/v1/jobs/{started.location.rpartition('/')[2]}").json

    assert (shown.status_code, f"<h1>{name}</h1>" in shown.text, job["task"]) == (200, True, name)
    assert client.get(f"/api{page.replace('/tasks', '/v1/tasks')}/slices").status_code == 200
