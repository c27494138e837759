"""Attempts of tasks in processes that a fork server forks."""

from __future__ import annotations

import json
from typing import Any

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import registry
from dataloader.workers.isolation.fork_server import ForkServer
from tests.support import hostile_tasks, process_tasks
from tests.support.claimed_jobs import CapturedLines, attempt_with

PACKAGES = (process_tasks.__name__, hostile_tasks.__name__)


def run_task(server: ForkServer, task: str, logged: CapturedLines | None = None, **args: Any) -> Any:
    settings = {"packages": PACKAGES, "fork_server": server}
    attempt = attempt_with(logged, settings=settings, task=task, args_text=json.dumps(args))
    end = attempt.run(registry.get(task))
    assert isinstance(end, Settlement)
    assert end.status is Status.SUCCEEDED, end.error
    return end.result
