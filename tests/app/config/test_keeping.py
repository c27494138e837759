"""Ages of single tasks' jobs."""

from __future__ import annotations

import pytest

from app.config import Settings
from app.errors import ConfigError
from app.host.house import ages_of


def test_a_task_has_one_age_for_all_or_one_for_each_status_it_names():
    settings = Settings.load({"DL_KEEP_TASKS": '{"a": 0.5, "b": {"failed": 90}}'}, dotenv=None)

    assert ages_of(settings).tasks == {
        "a": dict.fromkeys(("succeeded", "failed", "canceled", "lost"), 43_200.0),
        "b": {"failed": 90 * 86_400.0},
    }


def test_keys_are_kept_for_ever_unless_somebody_says_otherwise():
    assert ages_of(Settings.load({}, dotenv=None)).keys is None
    assert ages_of(Settings.load({"DL_KEEP_KEYS_DAYS": "2"}, dotenv=None)).keys == 172_800.0


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
        Settings.load({"DL_KEEP_TASKS": told}, dotenv=None)

    assert said in str(caught.value)
