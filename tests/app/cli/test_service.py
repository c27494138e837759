"""The door to what runs in this process; what is behind it is tried by the tests of its own room."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dataloader.app import runtime
from dataloader.app.config import QueueWorkers, docs
from dataloader.app.db.schema import Migration
from dataloader.app.errors import DatabaseUnavailable, EmbeddedServerError, SchemaTooNew
from dataloader.app.runtime.startup import Startup
from dataloader.pipelines import contract


@dataclass
class Wiring:
    """What the commands called, and what they get for it."""

    calls: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    answer: Any = 0

    def _called(self, name: str, settings: Any, **options: Any) -> Any:
        self.calls.append((name, settings, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        if "banner" in options:
            options["banner"](Startup("the database of this test"))
        return self.answer


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Wiring:
    """In place of what puts the service together."""
    wired, module = Wiring(), ModuleType("dataloader.app.runtime.commands")
    for name in ("serve", "run_worker", "migrate"):
        setattr(module, name, lambda settings, _name=name, **options: wired._called(_name, settings, **options))
    module.preview_held_retention = lambda settings: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dataloader.app.runtime.commands", module)
    monkeypatch.setattr(runtime, "commands", module, raising=False)
    return wired


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The defaults: no variable of this shell, no .env of this folder."""
    monkeypatch.chdir(tmp_path)
    for variable in ("APP_HOST", "APP_PORT", "WORKERS_JSON", "DL_DB_DSN", "PG_HOST", "DL_PIPELINES"):
        monkeypatch.delenv(variable, raising=False)


def test_serve_wires_the_service_with_what_the_command_line_says(run, wiring, monkeypatch):
    monkeypatch.setenv("APP_PORT", "1")

    shown = run("serve", "--host", "0.0.0.0", "--port", "9000", "--no-workers")

    ((name, settings, options),) = wiring.calls
    assert (name, settings.app_host, settings.app_port, options["workers"]) == ("serve", "0.0.0.0", 9000, False)
    assert "http://127.0.0.1:9000" in shown.stdout
    assert "the database of this test" in shown.stdout


def test_serve_leaves_the_settings_as_they_are_without_options(run, wiring, monkeypatch):
    monkeypatch.setenv("APP_PORT", "8123")

    run("serve")

    ((_, settings, options),) = wiring.calls
    assert (settings.app_host, settings.app_port, options["workers"]) == ("127.0.0.1", 8123, True)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_exit_code_is_that_of_what_ran(run, wiring, command):
    wiring.answer = 83

    assert run(command).exit_code == 83


def test_worker_takes_queues_one_by_one_or_as_json(run, wiring):
    run("worker", "--queue", "a:1", "--queue", "b:c:3")
    shown = run("worker", "--workers-json", '[{"queue":"q","concurrency":4}]')
    run("worker")

    assert [settings.workers for _, settings, _ in wiring.calls] == [
        (QueueWorkers("a", 1), QueueWorkers("b:c", 3)),
        (QueueWorkers("q", 4),),
        (QueueWorkers("etl.default", 2),),
    ]
    assert "q × 4 threads" in shown.stdout


def test_worker_takes_labels_on_the_command_line(run, wiring, monkeypatch):
    monkeypatch.setenv("WORKERS_JSON", '[{"queue": "a", "concurrency": 1, "labels": {"gpu": true}}]')
    run("worker")
    run("worker", "--label", "spot=true", "--label", "zone=north", "--label", "big")
    wrong = run("worker", "--label", "No")

    assert [settings.worker_labels for _, settings, _ in wiring.calls] == [
        {"gpu": True},
        {"spot": True, "zone": "north", "big": True},
    ]
    assert (wrong.exit_code, "a label has 1 to 63" in wrong.stderr) == (2, True)
    assert run("worker", "--label", "gpu=").exit_code == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("--queue", "a"),
        ("--queue", ":1"),
        ("--queue", "a:0"),
        ("--queue", "a:1", "--queue", "a:2"),
        ("--workers-json", "{}"),
        ("--queue", "a:1", "--workers-json", "[]"),
    ],
    ids=" ".join,
)
def test_queues_that_cannot_be_are_a_mistake_in_usage(run, wiring, wrong):
    shown = run("worker", *wrong)

    assert shown.exit_code == 2
    assert "--queue" in shown.stderr or "--workers-json" in shown.stderr
    assert wiring.calls == []


def test_migrate_says_what_it_found_and_did(run, wiring):
    wiring.answer = Migration("s", None, 3, ("created the tables", "added run_id"))
    fresh = run("migrate")
    wiring.answer = Migration("s", 3, 3, ())
    again = run("migrate")
    wiring.answer = Migration("s", 2, 3, ())
    upgraded = run("migrate")

    assert fresh.stdout.splitlines() == [
        "Found no tables; the tables are now at version 3.",
        "  created the tables",
        "  added run_id",
    ]
    assert "nothing to do" in again.stdout
    assert upgraded.stdout == "Found version 2; the tables are now at version 3.\n"


