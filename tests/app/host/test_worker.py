from __future__ import annotations

import pytest

from app.config import Settings
from app.errors import ConfigError
from app.host import worker
from app.host.ending import Ending


def test_a_worker_without_a_queue_is_told_what_would_do():
    with pytest.raises(ConfigError, match="WORKERS_JSON"):
        worker.work(Settings.load({"WORKERS_JSON": "[]"}, dotenv=None), banner=lambda text: None)


class Broken:
    broken = "threads have died: reaper"

    def stop(self) -> bool:
        return True

    def hurry(self) -> None: ...

    def close(self) -> None: ...


def test_a_service_whose_threads_have_died_is_ended_with_a_code(monkeypatch):
    monkeypatch.setattr(worker, "_LOOK", 0.01)
    service = Broken()
    ending = Ending(service, grace=0, leave=lambda code: None)
    ending.start()

    assert worker._watch(service, ending) == 70  # type: ignore[arg-type]
