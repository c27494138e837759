from __future__ import annotations

import pytest

from app.config import load_settings
from app.errors import ConfigError
from app.runtime import worker
from app.runtime.shutdown import Shutdown


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

    assert worker._supervise(service, ending) == 70  # type: ignore[arg-type]