def test_migrate_answers_in_json(run, wiring):
    wiring.answer = Migration("s", 1, 3, ("a step",))

    assert json.loads(run("migrate", "--json").stdout) == {"version_before": 1, "version_after": 3, "steps": ["a step"]}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SchemaTooNew("version 9 is newer than 3; upgrade dataloader"), 65),
        (DatabaseUnavailable("no answer from db:5432"), 69),
        (EmbeddedServerError("no binaries were found"), 71),
    ],
    ids=lambda value: type(value).__name__,
)
def test_start_error_is_reported_without_traceback(run, wiring, error, code):
    wiring.answer = error

    shown = run("migrate")
    as_json = run("migrate", "--json")

    assert shown.exit_code == as_json.exit_code == code
    assert shown.stderr.startswith(f"Error: {error}")
    assert json.loads(as_json.stderr)["detail"] == str(error)


@pytest.mark.parametrize("command", ["serve", "worker", "migrate", "config", "tasks"])
def test_all_setting_errors_are_reported_together(run, wiring, monkeypatch, command):
    monkeypatch.setenv("APP_PORT", "many")
    monkeypatch.setenv("WORKERS_JSON", "none")

    shown = run(command)

    assert shown.exit_code == 78
    assert "APP_PORT" in shown.stderr
    assert "WORKERS_JSON" in shown.stderr
    assert wiring.calls == []


def test_config_shows_settings_with_source_and_no_secret(run, monkeypatch):
    monkeypatch.setenv("DL_DB_DSN", "postgresql://me:hunter2@db/etl")

    shown, result = run("config"), json.loads(run("config", "--json").stdout)["settings"]

    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "environment" in lines["DL_DB_DSN"]
    assert "default" in lines["APP_PORT"]
    assert "hunter2" not in shown.stdout + json.dumps(result)
    assert {knob["variable"] for knob in result} == lines.keys() - {"variable"}


def test_config_points_out_what_is_probably_not_meant(run, monkeypatch):
    monkeypatch.setenv("DL_DB_DSN", "postgresql://me@db/etl")
    monkeypatch.setenv("PG_HOST", "other")

    assert "DL_DB_DSN wins" in run("config").stderr


def test_config_docs_is_the_page_about_settings(run, monkeypatch):
    monkeypatch.setenv("APP_PORT", "many")  # the page describes what could be, whatever is

    assert run("config", "--docs").stdout == docs.configuration_page()


@pytest.fixture
def company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of someone's own, with one good module and one bad."""
    package = tmp_path / "company_loads"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "good.py").write_text(
        "from dataloader.pipelines.contract import register\n\n@register('company.good')\ndef f(a): ...\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder it is in
    monkeypatch.setattr(contract.registry, "_tasks", {})  # what is registered here is forgotten afterwards
    monkeypatch.setenv("DL_PIPELINES", package.name)
    yield package
    for name in [name for name in sys.modules if name.startswith("company_loads")]:
        del sys.modules[name]


def test_tasks_lists_what_the_packages_register(run, company):
    shown, result = run("tasks"), json.loads(run("tasks", "--json").stdout)

    assert shown.exit_code == 0
    assert "company.good" in shown.stdout
    module = "company_loads.good"
    assert {"task": "company.good", "kind": "function", "module": module, "requires": {}, "python": None} in result[
        "tasks"
    ]


def test_tasks_shows_interpreter_of_a_task(run, company):
    (company / "good.py").write_text(
        "from dataloader.pipelines.contract import register\n\n\n"
        "@register('company.old', python='/srv/old/bin/python', isolation='process')\n"
        "def old(args): ...\n"
    )

    shown, result = run("tasks"), json.loads(run("tasks", "--json").stdout)

    assert "/srv/old/bin/python" in shown.stdout
    assert [task["python"] for task in result["tasks"] if task["task"] == "company.old"] == ["/srv/old/bin/python"]


def test_packages_without_tasks_are_an_empty_list(run, company):
    (company / "good.py").unlink()

    shown = run("tasks")

    assert (shown.exit_code, shown.stdout) == (0, "")


def test_failed_import_is_shown_with_module_and_error(run, company):
    (company / "bad.py").write_text("import no_such_module_anywhere\n")

    shown, as_json = run("tasks"), run("tasks", "--json")

    assert shown.exit_code == as_json.exit_code == 1
    assert "company_loads.bad cannot be imported" in shown.stderr
    assert "no_such_module_anywhere" in json.loads(as_json.stdout)["failures"]["company_loads.bad"]
