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
        ("[]", "a JSON object such as"),
        ("{", "it is not JSON; a JSON object such as"),
        ('{"a": "3"}', "a: Input should be a valid dictionary"),
        ('{"a": true}', "a.failed: Input should be a valid number"),
        ('{"a": 0}', "a.failed: Input should be greater than 0"),
        ('{"a": {"running": 3}}', "a.running: expected one of succeeded, failed"),
    ],
)
def test_what_is_no_age_is_told_with_what_would_do(told, said):
    with pytest.raises(ConfigError, match="DL_KEEP_TASKS") as caught:
        load_settings({"DL_KEEP_TASKS": told}, dotenv=None)

    assert said in str(caught.value)
