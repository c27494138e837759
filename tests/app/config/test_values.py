"""Values of settings that are more than a number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataloader.app.config import QueueWorkers, Rotation, Settings, load_settings, values
from dataloader.app.errors import ConfigError
from dataloader.app.runtime.pool_settings import retention_periods


def parse(variable: str, text: str) -> Any:
    """The value of a setting. Raises ConfigError."""
    settings = load_settings({variable: text}, dotenv=None)
    (name,) = [n for n, field in Settings.model_fields.items() if field.validation_alias == variable]
    return getattr(settings, name)


@pytest.mark.parametrize("name", ["Europe/Moscow", "UTC", "Asia/Vladivostok"])
def test_a_zone_exists(name):
    assert parse("TIMEZONE", name) == name


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "../etc/passwd", "Europe", "/etc/localtime", "UTC\x00", "localtime", "Factory"]
)
def test_what_is_no_zone_is_refused(name):
    with pytest.raises(ConfigError, match="IANA"):
        parse("TIMEZONE", name)


@pytest.mark.parametrize("name", ["public", "queue_1", "_q", "a" * 63])
def test_plain_identifiers_are_schemas(name):
    assert parse("PG_SCHEMA_QUEUE", name) == name


@pytest.mark.parametrize("name", ["Public", "1q", "a-b", "a b", 'a"b', "a" * 64, "pg_catalog", "очередь"])
def test_other_identifiers_are_refused(name):
    with pytest.raises(ConfigError, match="identifier"):
        parse("PG_SCHEMA_QUEUE", name)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "/", "a\nb", "a/"])
def test_a_file_name_names_no_folder(name):
    with pytest.raises(ConfigError, match="folder"):
        parse("LOG_FILE_NAME", name)


@pytest.mark.parametrize(
    ("text", "max_bytes", "every_sec"),
    [
        ("10 MB", 10 * 1024**2, None),
        ("1gb", 1024**3, None),
        (" 1  kb ", 1024, None),
        ("4096 B", 4096, None),
        ("30 minutes", None, 1800),
        ("1 hour", None, 3600),
        ("6 Hours", None, 21_600),
        ("1 day", None, 86_400),
        ("2 weeks", None, 1_209_600),
        ("midnight", None, 86_400),
        ("hourly", None, 3600),
        ("weekly", None, 604_800),
        ("never", None, None),
    ],
)
def test_a_rotation_is_a_size_or_a_period(text, max_bytes, every_sec):
    rotation = values.parse_rotation(text)

    assert (rotation.max_bytes, rotation.every_sec) == (max_bytes, every_sec)
    assert values.parse_rotation(rotation.text) == rotation
    assert values.parse_rotation(rotation) is rotation


@pytest.mark.parametrize("text", ["10", "MB", "0 MB", "0 days", "-1 MB", "5 b", "1.5 MB", "1 month", "10 MB 1 day"])
def test_other_rotations_are_refused(text):
    with pytest.raises(ConfigError, match="midnight"):
        parse("LOG_ROTATION", text)


def test_packages_are_named_once_each_in_order():
    assert parse("DL_PIPELINES", " pipelines,company.loads ,,pipelines") == ("pipelines", "company.loads")


@pytest.mark.parametrize("text", ["a b", "a/b", "1a", ".a", "a."])
def test_what_is_no_package_is_refused(text):
    with pytest.raises(ConfigError, match="packages"):
        parse("DL_PIPELINES", text)


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("DL_PIPELINES", '["pipelines", "company.loads"]', ("pipelines", "company.loads")),
        ("DL_TRUSTED_PROXIES", ' ["10.0.0.0/8", "::1", "10.0.0.0/8"] ', ("10.0.0.0/8", "::1/128")),
        ("DL_WEBHOOK_ALLOWED_HOSTS", '["Hooks.internal"]', ("hooks.internal",)),
        ("DL_MASKED_KEYS", '["iban", ""]', ("iban",)),
        ("DL_MASKED_KEYS", "[]", ()),
    ],
)
def test_a_list_is_also_read_as_json(variable, text, parts):
    assert parse(variable, text) == parts


@pytest.mark.parametrize("text", ["[iban]", '["iban"', "[1]", '[["iban"]]', '{"a": 1}'])
def test_what_is_neither_a_list_of_words_nor_json_is_refused(text):
    with pytest.raises(ConfigError, match="DL_MASKED_KEYS"):
        parse("DL_MASKED_KEYS", text)


def test_queues_have_workers():
    text = '[{"queue": "etl.default", "concurrency": 2}, {"queue": "Отчёты", "concurrency": 1000}]'

    workers = parse("WORKERS_JSON", text)

    assert workers == (QueueWorkers("etl.default", 2), QueueWorkers("Отчёты", 1000))


POLLS = [
    {"kind": "fixed", "sec": 5},
    {"kind": "linear", "step_sec": 1, "max_sec": 60},
    {"kind": "exponential", "min_sec": 1, "max_sec": 60},
    {"kind": "exponential", "min_sec": 0.05, "max_sec": 3600, "jitter": 0.2},
    {"kind": "table", "sec": [1, 5, 30]},
]


@pytest.mark.parametrize("poll", POLLS)
def test_queue_has_a_poll_that_is_written_as_it_was_read(poll):
    (worker,) = parse("WORKERS_JSON", json.dumps([{"queue": "a", "concurrency": 1, "poll": poll}]))

    (written,) = json.loads(values.format_value((worker,)))

    assert {name: written["poll"][name] for name in poll} == poll


@pytest.mark.parametrize(
    ("poll", "result"),
    [
        ("5", "entry 1.poll: expected an object whose kind is one of fixed, linear, exponential, table"),
        ('{"sec": 5}', "entry 1.poll: expected an object whose kind is"),
        ('{"kind": "often"}', "entry 1.poll: expected an object whose kind is"),
        ('{"kind": "fixed"}', "entry 1.poll.fixed.sec: Field required"),
        ('{"kind": "fixed", "sec": 0}', "entry 1.poll.fixed.sec: Input should be greater than or equal to 0.05"),
        ('{"kind": "fixed", "sec": NaN}', "entry 1.poll.fixed.sec"),
        ('{"kind": "fixed", "sec": 5, "max_sec": 6}', "entry 1.poll.fixed.max_sec: Unexpected keyword"),
        ('{"kind": "linear", "step_sec": 9, "max_sec": 5}', "entry 1.poll: max_sec is less than step_sec"),
        ('{"kind": "exponential", "min_sec": 9, "max_sec": 5}', "entry 1.poll: max_sec is less than min_sec"),
        ('{"kind": "exponential", "min_sec": 1, "max_sec": 5, "jitter": 2}', "entry 1.poll.exponential.jitter"),
        ('{"kind": "table", "sec": []}', "entry 1.poll.table.sec"),
        (
            '{"kind": "table", "sec": ["1", 4000]}',
            "sec.entry 1: Input should be a valid number; entry 1.poll.table.sec",
        ),
    ],
)
def test_other_polls_are_refused(poll, result):
    with pytest.raises(ConfigError, match="a JSON list of objects with queue and concurrency .* would do") as caught:
        parse("WORKERS_JSON", f'[{{"queue": "a", "concurrency": 1, "poll": {poll}}}]')

    assert result in str(caught.value)


def test_an_empty_list_means_no_workers_here():
    assert parse("WORKERS_JSON", "[]") == ()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("etl.default:2", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"queue": "a", "concurrency": 1}', "a JSON list"),
        ("[1]", "entry 1: Input should be a dictionary"),
        ('[{"queue": "a"}]', "entry 1.concurrency: Field required"),
        ('[{"queue": "a", "concurrency": 0}]', "concurrency"),
        ('[{"queue": "a", "concurrency": 1001}]', "concurrency"),
        ('[{"queue": "a", "concurrency": 2.0}]', "concurrency"),
        ('[{"queue": "a", "concurrency": true}]', "concurrency"),
        ('[{"queue": "a", "concurrency": "2"}]', "concurrency"),
        ('[{"concurrency": 1}]', "entry 1.queue: Field required"),
        ('[{"queue": " ", "concurrency": 1}]', "entry 1.queue: expected 1 to 200 printable"),
        ('[{"queue": "a\\nb", "concurrency": 1}]', "entry 1.queue: expected 1 to 200 printable"),
        ('[{"queue": "a\\u0000", "concurrency": 1}]', "entry 1.queue: expected 1 to 200 printable"),
        ('[{"queue": "%s", "concurrency": 1}]' % ("q" * 201), "entry 1.queue: expected 1 to 200 printable"),
        ('[{"queue": "a", "concurrency": 1, "threads": 2}]', "entry 1.threads: Unexpected keyword"),
        ('[{"queue": "a", "concurrency": 1}, {"queue": "a", "concurrency": 2}]', "queue 'a' is named twice"),
        ('[{"queue": "a", "concurrency": 1, "labels": {"No": true}}]', "entry 1.labels: a label has 1 to 63 of a-z"),
        ('[{"queue": "a", "concurrency": 1, "labels": {"gpu": 1}}]', "label 'gpu' is true, false or a text"),
        ('[{"queue": "a", "concurrency": 1, "labels": {"gpu": "true"}}]', "label 'gpu' is true, false or a text"),
        (
            '[{"queue": "a", "concurrency": 1, "labels": {"x": true}},'
            ' {"queue": "b", "concurrency": 1, "labels": {"x": "y"}}]',
            "label 'x' has two values",
        ),
    ],
)
def test_other_workers_are_refused(text, result):
    with pytest.raises(ConfigError, match="a JSON list of objects with queue and concurrency .* would do") as caught:
        parse("WORKERS_JSON", text)

    assert result in str(caught.value)


def test_all_worker_errors_are_reported_together():
    with pytest.raises(ConfigError, match=r"entry 1\.concurrency: .*; entry 2\.queue: "):
        parse("WORKERS_JSON", '[{"queue": "a", "concurrency": 0}, {"concurrency": 1}]')


def test_a_rotation_is_never_without_a_word_for_it():
    assert Rotation("never") == values.parse_rotation("NEVER")


PLACES = ("DL_ENDPOINTS", "DL_TARGETS", "DL_TOKENS")


def test_places_of_pipelines_are_objects_of_texts():
    assert parse("DL_ENDPOINTS", '{"llm": "https://models/v1"}') == {"llm": "https://models/v1"}
    assert parse("DL_TARGETS", '{"opu": "host=db"}')["opu"].get_secret_value() == "host=db"
    assert parse("DL_TOKENS", '{"llm": "abc"}')["llm"].get_secret_value() == "abc"
    assert [parse(variable, "{}") for variable in PLACES] == [{}, {}, {}]


@pytest.mark.parametrize("variable", PLACES)
@pytest.mark.parametrize("text", ["nonsense", "[]", '{"a": 1}', '{"": "host=db"}', '{"a": " "}', "[" * 100_000])
def test_other_places_of_pipelines_are_refused(variable, text):
    with pytest.raises(ConfigError, match="would do"):
        parse(variable, text)


def test_engines_have_their_secrets_by_reference():
    engines = {"ray": {"address": "http://head:8265", "token": {"$secret": "ray"}}}
    assert parse("DL_EXECUTORS", json.dumps(engines)) == engines
    engines["ray"]["token_file"] = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert parse("DL_EXECUTORS", json.dumps(engines)) == engines
    refused_values = (
        {"token": "abc"},
        {"api_key": "abc"},
        {"address": "http://user:pass@head:8265"},
        {"token_file": "abc"},
    )
    for values_of_ray in refused_values:
        with pytest.raises(ConfigError, match="DL_EXECUTORS") as refused:
            parse("DL_EXECUTORS", json.dumps({"ray": values_of_ray}))
        assert not {"abc", "pass@"} & set(str(refused.value).split())
    with pytest.raises(ConfigError, match="exists already"):
        parse("DL_EXECUTORS", '{"process": {}}')


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("ftp://host/", "neither"),
        ("https:///path", "neither"),
        ("https://[::1/", "not a URL"),
        ("http://host:port/", "not a URL"),
        ("https://user:pass@host/", "DL_TOKENS"),
    ],
)
def test_an_endpoint_is_an_address_without_credentials(url, remedy):
    with pytest.raises(ConfigError, match=f"llm: .*{remedy}") as caught:
        parse("DL_ENDPOINTS", json.dumps({"llm": url}))

    assert "pass@" not in caught.value.errors[0].remedy


def test_a_target_that_libpq_could_not_read_is_named():
    with pytest.raises(ConfigError, match=r"opu: .*pairs") as caught:
        parse("DL_TARGETS", '{"default": "host=db", "opu": "p@ss word"}')

    assert "p@ss" not in str(caught.value)


def test_a_token_that_a_header_could_not_carry_is_named():
    with pytest.raises(ConfigError, match="llm: "):
        parse("DL_TOKENS", json.dumps({"llm": "two\r\nlines"}))


def test_jobs_have_one_period_or_one_per_status():
    def periods(text: str) -> tuple[float, float, float, float]:
        kept = retention_periods(load_settings({"DL_KEEP_JOBS_DAYS": text}, dotenv=None))
        return kept.succeeded, kept.failed, kept.canceled, kept.lost

    assert periods("2") == (2 * 86_400,) * 4
    assert periods('{"failed": 90}') == (14 * 86_400, 90 * 86_400, 14 * 86_400, 30 * 86_400)
    for invalid in ("0", "-1", "true", "soon", '{"running": 1}', '{"lost": null}', "[1]", "Infinity"):
        with pytest.raises(ConfigError, match="DL_KEEP_JOBS_DAYS"):
            periods(invalid)


def test_task_has_one_period_or_one_per_status():
    settings = load_settings({"DL_KEEP_TASKS": '{"a": 0.5, "b": {"failed": 90}}'}, dotenv=None)

    assert retention_periods(settings).tasks == {
        "a": dict.fromkeys(("succeeded", "failed", "canceled", "lost"), 43_200.0),
        "b": {"failed": 90 * 86_400.0},
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "a JSON object such as"),
        ("{", "it is not JSON; a JSON object such as"),
        ('{"a": "3"}', "a: Input should be a valid dictionary"),
        ('{"a": true}', "a.failed: Input should be a valid number"),
        ('{"a": 0}', "a.failed: Input should be greater than 0"),
        ('{"a": {"running": 3}}', "a.running: expected one of succeeded, failed"),
    ],
)
def test_invalid_retention_of_task_is_named(text, problem):
    with pytest.raises(ConfigError, match="DL_KEEP_TASKS") as caught:
        load_settings({"DL_KEEP_TASKS": text}, dotenv=None)

    assert problem in str(caught.value)


def test_secret_tasks_are_parsed_with_a_default():
    given = {"DL_TASK_SECRETS": '{"crm": ["load.crm", "report.*"], "*": []}'}
    settings = load_settings(given, dotenv=None)

    assert settings.task_secrets == {"crm": ("load.crm", "report.*"), "*": ()}
    assert settings.named_secrets == {}
    shown = {info.variable: info.value for info in settings.describe()}["DL_TASK_SECRETS"]
    assert load_settings({"DL_TASK_SECRETS": shown}, dotenv=None).task_secrets == settings.task_secrets


def test_without_secret_rules_every_task_may():
    assert load_settings({}, dotenv=None).task_secrets == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "a JSON object such as"),
        ("{", "it is not JSON; a JSON object such as"),
        ('{"crm": "load.crm"}', "crm: Input should be a valid tuple"),
        ('{"crm": [1]}', "crm.entry 1: Input should be a valid string"),
        ('{"crm": [" "]}', "crm.entry 1: expected 1 to 200 printable"),
        ('{"../x": []}', "../x: it is no secret's name"),
    ],
)
def test_invalid_secret_rule_is_named(text, problem):
    with pytest.raises(ConfigError, match="DL_TASK_SECRETS") as caught:
        load_settings({"DL_TASK_SECRETS": text}, dotenv=None)

    assert problem in str(caught.value)


@pytest.mark.parametrize("variable", ["DL_KEEP_EVENTS_DAYS", "DL_JOB_LOG_KEEP_DAYS", "DL_KEEP_HISTORY_DAYS"])
def test_what_is_to_outlive_a_day_cannot_be_set_to_less(variable):
    with pytest.raises(ConfigError, match=f"{variable}.*from 1 to 36500"):
        load_settings({variable: "0.5"}, dotenv=None)
