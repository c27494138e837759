"""Limits that a task declares, and calls that a pipeline counts."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from dataloader.pipelines.contract import Pipelines, Stop
from dataloader.pipelines.testing import FakeContext


def declare(call=lambda args: None, **options):
    tasks = Pipelines()
    tasks.register("load", **options)(call)
    task = tasks.get("load")
    assert task is not None
    return task


def test_limits_are_filled_from_the_args():
    task = declare(limits={"warehouse": 2, "tenant:{tenant}": 1})

    assert task.fill_limits({"tenant": "acme"}) == {"warehouse": 2, "tenant:acme": 1}
    assert declare().fill_limits({}) is None
    assert declare(limits=None).fill_limits({}) is None


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
    with pytest.raises(ValueError, match=f"^task 'load': limits: .*{problem}"):
        declare(limits=limits)
    with pytest.raises(ValueError, match=f"^task 'load': limits: .*{problem}"):
        Pipelines().command("load", ["true"], limits=limits)


class Sales(BaseModel):
    tenant: str
    region: str = Field(alias="place")


class Open(BaseModel, extra="allow"):
    tenant: str


CLOSED = {"properties": {"tenant": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "options", [{"args": Sales}, {"args": CLOSED}, {"call": lambda tenant, day: None}], ids=["model", "schema", "call"]
)
def test_a_limit_names_only_arguments_of_the_task(options):
    declare(**options, limits={"tenant:{tenant}": 1})

    with pytest.raises(ValueError, match="task 'load': limits: 'tenamt' is no argument of this task"):
        declare(**options, limits={"tenant:{tenamt}": 1})


@pytest.mark.parametrize(
    ("args", "name"),
    [(Sales, "place"), (Open, "other"), (CLOSED | {"patternProperties": {"^x": {}}}, "xy"), ({"properties": {}}, "a")],
)
def test_other_arguments_that_the_task_takes_may_be_in_a_limit(args, name):
    task = declare(args=args, limits={f"a:{{{name}}}": 1})

    assert task.fill_limits({name: "b"}) == {"a:b": 1}


def test_a_command_without_limits_may_say_so():
    assert Pipelines().command("load", ["true"], limits=None).fill_limits({}) is None


def test_a_fake_context_records_counted_calls():
    context = FakeContext()

    context.acquire("partner-api")
    context.acquire("partner-api", 3)

    assert context.acquired == [("partner-api", 1), ("partner-api", 3)]


@pytest.mark.parametrize(("limit", "n"), [("api", 0), ("api", 1.5), ("api", True), ("api", 10**9), ("", 1)])
def test_a_fake_context_refuses_what_a_worker_refuses(limit, n):
    context = FakeContext()

    with pytest.raises(ValueError, match=r"whole number from 1|neither empty"):
        context.acquire(limit, n)
    assert context.acquired == []


def test_a_stopped_fake_context_counts_no_calls():
    context = FakeContext(stop_after=0)

    with pytest.raises(Stop):
        context.acquire("api")
    assert context.acquired == []
