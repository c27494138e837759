"""Ages of single tasks' jobs."""

from __future__ import annotations

import pytest

from app.config import load_settings
from app.errors import ConfigError
from app.runtime.prune import retention_periods


def test_task_has_one_period_or_one_per_status():
    settings = load_settings({"DL_KEEP_TASKS": '{"a": 0.5, "b": {"failed": 90}}'}, dotenv=None)

    assert retention_periods(settings).tasks == {
        "a": dict.fromkeys(("succeeded", "failed", "canceled", "lost"), 43_200.0),
        "b": {"failed": 90 * 86_400.0},
    }


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("[]", "a JSON object would do"),
        ("{", "a JSON object would do"),
        ('{"a": "3"}', "'a' has '3'; a number of days"),
        ('{"a": true}', "a number of days"),
        ('{"a": 0}', "a number of days"),
        ('{"a": {"running": 3}}', "'a' names running; the statuses a job ends in are succeeded, failed"),
    ],
)
def test_what_is_no_age_is_told_with_what_would_do(told, said):
    with pytest.raises(ConfigError, match="DL_KEEP_TASKS") as caught:
        load_settings({"DL_KEEP_TASKS": told}, dotenv=None)

    assert said in str(caught.value)
