"""The page about the API."""

from __future__ import annotations

import re
from pathlib import Path

from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.openapi import route_template
from dataloader.app.http.problems import ProblemCode

ROOT = Path(__file__).parents[3]


def test_the_page_has_every_route_field_and_code(client):
    page = client.get("/docs").text
    document = client.get("/openapi.json").json

    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    for field in document["components"]["schemas"]["TriggerRequest"]["properties"]:
        assert f"<code>{field}</code>" in page
    for code in ProblemCode:
        assert f'id="{code.text}"' in page


def test_routes_of_the_dashboard_are_not_shown(client):
    page = client.get("/docs").text

    assert "<code>/api/v1/jobs/trigger</code>" in page
    assert "<code>/jobs/{job_id}/cancel</code>" not in page


def test_search_lists_routes_with_all_words(client):
    page = client.get("/docs?q=post+schedules").text

    assert 'id="create_schedule"' in page
    assert 'id="list_schedules"' not in page
    assert "No route has these words" in client.get("/docs?q=no+such+route").text


def test_a_problems_type_leads_to_its_place_on_the_page(client):
    link = client.get("/nowhere").json["type"]

    assert f'id="{link.partition("#")[2]}"' in client.get(link.partition("#")[0]).text


def test_everything_the_pages_load_is_ours_and_there(client):
    for page in ("/", "/docs"):
        text = client.get(page).text
        for address in re.findall(r'(?:src|href)="([^"]+\.(?:css|js))"', text):
            assert address.startswith("/static/")
            with client.get(address) as loaded:
                assert loaded.status_code == 200
        assert "style=" not in text
        assert " on" not in re.sub(r">[^<]*<", "><", text).replace("only", "")


def test_the_example_of_the_form_is_a_request_that_works(client):
    page = client.get("/docs").text
    example = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert example

    body = example.group(1).replace("&#34;", '"')

    assert client.post("/api/v1/jobs/trigger", data=body, content_type="application/json").status_code == 200


def test_the_written_reference_has_every_route_and_code(client):
    written = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("http-api.md", "dashboard.md"))
    document = client.get("/openapi.json").json

    for operation in client.application.extensions[OPERATIONS]:
        assert f"`{operation.method} {route_template(operation.path)}`" in written
    for field in document["components"]["schemas"]["TriggerRequest"]["properties"]:
        assert f"`{field}`" in written
    for code in ProblemCode:
        assert f"| `{code.text}` | {code.status}" in written
