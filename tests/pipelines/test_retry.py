"""Retry policies, and what an error means for its job."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
from types import ModuleType

import psycopg2.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.pipelines.retry import (
    DEFAULT,
    Exponential,
    Fail,
    Fixed,
    Linear,
    RetryAction,
    RetryDecision,
    Rules,
    Snooze,
    Table,
    decide,
    policy_from_json,
    policy_to_json,
)

DAY, WEEK, YEAR = 86_400, 7 * 86_400, 366 * 86_400
ANY = st.floats() | st.integers()
SECONDS = st.floats(0, WEEK)
ATTEMPTS = st.integers(-1, 2**31)
DRAWS = st.floats(0, 1, exclude_max=True)


@given(
    st.one_of(
        st.builds(Fixed, ANY),
        st.builds(Linear, ANY, ANY),
        st.builds(Exponential, ANY, ANY, ANY, ANY, st.builds(lambda drawn: lambda: drawn, DRAWS)),
        st.builds(Table, st.lists(ANY, min_size=1).map(tuple)),
    ),
    ATTEMPTS,
)
def test_delay_is_bounded_for_any_policy(policy, attempt):
    assert 0 <= policy.pause(attempt) <= YEAR


@given(SECONDS, ATTEMPTS)
def test_fixed_delay_is_constant(seconds, attempt):
    assert Fixed(seconds).pause(attempt) == seconds


@given(SECONDS, SECONDS, st.integers(1, 1000))
def test_linear_delay_grows_to_its_cap(step, cap, attempt):
    assert Linear(step, cap).pause(attempt) == min(step * attempt, cap)


def test_default_delay_is_thirty_seconds_an_attempt():
    assert [DEFAULT.pause(attempt) for attempt in (1, 2, 3)] == [30, 60, 90]


@given(SECONDS, st.floats(1, 1000), SECONDS, st.floats(0, 1), st.integers(1, 2**31), DRAWS)
def test_jitter_stays_within_share_and_cap(base, factor, cap, jitter, attempt, drawn):
    pause = Exponential(base, factor, cap, jitter, lambda: drawn).pause(attempt)
    middle = Exponential(base, factor, cap / (1 + jitter), 0).pause(attempt)

    assert pause <= cap * (1 + 1e-9)
    assert middle * (1 - jitter) * (1 - 1e-9) <= pause <= middle * (1 + jitter) * (1 + 1e-9)


def test_exponential_delay_multiplies_to_its_cap():
    pauses = [Exponential(10, 2, 100, 0).pause(attempt) for attempt in (1, 2, 3, 4, 5, 10**9)]

    assert pauses == [10, 20, 40, 80, 100, 100]


def test_jitter_spreads_delays_at_the_cap():
    assert len({Exponential(10, 2, 3600, 0.1).pause(50) for _ in range(20)}) > 10


def test_last_delay_of_a_table_repeats():
    table = Table((60, 300, 1800))

    assert [table.pause(attempt) for attempt in (0, 1, 2, 3, 4, 99)] == [60, 60, 300, 1800, 1800, 1800]


def test_empty_table_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Table(())


class Odd(Exception):
    pass


class OddKind(Odd):
    pass


class Database(Exception):
    def __init__(self, code):
        self.pgcode = code


def decision_after(error, *, attempt=1, max_attempts=5, policy=Fixed(7), rules=()):  # noqa: B008 - frozen
    return decide(error, attempt=attempt, max_attempts=max_attempts, policy=policy, rules=Rules(tuple(rules)))


def test_error_is_retried_until_attempts_are_used_up():
    assert decision_after(Odd(), attempt=4) == RetryDecision(RetryAction.RETRY, 7)
    assert decision_after(Odd(), attempt=5) == RetryDecision(RetryAction.FAIL)
    assert decide(Odd(), attempt=2, max_attempts=3) == RetryDecision(RetryAction.RETRY, 60)


def test_fail_and_snooze_decide_the_outcome():
    assert decision_after(Fail("no")) == RetryDecision(RetryAction.FAIL)
    assert decision_after(Snooze(90), attempt=5) == RetryDecision(RetryAction.SNOOZE, 90)
    assert decision_after(Snooze(30 * DAY)).delay_sec == 30 * DAY
    assert decision_after(Snooze(YEAR)).delay_sec == YEAR


@pytest.mark.parametrize("seconds", [0, 0.001, -0.0])
def test_snooze_lasts_a_second_at_least(seconds: float):
    assert Snooze(seconds).seconds == decision_after(Snooze(seconds)).delay_sec == 1
    by_rule = decision_after(KeyError(), rules=[(KeyError, seconds)])
    assert by_rule == RetryDecision(RetryAction.SNOOZE, 1)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, -math.inf, 1e300, YEAR + 1])
def test_snooze_refuses_what_is_no_pause(seconds: float):
    with pytest.raises(ValueError, match="Snooze takes from 0 to 31622400 seconds"):
        Snooze(seconds)


@pytest.mark.parametrize("seconds", ["soon", None])
def test_snooze_with_a_non_number_raises(seconds):
    with pytest.raises((TypeError, ValueError)):
        Snooze(seconds)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
@pytest.mark.parametrize("error", [Snooze(90), Snooze(90, "not yet")])
def test_snooze_can_be_pickled(error, again):
    other = again(error)

    assert (other.seconds, str(other)) == (90, str(error))


@pytest.mark.parametrize(
    ("matcher", "error"),
    [
        (Odd, Odd()),
        (Odd, OddKind()),
        ("Odd", OddKind()),
        (f"{__name__}.OddKind", OddKind()),
        (f"{__name__}.Odd", OddKind()),
        ("builtins.OSError", ConnectionResetError()),
        ("ConnectionError", ConnectionResetError()),
        ("23505", Database("23505")),
        ("23", Database("23505")),
        ("psycopg2.errors.UniqueViolation", psycopg2.errors.UniqueViolation()),
        ("psycopg2.IntegrityError", psycopg2.errors.UniqueViolation()),
    ],
)
def test_rule_matches_class_subclass_name_or_sqlstate(matcher, error):
    assert decision_after(error, rules=[(matcher, RetryAction.FAIL)]) == RetryDecision(RetryAction.FAIL)


@pytest.mark.parametrize(
    ("matcher", "error"),
    [
        (OddKind, Odd()),
        ("Other", Odd()),
        ("elsewhere.Odd", Odd()),
        ("sys.path", Odd()),
        ("23505", Database("23503")),
        ("2", Database("23505")),
        ("23505", Database(None)),
        ("23505", Database(23505)),
        ("23505", Odd()),
    ],
)
def test_rule_for_another_error_does_not_match(matcher, error):
    assert decision_after(error, rules=[(matcher, RetryAction.FAIL)]) == RetryDecision(RetryAction.RETRY, 7)


def test_rule_matches_the_exported_class_name(monkeypatch):
    front = ModuleType("a_front")
    front.Published = Odd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_front", front)

    assert decision_after(OddKind(), rules=[("a_front.Published", 5)]) == RetryDecision(RetryAction.SNOOZE, 5)


def test_first_matching_rule_counts():
    rules = [(OddKind, RetryAction.RETRY), (Odd, RetryAction.FAIL)]

    assert decision_after(OddKind(), rules=rules).action is RetryAction.RETRY
    assert decision_after(Odd(), rules=rules).action is RetryAction.FAIL


def test_rule_can_snooze():
    assert decision_after(Odd(), attempt=5, rules=[(Odd, 60)]) == RetryDecision(RetryAction.SNOOZE, 60)


@pytest.mark.parametrize("matcher", [7, int, "", " ", None])
def test_rule_for_a_non_exception_is_refused(matcher):
    with pytest.raises(TypeError, match="neither an exception class"):
        Rules(((matcher, RetryAction.FAIL),))


@pytest.mark.parametrize("rule", ["snooze", "never", True, -1, math.nan, math.inf, None])
def test_rule_is_retry_fail_or_seconds(rule):
    with pytest.raises(ValueError, match="seconds to snooze"):
        Rules(((Odd, rule),))


def raised(**attributes):
    error = Odd()
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize("name", ["retry_after", "retry_after_sec"])
def test_longer_retry_after_is_respected(name):
    assert decision_after(raised(**{name: 90})).delay_sec == 90
    assert decision_after(raised(**{name: 2.5})).delay_sec == 7
    assert decision_after(raised(**{name: 90}), rules=[(Odd, 60)]) == RetryDecision(RetryAction.SNOOZE, 90)


@pytest.mark.parametrize(
    ("requested", "pause"), [(-5, 7), (math.nan, 7), (True, 7), ("90", 7), (None, 7), (math.inf, WEEK), (10**400, WEEK)]
)
def test_retry_after_is_bounded(requested, pause):
    assert decision_after(raised(retry_after=requested)).delay_sec == pause


def test_permanent_error_fails_unless_a_rule_differs():
    hopeless = raised(permanent=True)

    assert decision_after(hopeless).action is RetryAction.FAIL
    assert decision_after(hopeless, rules=[(Odd, RetryAction.RETRY)]).action is RetryAction.RETRY
    assert decision_after(raised(permanent=False)).action is RetryAction.RETRY


class Broken:
    def pause(self, attempt):
        raise ZeroDivisionError


class Talkative:
    def pause(self, attempt):
        return "a while"


@pytest.mark.parametrize("policy", [Broken(), Talkative()])
def test_failing_policy_falls_back_to_the_default(policy):
    assert decision_after(Odd(), attempt=2, policy=policy) == RetryDecision(RetryAction.RETRY, 60)


POLICIES = st.one_of(
    st.builds(Fixed, SECONDS),
    st.builds(Linear, SECONDS, SECONDS),
    st.builds(Exponential, SECONDS, st.floats(1, 1000), SECONDS, st.floats(0, 1)),
    st.builds(Table, st.lists(SECONDS, min_size=1).map(tuple)),
)


@given(POLICIES)
def test_policy_round_trips_through_json(policy):
    assert policy_from_json(json.loads(json.dumps(policy_to_json(policy)))) == policy


def test_missing_policy_fields_have_defaults():
    assert policy_from_json({"kind": "linear"}) == Linear()
    assert policy_from_json({"kind": "exponential", "base": 5}) == Exponential(5)


def test_custom_policy_is_formatted_by_its_name():
    assert policy_to_json(Talkative()) == {"kind": "Talkative"}


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (["s3cret"], "an object"),
        (None, "an object"),
        ({}, "kind must be one of fixed, linear, exponential, table"),
        ({"kind": "s3cret"}, "kind must be one of"),
        ({"kind": ["s3cret"]}, "kind must be one of"),
        ({"kind": "fixed"}, "needs seconds"),
        ({"kind": "fixed", "seconds": 1, "s3cret": 2}, "has only the fields seconds"),
        ({"kind": "fixed", "seconds": "s3cret"}, "seconds must be a number from 0 to 604800"),
        ({"kind": "fixed", "seconds": True}, "seconds must be a number"),
        ({"kind": "fixed", "seconds": -1}, "seconds must be a number"),
        ({"kind": "fixed", "seconds": 1e9}, "seconds must be a number"),
        ({"kind": "fixed", "seconds": math.nan}, "seconds must be a number"),
        ({"kind": "fixed", "seconds": 10**400}, "seconds must be a number"),
        ({"kind": "exponential", "jitter": 2}, "jitter must be a number from 0 to 1"),
        ({"kind": "exponential", "factor": 0.5}, "factor must be a number from 1 to 1000"),
        ({"kind": "table", "seconds": 5}, "list of numbers"),
        ({"kind": "table", "seconds": []}, "list of numbers"),
        ({"kind": "table", "seconds": [1, "s3cret"]}, "seconds must be a number"),
    ],
)
def test_invalid_policy_json_is_refused_without_values(given_, why):
    with pytest.raises(ValueError, match=why) as refused:
        policy_from_json(given_)

    assert "s3cret" not in str(refused.value)
