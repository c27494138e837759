"""Messages that a job's process sends to its worker, which takes none with a value of another type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import registry
from tests.support import hostile_tasks  # noqa: F401 - registers its tasks
from tests.support.claimed_jobs import attempt_with

ERROR_MESSAGE = {
    "kind": "error", "message": "refused", "traceback": None, "decision": "retry", "pause": 1, "stopped": False,
    "fingerprint": "ValueError",
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"pause": float("nan")}, {"pause": float("inf")}, {"pause": "1"}, {"traceback": {"a": 1}}, {"message": None},
        {"message": [1]}, {"fingerprint": {}}, {"decision": 7}, {"stopped": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_forged_end_with_odd_values_is_ignored(change: dict[str, Any]):
    attempt = attempt_with(
        settings={"packages": ("tests.support.hostile_tasks",)},
        task="hostile.forges_its_end",
        args_text=json.dumps({"message": ERROR_MESSAGE | change}),
    )

    end = attempt.run(registry.get("hostile.forges_its_end"))

    assert isinstance(end, Settlement)
    assert (end.status, end.result) == (Status.SUCCEEDED, "unharmed")
