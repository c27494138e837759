from __future__ import annotations

import json
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from dataloader.app.config import load_settings
from dataloader.app.errors import ConfigError, PortTaken
from dataloader.app.runtime import worker
from dataloader.app.runtime.service import process_metrics
from dataloader.app.runtime.shutdown import Shutdown
from dataloader.app.runtime.worker import ProbeEndpoints, Retirement, probe_server
from tests.support import free_port


def test_worker_without_queue_gets_remedy():
    with pytest.raises(ConfigError, match="WORKERS_JSON"):
        worker.run_worker(load_settings({"WORKERS_JSON": "[]"}, dotenv=None), banner=lambda text: None)


class Broken:
    failure = "threads have died: reaper"

    def stop(self) -> bool:
        return True

    def stop_now(self) -> None: ...

    def close(self) -> None: ...


def test_a_service_whose_threads_have_died_is_ended_with_a_code(monkeypatch):
    monkeypatch.setattr(worker, "_CHECK_INTERVAL_SEC", 0.01)
    service = Broken()
    ending = Shutdown(service, grace_sec=0, exit_process=lambda code: None)  # type: ignore[arg-type]
    ending.start()

    assert worker._supervise(service, ending, worker.Lifetime()) == 70  # type: ignore[arg-type]


class Spent:
    """A service that has run what it may."""

    failure = None
    limits: list[float | None]

    def __init__(self) -> None:
        self.limits, self.stops = [], 0

    def work_left(self, max_idle_sec: float | None) -> bool:
        self.limits.append(max_idle_sec)
        return len(self.limits) < 3

    def stop(self) -> bool:
        self.stops += 1
        return True

    def stop_now(self) -> None: ...

    def close(self) -> None: ...


def test_worker_without_work_left_ends_with_code_0(monkeypatch):
    monkeypatch.setattr(worker, "_CHECK_INTERVAL_SEC", 0.01)
    service = Spent()
    ending = Shutdown(service, grace_sec=0, exit_process=lambda code: None)  # type: ignore[arg-type]
    ending.start()

    assert worker._supervise(service, ending, worker.Lifetime(max_idle_sec=5)) == 0  # type: ignore[arg-type]
    assert (service.limits, service.stops) == ([5, 5, 5], 1)


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
        "127.0.0.1", port, ProbeEndpoints(lambda: WELL, process_metrics(has_workers=True, has_api=False))
    ):
        url = f"http://127.0.0.1:{port}"
        assert asked(f"{url}/health") == (200, '{"status": "healthy"}\n')
        assert asked(f"{url}/health/ready?x=1") == (200, '{"ready": true}\n')
        status, result = asked(f"{url}/metrics")
        assert status == 200
        assert 'role="workers"' in result
        status, result = asked(f"{url}/nothing")
        assert (status, json.loads(result)["code"]) == (404, "not_found")
        with (
            pytest.raises(PortTaken, match=str(port)),
            probe_server("127.0.0.1", port, ProbeEndpoints(lambda: WELL, [])),
        ):
            pass

    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_bug_is_an_answer_too(caplog):
    def broken() -> dict[str, Any]:
        raise RuntimeError("x")

    assert ProbeEndpoints(broken, []).respond("/health/ready")[0] == 500
    assert "api.error" in caplog.text


def test_without_a_port_there_is_no_server():
    with probe_server("127.0.0.1", None, ProbeEndpoints(lambda: WELL, [])):
        assert "probe-server" not in {thread.name for thread in threading.enumerate()}


def test_processes_that_start_together_retire_one_by_one():
    times = {Retirement(worker.Lifetime(max_age_sec=1_000)).ends_in_sec for _ in range(20)}

    assert len(times) == 20
    assert all(890 < sec <= 1_000 for sec in times)
