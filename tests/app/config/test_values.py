"""Texts that mean more than a number."""

from __future__ import annotations

import json

import pytest

from app.config import QueueWorkers, Rotation, values


@pytest.mark.parametrize("name", ["Europe/Moscow", "UTC", "Asia/Vladivostok"])
def test_a_zone_exists(name):
    assert values.parse_time_zone(name) == name


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "Europe", "/etc/localtime", "UTC\x00"])
def test_what_is_no_zone_is_refused(name):
    with pytest.raises(ValueError, match="IANA"):
        values.parse_time_zone(name)


@pytest.mark.parametrize("name", ["public", "queue_1", "_q", "a" * 63])
def test_plain_identifiers_are_schemas(name):
    assert values.parse_identifier(name) == name


@pytest.mark.parametrize("name", ["Public", "1q", "a-b", "a b", 'a"b', "a" * 64, "pg_catalog", "очередь", "q\n"])
def test_other_identifiers_are_refused(name):
    with pytest.raises(ValueError, match="identifier"):
        values.parse_identifier(name)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "/", "a\nb", "a/"])
def test_a_file_name_names_no_folder(name):
    with pytest.raises(ValueError, match="folder"):
        values.parse_file_name(name)


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


@pytest.mark.parametrize("text", ["10", "MB", "0 MB", "0 days", "-1 MB", "5 b", "1.5 MB", "1 month", "10 MB 1 day", ""])
def test_other_rotations_are_refused(text):
    with pytest.raises(ValueError, match="midnight"):
        values.parse_rotation(text)


def test_packages_are_named_once_each_in_order():
    assert values.parse_packages(" pipelines,company.loads ,pipelines") == ("pipelines", "company.loads")
    assert values.parse_packages(("b", "a")) == ("b", "a")


@pytest.mark.parametrize("text", ["a,,b", "a b", "a/b", "1a", ".a", "a."])
def test_what_is_no_package_is_refused(text):
    with pytest.raises(ValueError, match="packages"):
        values.parse_packages(text)


def test_queues_have_workers():
    text = '[{"queue": "etl.default", "concurrency": 2}, {"queue": "Отчёты", "concurrency": 1000}]'

    workers = values.parse_queue_workers(text)

    assert workers == (QueueWorkers("etl.default", 2), QueueWorkers("Отчёты", 1000))
    assert values.parse_queue_workers(workers) is workers


def test_an_empty_list_means_no_workers_here():
    assert values.parse_queue_workers("[]") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("etl.default:2", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"queue": "a", "concurrency": 1}', "it is not a list"),
        ("[1]", "entry 1: is not an object"),
        ('[{"queue": "a"}]', "entry 1: concurrency must be a whole number from 1 to 1000"),
        ('[{"queue": "a", "concurrency": 0}]', "concurrency"),
        ('[{"queue": "a", "concurrency": 1001}]', "concurrency"),
        ('[{"queue": "a", "concurrency": 2.0}]', "concurrency"),
        ('[{"queue": "a", "concurrency": true}]', "concurrency"),
        ('[{"queue": "a", "concurrency": "2"}]', "concurrency"),
        ('[{"concurrency": 1}]', "entry 1: queue must be"),
        ('[{"queue": " ", "concurrency": 1}]', "queue must be"),
        ('[{"queue": "a\\nb", "concurrency": 1}]', "queue must be"),
        ('[{"queue": "a\\u0000", "concurrency": 1}]', "queue must be"),
        ('[{"queue": "%s", "concurrency": 1}]' % ("q" * 201), "queue must be"),
        ('[{"queue": "a", "concurrency": 1, "threads": 2}]', "'threads' is neither queue nor concurrency"),
        ('[{"queue": "a", "concurrency": 1}, {"queue": "a", "concurrency": 2}]', "queue 'a' is named twice"),
    ],
)
def test_other_workers_are_refused(text, told):
    with pytest.raises(ValueError, match="such a list would do") as caught:
        values.parse_queue_workers(text)

    assert told in str(caught.value)


def test_all_faults_of_the_workers_are_told_together():
    with pytest.raises(ValueError, match=r"entry 1: .*; entry 2: "):
        values.parse_queue_workers('[{"queue": "a", "concurrency": 0}, {"concurrency": 1}]')


def test_a_rotation_is_never_without_a_word_for_it():
    assert Rotation("never") == values.parse_rotation("NEVER")


def test_places_of_pipelines_are_objects_of_texts():
    assert values.parse_endpoints('{"llm": "https://models/v1"}') == {"llm": "https://models/v1"}
    assert values.parse_targets('{"opu": "host=db"}') == {"opu": "host=db"}
    assert values.parse_tokens('{"llm": "abc"}') == {"llm": "abc"}
    for read in (values.parse_endpoints, values.parse_targets, values.parse_tokens):
        assert read("{}") == {}
        assert read({"given": "http://as-a-value"}) == {"given": "http://as-a-value"}


@pytest.mark.parametrize("read", [values.parse_endpoints, values.parse_targets, values.parse_tokens])
@pytest.mark.parametrize("text", ["nonsense", "[]", '{"a": 1}', '{"": "host=db"}', '{"a": " "}', "[" * 100_000])
def test_other_places_of_pipelines_are_refused(read, text):
    with pytest.raises(ValueError, match="would do"):
        read(text)


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
    with pytest.raises(ValueError, match=remedy) as caught:
        values.parse_endpoints(json.dumps({"llm": url}))

    assert "pass@" not in str(caught.value)


def test_a_target_that_libpq_could_not_read_is_named():
    with pytest.raises(ValueError, match="'opu'.*pairs") as caught:
        values.parse_targets('{"default": "host=db", "opu": "p@ss word"}')

    assert "p@ss" not in str(caught.value)


def test_a_token_that_a_header_could_not_carry_is_named():
    with pytest.raises(ValueError, match="'llm'"):
        values.parse_tokens(json.dumps({"llm": "two\r\nlines"}))
