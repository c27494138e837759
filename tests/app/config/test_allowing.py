"""Which secrets the args of which tasks may refer to."""

from __future__ import annotations

import pytest

from app.config import Settings
from app.errors import ConfigError


def test_each_secret_has_its_tasks_and_one_line_stands_for_the_rest():
    given = {"DL_SECRETS_ALLOW": '{"crm": ["load.crm", "report.*"], "*": []}'}
    settings = Settings.load(given, dotenv=None)

    assert settings.secrets_allow == {"crm": ("load.crm", "report.*"), "*": ()}
    assert settings.named_secrets == {}
    shown = {knob.variable: knob.value for knob in settings.describe()}["DL_SECRETS_ALLOW"]
    assert Settings.load({"DL_SECRETS_ALLOW": shown}, dotenv=None).secrets_allow == settings.secrets_allow


def test_without_a_word_nothing_is_refused():
    assert Settings.load({}, dotenv=None).secrets_allow == {}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("[]", "a JSON object would do"),
        ("{", "a JSON object would do"),
        ('{"crm": "load.crm"}', "'crm' has 'load.crm'; a list of tasks would do"),
        ('{"crm": [1]}', "a list of tasks would do"),
        ('{"crm": [" "]}', "a list of tasks would do"),
        ('{"../x": []}', "'../x' is no secret's name"),
    ],
)
def test_what_is_no_list_of_tasks_is_told_with_what_would_do(told, said):
    with pytest.raises(ConfigError, match="DL_SECRETS_ALLOW") as caught:
        Settings.load({"DL_SECRETS_ALLOW": told}, dotenv=None)

    assert said in str(caught.value)


@pytest.mark.parametrize("variable", ["DL_KEEP_JOURNAL_DAYS", "DL_JOB_LOG_KEEP_DAYS", "DL_AUDIT_KEEP_DAYS"])
def test_what_is_to_outlive_a_day_cannot_be_set_to_less(variable):
    with pytest.raises(ConfigError, match=f"{variable}.*from 1 to 36500"):
        Settings.load({variable: "0.5"}, dotenv=None)
