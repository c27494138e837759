"""The client has every operation of the API, with its parameters, and no other."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from app.client import Client, Conflict, Refused
from app.client.operations import Api
from app.web.__main__ import document_text
from app.web.clientcode import client_code
from tests.support import Databases
from tests.support.desk import Desk
from tests.support.processes import ROOT
from tests.support.service import serving

BY_HAND = {"events": Client.stream, "scrape": Client.metrics}  # answers that are no JSON


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture(scope="module")
def url(dsn: str) -> Iterator[str]:
    with serving(dsn) as address:
        yield address


@pytest.fixture
def client(url: str) -> Client:
    return Client(url)


@pytest.fixture
def desk(dsn: str) -> Iterator[Desk]:
    made = Desk(dsn)
    made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_bulk, dl_queues")
    yield made
    made.close()


def test_the_methods_in_the_repository_are_those_of_the_document():
    made = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-"],
        input=client_code(json.loads(document_text())), cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    written = (ROOT / "app/client/operations.py").read_text(encoding="utf-8")
    assert written == made, "run `python -m app.web client | ruff format - > app/client/operations.py`"


def test_every_operation_has_a_method_with_its_parameters_and_every_method_an_operation():
    document = json.loads(document_text())
    wanted: dict[str, set[str]] = {}
    for methods in document["paths"].values():
        for operation in methods.values():
            kinds = set(operation["responses"]["200"].get("content", {}))
            if kinds == {"text/html"}:
                continue  # pages are for people
            names = {one["name"].lower().replace("-", "_") for one in operation.get("parameters", ())}
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
                names |= schema["properties"].keys()
            wanted[operation["operationId"]] = names

    has = {name: method for name, method in vars(Api).items() if not name.startswith("_")} | BY_HAND

    assert has.keys() == wanted.keys()
    for name, method in has.items():
        mine = set(inspect.signature(method).parameters) - {"self"}
        assert mine == wanted[name] - ({"seconds"} if name in BY_HAND else set()), name


def test_a_job_is_changed_only_as_it_was_seen_and_null_is_not_the_same_as_nothing(client, desk):
    job_id = desk.enqueue("k", time_limit_sec=5)
    job = client.api.job_detail(job_id)
    seen = client.etag

    changed = client.api.job_patch(job_id, priority=1, if_match=seen)
    with pytest.raises(Refused) as refused:
        client.api.job_patch(job_id, priority=2, if_match=seen)
    cleared = client.api.job_patch(job_id, time_limit_sec=None)

    assert (job["time_limit_sec"], changed["time_limit_sec"], cleared["time_limit_sec"]) == (5, 5, None)
    assert (refused.value.status, refused.value.code) == (412, "changed")


def test_times_ids_flags_and_filters_are_sent_as_the_service_reads_them(client, desk):
    job_id = desk.enqueue("k", queue="q & a")
    since = datetime.now(UTC) - timedelta(hours=1)

    found = client.api.job_list(queue="q & a", created_from=since, count=True, limit=5)
    counted = client.api.bulk_count(action="cancel", filter={"queue": "q & a"})

    assert [job["job_id"] for job in found["jobs"]] == [str(job_id)]
    assert found["count"] == {"jobs": 1, "exact": True}
    assert counted == {"jobs": 1, "exact": True}
    with pytest.raises(Conflict, match="expected 9"):
        client.api.bulk_start(action="cancel", filter={}, expected=9)


def test_the_stream_is_followed_with_places_to_go_on(client, desk):
    events = client.stream(after="0", queue="streamed")
    job_id = desk.enqueue("k", queue="streamed")

    event = next(events)
    events.close()

    assert (event.job_id, event.kind, event.queue) == (job_id, "queued", "streamed")
    again = next(client.stream(after=event.place, kind="picked")) if desk.claim(queue="streamed") else None
    assert again is not None
    assert again.job_id == UUID(str(job_id))


def test_the_numbers_are_a_text(client, desk):
    assert "requests_total" in client.metrics()
