"""What the page for newcomers promises: before and after for each system, and every after works."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from types import ModuleType

import pytest

from dataloader.app.config import load_settings
from dataloader.pipelines import contract
from dataloader.pipelines.contract import Checkpoint, Pipelines, TaskKind, load_tasks
from dataloader.pipelines.retry import Table
from dataloader.pipelines.schedule_definition import definition_from, scheduled_job
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
SYSTEMS = {part.partition("\n")[0]: part for part in PAGE.split("\n## From ")[1:]}


def blocks(text: str, language: str) -> list[str]:
    return [part.partition("\n```")[0] for part in text.split(f"```{language}\n")[1:]]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    """What the page registers, and what its settings do; forgotten afterwards."""
    monkeypatch.setattr(contract.registry, "_tasks", {})
    company = ModuleType("company.reports")
    company.build_report = lambda customer_id, kind: (customer_id, kind)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "company", ModuleType("company"))
    monkeypatch.setitem(sys.modules, "company.reports", company)
    # As a module, since annotations are looked up in the one that their function is from.
    module = ModuleType("migrated")
    monkeypatch.setitem(sys.modules, "migrated", module)
    exec(compile("\n".join(blocks(PAGE, "python")), "docs/migrating.md", "exec"), vars(module))  # noqa: S102 - our own
    for result in blocks(PAGE, "json"):
        settings = load_settings({"DL_TASKS": result}, dotenv=None)
        assert load_tasks([], settings.tasks) == {}
    return contract.registry


def test_each_system_has_a_before_and_an_after():
    assert list(SYSTEMS) == ["cron", "Celery", "RQ", "Airflow"]
    for part in SYSTEMS.values():
        assert "# before" in part
        assert blocks(part, "python")


def test_every_task_of_the_page_is_registered(known):
    assert known.names == (
        "customer.load", "customer.notify", "report.build", "report.daily", "report.of_day", "sales",
    )  # fmt: skip


class Told:
    """A context that remembers."""

    resume: str | None = None

    def __init__(self):
        self.enqueued: list[tuple[str, dict[str, object]]] = []
        self.steps = 0

    def check(self): ...

    def progress(self, *_, **__):
        self.steps += 1

    def enqueue(self, task, args):
        self.enqueued.append((task, args))


def test_the_script_of_cron_runs_with_its_date_and_nothing_else(known):
    task = known.get("report.daily")

    assert task.kind is TaskKind.COMMAND
    assert task.command_line({"date": "2030-01-31"})[1:] == ("report.py", "--date", "2030-01-31")
    assert task.options.retry == Table((60, 300, 1800))
    assert {where for where, _ in task.check_args({"date": "--help", "more": 1})} == {"more", "date"}


def test_the_function_of_cron_gets_its_model(known):
    ctx = Told()

    assert known.get("report.of_day").start({"date": "2030-01-31"}, ctx) == {"regions": 2}
    assert ctx.steps == 2


def test_the_task_of_celery_is_spread_keyed_and_followed_up(known):
    task, ctx = known.get("customer.load"), Told()

    task.start({"customer_id": 7, "full": True}, ctx)

    assert ctx.steps == 2
    assert ctx.enqueued == [("customer.notify", {"customer_id": 7})]
    assert known.get("customer.notify").fill_lock_key(ctx.enqueued[0][1]) == "notify:7"
    assert task.fill_lock_key({"customer_id": 7}) == "customer:7"


def test_function_of_rq_is_called_unchanged(known):
    assert known.get("report.build").start({"customer_id": 7, "kind": "full"}, None) == (7, "full")


def test_the_steps_of_airflow_go_on_from_the_last_one(known):
    first, again = Told(), Told()
    again.resume = "extracted"

    assert list(known.get("sales").start({"date": "2030-01-31"}, first)) == [Checkpoint("extracted")]
    assert list(known.get("sales").start({"date": "2030-01-31"}, again)) == []
    task, args = first.enqueued[0]
    assert known.get(task).check_args(args) == []


def test_the_schedules_of_the_page_make_jobs(known):
    """That of code, and that of the command line."""
    (declared,) = known.declared_schedules()
    create = next(block for block in blocks(PAGE, "sh") if "schedules create" in block)
    words = shlex.split(create.partition("dataloader schedules preview")[0].partition("dataloader ")[2])
    values = {"task": "report.daily", "expression": words[words.index("--cron") + 1], "zone": "Europe/Moscow"}
    by_hand = values | {"args": json.loads(words[words.index("--args") + 1])}
    jobs = {}
    for name, given in ((declared["name"], declared["definition"] | {"task": "sales"}), ("report.daily", by_hand)):
        task = known.get(given["task"])
        partitions = task.options.partitions and {"partitions": task.options.partitions.to_json()}
        definition = definition_from({**given, **(partitions or {})}, zone="UTC")
        timing = definition.timing
        assert timing is not None
        following = timing.next_after(datetime(2026, 1, 31, tzinfo=UTC))
        assert following is not None
        fire_at = following.at
        jobs[name] = scheduled_job(name, "", definition, fire_at, task, default_lease_sec=60)

    assert jobs["sales"]["args"] == {"date": "2026-01-30"}
    assert jobs["sales"]["partition_key"] == "2026-01-30"
    assert jobs["sales"]["max_attempts"] == 4
    assert jobs["report.daily"]["args"] == {"date": "2026-02-02"}, "the first Monday"


def test_the_settings_of_the_page_are_json():
    assert [list(json.loads(result)) for result in blocks(PAGE, "json")] == [["report.daily"], ["report.build"]]
