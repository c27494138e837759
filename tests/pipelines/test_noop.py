from __future__ import annotations

from typing import Any

import pytest

from dataloader.pipelines.contract import registry
from dataloader.pipelines.noop import noop
from dataloader.pipelines.signature import CallShape


class Clock:
    """A context that notes how long it was asked to wait."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(
    ("args", "slept"),
    [
        ({}, []),
        ({"sleep1": 1, "sleep2": 0.5, "sleep3": 2}, [1.0, 0.5, 2.0]),
        ({"sleep2": "3"}, [3.0]),
        ({"sleep1": 0, "sleep3": -1}, []),
    ],
)
def test_noop_sleeps_and_reports_each_step(args: dict[str, Any], slept: list[float]):
    clock = Clock()

    steps = list(noop(args, clock))  # type: ignore[arg-type]

    assert clock.slept == slept
    assert steps == [{"processed": n, "total": 3} for n in (1, 2, 3)]


def test_noop_is_a_generator_with_a_context():
    task = registry.get("noop")

    assert task is not None
    assert (task.kind.value, task.shape) == ("generator", CallShape(context_name="ctx"))


def test_sleep_that_is_no_number_is_refused_by_name():
    task = registry.get("noop")
    assert task is not None

    assert [where for where, _ in task.check_args({"sleep1": "x", "sleep3": None})] == ["sleep1", "sleep3"]
    assert task.check_args({"sleep1": 1, "sleep2": "0.5", "n": 7}) == []
