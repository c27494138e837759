"""Pauses that grow, and what an error means for its job."""

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

from pipelines.retry import (
    DEFAULT,
    Answer,
    Exponential,
    Fail,
    Fixed,
    Linear,
    Rules,
    Snooze,
    Table,
    Verdict,
    decide,
    from_json,
    to_json,
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
def test_a_pause_is_never_negative_and_never_endless_whatever_the_policy_was_given(policy, attempt):
    assert 0 <= policy.pause(attempt) <= YEAR


@given(SECONDS, ATTEMPTS)
def test_a_fixed_pause_is_always_the_same(seconds, attempt):
    assert Fixed(seconds).pause(attempt) == seconds


@given(SECONDS, SECONDS, st.integers(1, 1000))
def test_a_linear_pause_grows_by_its_step_up_to_its_cap(step, cap, attempt):
    assert Linear(step, cap).pause(attempt) == min(step * attempt, cap)


def test_what_is_not_said_is_thirty_seconds_times_the_attempt():
    assert [DEFAULT.pause(attempt) for attempt in (1, 2, 3)] == [30, 60, 90]


@given(SECONDS, st.floats(1, 1000), SECONDS, st.floats(0, 1), st.integers(1, 2**31), DRAWS)
def test_jitter_stays_within_its_share_and_the_cap_above_all(base, factor, cap, jitter, attempt, drawn):
    pause = Exponential(base, factor, cap, jitter, lambda: drawn).pause(attempt)
    middle = Exponential(base, factor, cap / (1 + jitter), 0).pause(attempt)

    assert pause <= cap * (1 + 1e-9)
    assert middle * (1 - jitter) * (1 - 1e-9) <= pause <= middle * (1 + jitter) * (1 + 1e-9)


def test_an_exponential_pause_without_jitter_multiplies_up_to_its_cap():
    pauses = [Exponential(10, 2, 100, 0).pause(attempt) for attempt in (1, 2, 3, 4, 5, 10**9)]

    assert pauses == [10, 20, 40, 80, 100, 100]


def test_jobs_that_failed_together_come_back_apart_even_at_the_cap():
    assert len({Exponential(10, 2, 3600, 0.1).pause(50) for _ in range(20)}) > 10


def test_the_last_pause_of_a_table_stays():
    table = Table((60, 300, 1800))

    assert [table.pause(attempt) for attempt in (0, 1, 2, 3, 4, 99)] == [60, 60, 300, 1800, 1800, 1800]


def test_a_table_without_pauses_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Table(())


class Odd(Exception):
    pass


class OddKind(Odd):
    pass


class Database(Exception):
    def __init__(self, code):
        self.pgcode = code


def told(error, *, attempt=1, max_attempts=5, policy=Fixed(7), rules=()):  # noqa: B008 - frozen
    return decide(error, attempt=attempt, max_attempts=max_attempts, policy=policy, rules=Rules(tuple(rules)))


def test_an_error_is_tried_again_until_the_attempts_are_used_up():
    assert told(Odd(), attempt=4) == Verdict(Answer.RETRY, 7)
    assert told(Odd(), attempt=5) == Verdict(Answer.FAIL)
    assert decide(Odd(), attempt=2, max_attempts=3) == Verdict(Answer.RETRY, 60)


def test_a_pipeline_may_end_its_job_or_put_it_off():
    assert told(Fail("no")) == Verdict(Answer.FAIL)
    assert told(Snooze(90), attempt=5) == Verdict(Answer.SNOOZE, 90)
    assert told(Snooze(-1)).pause == told(Snooze(math.nan)).pause == 0
    assert told(Snooze(30 * DAY)).pause == 30 * DAY
    assert told(Snooze(math.inf)).pause == YEAR


@pytest.mark.parametrize("seconds", ["soon", None])
def test_a_snooze_that_is_no_number_is_an_error_of_its_own(seconds):
    with pytest.raises((TypeError, ValueError)):
        Snooze(seconds)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
@pytest.mark.parametrize("error", [Snooze(90), Snooze(90, "not yet")])
def test_a_snooze_survives_leaving_its_process(error, again):
    other = again(error)

    assert (other.seconds, str(other)) == (90, str(error))


@pytest.mark.parametrize(
    ("which", "error"),
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
def test_a_rule_fits_a_class_with_its_subclasses_a_name_or_a_sqlstate(which, error):
    assert told(error, rules=[(which, Answer.FAIL)]) == Verdict(Answer.FAIL)


@pytest.mark.parametrize(
    ("which", "error"),
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
def test_a_rule_for_something_else_does_not(which, error):
    assert told(error, rules=[(which, Answer.FAIL)]) == Verdict(Answer.RETRY, 7)


def test_a_class_is_known_by_the_name_it_is_published_under(monkeypatch):
    front = ModuleType("a_front")
    front.Published = Odd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_front", front)

    assert told(OddKind(), rules=[("a_front.Published", 5)]) == Verdict(Answer.SNOOZE, 5)


def test_the_first_rule_that_fits_counts():
    rules = [(OddKind, Answer.RETRY), (Odd, Answer.FAIL)]

    assert told(OddKind(), rules=rules).answer is Answer.RETRY
    assert told(Odd(), rules=rules).answer is Answer.FAIL


def test_a_rule_may_put_a_job_off_without_cost():
    assert told(Odd(), attempt=5, rules=[(Odd, 60)]) == Verdict(Answer.SNOOZE, 60)


@pytest.mark.parametrize("which", [7, int, "", " ", None])
def test_a_rule_is_for_exceptions(which):
    with pytest.raises(TypeError, match="neither an exception class"):
        Rules(((which, Answer.FAIL),))


@pytest.mark.parametrize("rule", ["snooze", "never", True, -1, math.nan, math.inf, None])
def test_a_rule_is_retry_fail_or_seconds(rule):
    with pytest.raises(ValueError, match="seconds to snooze"):
        Rules(((Odd, rule),))


def raised(**said):
    error = Odd()
    for name, value in said.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize("name", ["retry_after", "retry_after_sec"])
def test_an_error_that_asks_for_a_longer_pause_gets_it(name):
    assert told(raised(**{name: 90})).pause == 90
    assert told(raised(**{name: 2.5})).pause == 7
    assert told(raised(**{name: 90}), rules=[(Odd, 60)]) == Verdict(Answer.SNOOZE, 90)


@pytest.mark.parametrize(
    ("asked", "pause"), [(-5, 7), (math.nan, 7), (True, 7), ("90", 7), (None, 7), (math.inf, WEEK), (10**400, WEEK)]
)
def test_what_an_error_asks_for_is_believed_within_reason(asked, pause):
    assert told(raised(retry_after=asked)).pause == pause


def test_what_says_it_is_permanent_fails_unless_a_rule_knows_better():
    hopeless = raised(permanent=True)

    assert told(hopeless).answer is Answer.FAIL
    assert told(hopeless, rules=[(Odd, Answer.RETRY)]).answer is Answer.RETRY
    assert told(raised(permanent=False)).answer is Answer.RETRY


class Broken:
    def pause(self, attempt):
        raise ZeroDivisionError


class Talkative:
    def pause(self, attempt):
        return "a while"


@pytest.mark.parametrize("policy", [Broken(), Talkative()])
def test_a_policy_of_somebodys_own_that_fails_is_replaced_by_the_usual_one(policy):
    assert told(Odd(), attempt=2, policy=policy) == Verdict(Answer.RETRY, 60)


POLICIES = st.one_of(
    st.builds(Fixed, SECONDS),
    st.builds(Linear, SECONDS, SECONDS),
    st.builds(Exponential, SECONDS, st.floats(1, 1000), SECONDS, st.floats(0, 1)),
    st.builds(Table, st.lists(SECONDS, min_size=1).map(tuple)),
)


@given(POLICIES)
def test_a_policy_comes_back_from_json_as_it_was(policy):
    assert from_json(json.loads(json.dumps(to_json(policy)))) == policy


def test_what_json_leaves_out_has_its_default():
    assert from_json({"kind": "linear"}) == Linear()
    assert from_json({"kind": "exponential", "base": 5}) == Exponential(5)


def test_of_a_policy_of_somebodys_own_the_name_is_told():
    assert to_json(Talkative()) == {"kind": "Talkative"}


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (["s3cret"], "an object"),
        (None, "an object"),
        ({}, "kind must be one of fixed, linear, exponential, table"),
        ({"kind": "s3cret"}, "kind must be one of"),
        ({"kind": ["s3cret"]}, "kind must be one of"),
        ({"kind": "fixed"}, "needs seconds"),
        ({"kind": "fixed", "seconds": 1, "s3cret": 2}, "has seconds, and nothing else"),
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
def test_json_that_is_no_policy_is_refused_with_what_would_do_and_without_its_values(given_, why):
    with pytest.raises(ValueError, match=why) as refused:
        from_json(given_)

    assert "s3cret" not in str(refused.value)
