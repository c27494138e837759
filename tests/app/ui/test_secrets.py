"""The password of an address in args is shown by no page and no answer of the API."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

ADDRESS = "postgresql://loader:s3cretword@db.example/sales"
MASKED = "postgresql://loader:***@db.example/sales"


@pytest.fixture
def made(client, trigger) -> dict[str, str]:
    """A job whose args were edited, a schedule and a backfill, each with the address in its args."""
    job_id = trigger(
        args={"source": "postgresql://loader:s3cretword@old.example/sales"}, available_at="2099-01-01T00:00:00Z"
    )
    version = client.get(f"/api/v1/jobs/{job_id}").headers["ETag"]
    edit = {"args": {"source": ADDRESS}}
    assert client.patch(f"/api/v1/jobs/{job_id}", json=edit, headers={"If-Match": version}).status_code == 200
    schedule = {"expression": "0 6 * * *", "task": "noop", "queue": "etl", "args": {"source": ADDRESS}}
    assert client.put("/api/v1/schedules/addressed", json=schedule).status_code in (200, 201)
    slices = {"from": "2026-01-01", "to": "2026-01-03", "unit": "day"}
    body = {"task": "noop", "queue": "etl", "slices": slices, "args": {"source": ADDRESS}}
    backfill = client.post("/api/v1/backfills", json=body).json["backfill"]["backfill_id"]
    return {"job": job_id, "backfill": backfill}


def test_password_of_an_address_in_args_is_shown_nowhere(client, made):
    job, backfill = f"/jobs/{made['job']}", f"/backfills/{made['backfill']}"
    with_args = [
        job, f"{job}/edit", f"{job}/clone", f"/tasks/noop?from={made['job']}&args=json", "/jobs", backfill,
        "/schedules/addressed", f"/api/v1{job}", f"/api/v1{job}/events", f"/api/v1{backfill}",
        "/api/v1/schedules/addressed",
    ]  # fmt: skip
    others = ["/audit", "/api/v1/audit", "/api/v1/audit?format=csv", "/api/v1/jobs", "/schedules", "/calendar", "/"]

    texts = {path: client.get(path).text for path in (*with_args, *others)}

    assert [path for path, text in texts.items() if "s3cretword" in text] == []
    assert [path for path in with_args if "loader:***@" not in texts[path]] == []


def test_edit_form_keeps_the_password_of_an_unchanged_address(client, made, queue):
    version = re.search(r'name="version" value="([^"]+)"', client.get(f"/jobs/{made['job']}/edit").text)
    assert version
    form = {"version": version[1], "args": f'{{"source": "{MASKED}", "rows": 5}}'}

    assert client.post(f"/jobs/{made['job']}/edit", data=form).status_code == 303

    job = queue.get(UUID(made["job"]))
    assert job is not None
    assert job.args == {"source": ADDRESS, "rows": 5}
