"""Offloads that contradict the rules are found."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.chaos.history import Execution, OffloadRow
from tests.chaos.history_builder import HistoryBuilder

# ── work on an engine ───────────────────────────────────────────────────────────────────────────────────────────────


class OffloadTale:
    """A job that took the result of its work on the engine, and what the tables and the engine have of it."""

    def __init__(self, tale: HistoryBuilder) -> None:
        self.tale, self.job = tale, tale.job("chaos.offload")
        self.run = tale.claim(self.job)
        self.name = f"dl-{self.job}-1"
        tale.succeed(self.job, self.run, result={"run": str(self.run), "offload": self.name})
        self.rows = [self.row(1, "succeeded")]
        self.executions = [self.execution(self.name, "succeeded")]

    def row(self, number: int, outcome: str | None) -> OffloadRow:
        name = self.name if number == 1 else f"{self.name}.{number}"
        return OffloadRow(name=name, job_id=self.job, run_id=self.run, number=number, outcome=outcome)

    @staticmethod
    def execution(name: str, state: str, **more: Any) -> Execution:
        return Execution(**{"name": name, "starts": 1, "had_intent": True, "state": state, **more})

    def violated_rules(self) -> set[str]:
        return self.tale.violated_rules(offloads=self.rows, executions=self.executions)


@pytest.fixture
def offload(tale) -> OffloadTale:
    return OffloadTale(tale)


def test_offload_whose_first_work_failed_is_lawful(offload):
    offload.rows = [offload.row(1, "failed"), offload.row(2, "succeeded")]
    offload.executions = [
        offload.execution(offload.name, "failed"),
        offload.execution(f"{offload.name}.2", "succeeded"),
    ]
    offload.tale.row(offload.job, result={"run": str(offload.run), "offload": f"{offload.name}.2"})

    assert offload.violated_rules() == set()


@pytest.mark.parametrize("change", [{"had_intent": False}, {"name": f"dl-{uuid4()}-1"}])
def test_offload_that_was_started_without_its_intent(offload, change):
    offload.executions.append(offload.execution(**{"name": offload.name, "state": "succeeded", **change}))

    assert offload.violated_rules() == {"offload without intent"}


def test_offload_that_was_executed_again(offload):
    offload.executions = [offload.execution(offload.name, "succeeded", starts=2)]
    assert offload.violated_rules() == {"offload executed again"}

    offload.executions = [
        offload.execution(offload.name, "stopped"),
        offload.execution(f"{offload.name}.2", "succeeded"),
    ]
    offload.rows = [offload.row(1, "stopped"), offload.row(2, "succeeded")]
    offload.tale.row(offload.job, result={"run": str(offload.run), "offload": f"{offload.name}.2"})
    assert offload.violated_rules() == {"offload executed again"}


def test_offload_result_that_is_not_that_of_the_work(offload):
    offload.executions = [offload.execution(offload.name, "failed")]
    assert offload.violated_rules() == {"wrong offload result"}

    offload.tale.row(offload.job, result={"run": str(offload.run)})
    assert offload.violated_rules() == {"wrong offload result"}

    offload.rows, offload.executions = [], []
    assert offload.violated_rules() == {"wrong offload result"}


@pytest.mark.parametrize("is_open", [True, False])
def test_offload_that_is_left(offload, is_open):
    if is_open:
        offload.rows.append(offload.row(2, None))
    else:
        offload.executions = [offload.execution(offload.name, "running")]

    assert "offload left running" in offload.violated_rules()
