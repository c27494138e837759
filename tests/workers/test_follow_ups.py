"""What a job that a running job enqueues has without being given it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from dataloader.app.queue.job import ClaimedJob
from dataloader.workers.context import ContextSettings, JobContext
from dataloader.workers.follow_ups import FollowUps

JOB = ClaimedJob(
    id_text=str(uuid4()), run_text=str(uuid4()), queue="q", task="t", args_text="{}", lock_key="k", key_hash=1,
    priority=7, attempt=2, max_attempts=5, lease_ttl_sec=60, producer=None, progress_text="{}", checkpoint_text=None,
    time_limit_sec=None, retry_text=None, crashes=0,
)  # fmt: skip


@pytest.fixture
def follow_ups() -> FollowUps:
    settings = ContextSettings(task_lock_keys={"next": "shop:{shop}"}, task_defaults={"next": {"shop": 1}})
    return FollowUps(JobContext(JOB, settings))


@pytest.mark.parametrize(
    ("fields", "lock_key"),
    [
        ({"task": "next"}, "shop:1"),
        ({"task": "next", "args": {"shop": 2}}, "shop:2"),
        ({"task": "next", "lock_key": "other"}, "other"),
        ({"task": "without"}, "without"),
    ],
)
def test_follow_up_has_the_lock_key_of_its_task(follow_ups: FollowUps, fields: dict[str, object], lock_key: str):
    assert follow_ups.make(**fields).lock_key == lock_key  # type: ignore[arg-type]


def test_args_that_make_no_lock_key_are_refused(follow_ups: FollowUps):
    with pytest.raises(ValueError, match="shop"):
        follow_ups.make("next", {"shop": [1]})
