"""The small door of a process without an API."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from app.errors import PortTaken
from app.runtime.probe_server import ProbeEndpoints, probe_server
from app.runtime.service import process_metrics
from tests.support import free_port

WELL = {"ready": True, "connected": True, "consuming": True}


def asked(url: str) -> tuple[int, Any]:
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of our own
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@pytest.mark.parametrize(
    ("state", "answers"),
    [
        (WELL, {"started": 200, "ready": 200, "consuming": 200}),
        ({"ready": False, "detail": "it is starting"}, {"started": 503, "ready": 503, "consuming": 503}),
        (WELL | {"connected": False}, {"started": 503, "ready": 503, "consuming": 200}),
        (WELL | {"consuming": False}, {"started": 200, "ready": 200, "consuming": 503}),
    ],
)
def test_each_probe_answers_for_itself(state, answers):
    door = ProbeEndpoints(lambda: state, [])

    assert {name: door.respond(f"/health/{name}")[0] for name in answers} == answers


def test_what_has_started_once_stays_so():
    state = dict(WELL)
    door = ProbeEndpoints(lambda: state, [])
    assert door.respond("/health/ready")[0] == 200
    state["ready"] = False

    assert door.respond("/health/started")[0] == 200
    assert door.respond("/health/ready")[0] == 503


def test_it_is_answered_over_the_net_until_the_end():
    port = free_port()
    with probe_server(
        "127.0.0.1", port, lambda: ProbeEndpoints(lambda: WELL, process_metrics(has_workers=True, has_api=False))
    ):
        url = f"http://127.0.0.1:{port}"
        assert asked(f"{url}/health") == (200, '{"status": "healthy"}')
        assert asked(f"{url}/health/ready?x=1") == (200, '{"ready": true}')
        status, result = asked(f"{url}/metrics")
        assert status == 200
        assert 'role="workers"' in result
        status, result = asked(f"{url}/nothing")
        assert (status, json.loads(result)["code"]) == (404, "not_found")
        with (
            pytest.raises(PortTaken, match=str(port)),
            probe_server("127.0.0.1", port, lambda: ProbeEndpoints(lambda: WELL, [])),
        ):
            pass

    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_bug_is_an_answer_too(caplog):
    def broken() -> dict[str, Any]:
        raise RuntimeError("x")

    assert ProbeEndpoints(broken, []).respond("/health/ready")[0] == 500
    assert "api.error" in caplog.text


def test_without_a_port_nothing_is_made():
    with probe_server("127.0.0.1", None, lambda: pytest.fail("made")):
        pass
