"""started, ready, consuming: in an API alone, and in a process that also runs jobs."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.pipelines.contract import Pipelines


def probes(client: Any) -> dict[str, int]:
    return {name: client.get(f"/health/{name}").status_code for name in ("started", "ready", "consuming")}


def test_an_api_alone_is_ready_and_consumes_nothing(client):
    assert probes(client) == {"started": 200, "ready": 200, "consuming": 503}
    assert client.get("/health/ready").json == {"ready": True}
    assert client.get("/health/consuming").json["detail"] == "this process runs no jobs"


@pytest.mark.parametrize(
    ("state", "answers"),
    [
        ({"ready": True, "consuming": True}, {"started": 200, "ready": 200, "consuming": 200}),
        ({"ready": True, "consuming": False}, {"started": 200, "ready": 200, "consuming": 503}),
        ({"ready": False, "detail": "it is starting"}, {"started": 503, "ready": 503, "consuming": 503}),
    ],
)
def test_with_workers_they_have_their_say(queue, pool, state, answers):
    client = create_app(queue, Pipelines(), WebOptions(version="1"), probe=lambda: state, pool=pool).test_client()

    assert probes(client) == answers


def test_without_database_process_is_healthy_but_not_started(app_without_database):
    client = app_without_database()

    assert probes(client) == {"started": 503, "ready": 503, "consuming": 503}
    assert client.get("/health").status_code == 200
    assert client.get("/health/ready").json["code"] == "not_ready"


def test_what_has_started_once_has_started(queue, pool):
    state = {"ready": True, "consuming": True}
    client = create_app(queue, Pipelines(), WebOptions(version="1"), probe=lambda: state, pool=pool).test_client()
    client.get("/health/ready")
    state["ready"] = False

    assert probes(client) == {"started": 200, "ready": 503, "consuming": 200}
