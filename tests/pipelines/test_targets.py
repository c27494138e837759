"""Where pipelines fetch from and write to."""

from __future__ import annotations

import pytest

from dataloader.pipelines.targets import Locations, NotConfigured


@pytest.fixture
def directory():
    return Locations()


def test_target_falls_back_to_default_and_queue_database(directory):
    directory.configure({}, {"opu": "host=opu", "default": "host=dwh"}, fallback_dsn=lambda: "host=queue")

    assert directory.target("opu") == "host=opu"
    assert directory.target("cbr") == "host=dwh"

    directory.configure({}, {"opu": "host=opu"}, fallback_dsn=lambda: "host=queue")

    assert directory.target("cbr") == "host=queue"


def test_unknown_target_names_the_setting(directory):
    directory.configure({}, {"opu": "host=opu password=secret"})

    with pytest.raises(NotConfigured, match=r"'cbr'.*among opu.*DL_TARGETS") as caught:
        directory.target("cbr")

    assert "secret" not in str(caught.value)


def test_endpoint_has_no_trailing_slash_and_a_default(directory):
    directory.configure({"llm": "http://models/v1/"}, {})

    assert directory.endpoint("llm") == "http://models/v1"
    assert directory.endpoint("cbr", "https://cbr/") == "https://cbr"


def test_unknown_endpoint_names_the_setting(directory):
    with pytest.raises(NotConfigured, match=r"no endpoint 'tenera' is known; name it in DL_ENDPOINTS"):
        directory.endpoint("tenera")


def test_token_is_found_by_its_endpoint(directory):
    directory.configure({}, {}, {"llm": "t0ken"})

    assert directory.authorization("llm") == {"Authorization": "Bearer t0ken"}
    assert directory.authorization("cbr") == {}


def test_configure_replaces_all_locations(directory):
    directory.configure({"llm": "http://models"}, {"opu": "host=opu"}, {"llm": "t0ken"}, fallback_dsn=lambda: "host=q")
    directory.configure({}, {})

    assert directory.authorization("llm") == {}
    with pytest.raises(NotConfigured):
        directory.endpoint("llm")
    with pytest.raises(NotConfigured):
        directory.target("opu")
