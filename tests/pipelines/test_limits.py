"""Limits that a task declares, and calls that a pipeline counts."""

from __future__ import annotations

import pytest

from pipelines.contract import Pipelines
from pipelines.testing import FakeContext


def declare(**options):
    tasks = Pipelines()
    tasks.register("load", **options)(lambda args: None)
    task = tasks.get("load")
    assert task is not None
    return task


def test_limits_are_filled_from_the_args():
    task = declare(limits={"warehouse": 2, "tenant:{tenant}": 1})

    assert task.fill_limits({"tenant": "acme"}) == {"warehouse": 2, "tenant:acme": 1}
    assert declare().fill_limits({}) is None


@pytest.mark.parametrize(
    ("args", "problem"),
    [({}, "'tenant' is missing"), ({"tenant": []}, "neither a text"), ({"tenant": "x" * 200}, "200 bytes")],
)
def test_args_that_make_no_limit_are_refused(args, problem):
    with pytest.raises(ValueError, match=problem):
        declare(limits={"tenant:{tenant}": 1}).fill_limits(args)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"a": 0}, "weight of 'a'"),
        ({"a": True}, "weight of 'a'"),
        ({"": 1}, "neither empty"),
        ({"task:load": 1}, "applies by itself"),
        ({"a:*": 1}, "ends in"),
        ({"{a": 1}, "braces"),
        ({str(n): 1 for n in range(5)}, "at most 4"),
    ],
)
def test_declared_limits_that_cannot_be_are_refused(limits, problem):
    with pytest.raises(ValueError, match=problem):
        declare(limits=limits)


def test_a_fake_context_records_counted_calls():
    context = FakeContext()

    context.acquire("partner-api")
    context.acquire("partner-api", 3)

    assert context.acquired == [("partner-api", 1), ("partner-api", 3)]
    with pytest.raises(ValueError, match="1 or more"):
        context.acquire("partner-api", 0)
