"""Which secrets the args of which tasks may refer to."""

from __future__ import annotations

import pytest

from app.config import load_settings
from app.errors import ConfigError


def test_secret_tasks_are_parsed_with_a_default():
    given = {"DL_TASK_SECRETS": '{"crm": ["load.crm", "report.*"], "*": []}'}
    settings = load_settings(given, dotenv=None)

    assert settings.task_secrets == {"crm": ("load.crm", "report.*"), "*": ()}
    assert settings.named_secrets == {}
    shown = {knob.variable: knob.value for knob in settings.describe()}["DL_TASK_SECRETS"]
    assert load_settings({"DL_TASK_SECRETS": shown}, dotenv=None).task_secrets == settings.task_secrets


def test_without_a_word_nothing_is_refused():
    assert load_settings({}, dotenv=None).task_secrets == {}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("[]", "a JSON object such as"),
        ("{", "it is not JSON; a JSON object such as"),
        ('{"crm": "load.crm"}', "crm: Input should be a valid tuple"),
        ('{"crm": [1]}', "crm.entry 1: Input should be a valid string"),
        ('{"crm": [" "]}', "crm.entry 1: expected 1 to 200 printable"),
        ('{"../x": []}', "../x: it is no secret's name"),
    ],
)
def test_what_is_no_list_of_tasks_is_told_with_what_would_do(told, said):
    with pytest.raises(ConfigError, match="DL_TASK_SECRETS") as caught:
        load_settings({"DL_TASK_SECRETS": told}, dotenv=None)

    assert said in str(caught.value)


@pytest.mark.parametrize("variable", ["DL_KEEP_EVENTS_DAYS", "DL_JOB_LOG_KEEP_DAYS", "DL_KEEP_HISTORY_DAYS"])
def test_what_is_to_outlive_a_day_cannot_be_set_to_less(variable):
    with pytest.raises(ConfigError, match=f"{variable}.*from 1 to 36500"):
        load_settings({variable: "0.5"}, dotenv=None)
