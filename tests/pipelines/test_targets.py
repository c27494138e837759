"""Where pipelines fetch from and write to."""

from __future__ import annotations

import pytest

from pipelines.targets import Directory, NotConfigured


@pytest.fixture
def directory():
    return Directory()


def test_a_target_is_its_own_database_or_the_default_or_the_queues(directory):
    directory.configure({}, {"opu": "host=opu", "default": "host=dwh"}, otherwise=lambda: "host=queue")

    assert directory.target("opu") == "host=opu"
    assert directory.target("cbr") == "host=dwh"

    directory.configure({}, {"opu": "host=opu"}, otherwise=lambda: "host=queue")

    assert directory.target("cbr") == "host=queue"


def test_an_unknown_target_says_what_to_set(directory):
    directory.configure({}, {"opu": "host=opu password=secret"})

    with pytest.raises(NotConfigured, match=r"'cbr'.*among opu.*DL_TARGETS") as caught:
        directory.target("cbr")

    assert "secret" not in str(caught.value)


def test_an_endpoint_has_no_slash_at_its_end_and_may_have_a_default(directory):
    directory.configure({"llm": "http://models/v1/"}, {})

    assert directory.endpoint("llm") == "http://models/v1"
    assert directory.endpoint("cbr", "https://cbr/") == "https://cbr"


def test_an_unknown_endpoint_says_what_to_set(directory):
    with pytest.raises(NotConfigured, match=r"no endpoint 'tenera' is known; name it in DL_ENDPOINTS"):
        directory.endpoint("tenera")


def test_a_token_is_known_by_the_name_of_its_endpoint(directory):
    directory.configure({}, {}, {"llm": "t0ken"})

    assert directory.token("llm") == "t0ken"
    assert directory.token("cbr") is None
    assert directory.authorization("llm") == {"Authorization": "Bearer t0ken"}
    assert directory.authorization("cbr") == {}


def test_configuring_again_forgets_the_rest(directory):
    directory.configure({"llm": "http://models"}, {"opu": "host=opu"}, {"llm": "t0ken"}, otherwise=lambda: "host=q")
    directory.configure({}, {})

    assert directory.token("llm") is None
    with pytest.raises(NotConfigured):
        directory.endpoint("llm")
    with pytest.raises(NotConfigured):
        directory.target("opu")
