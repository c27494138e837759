"""Tasks with an interpreter of their own: old Pythons, packages that conflict with ours, and nothing of ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status
from dataloader.pipelines.contract import Pipelines, StopReason, load_tasks
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.isolation.interpreter import MIN_VERSION, STANDALONE_PROGRAM
from dataloader.workers.outcome import Outcome
from dataloader.workers.reports.secrets import SecretStore
from dataloader.workers.testing import drain
from tests.support import eventually, graph_tasks
from tests.support.claimed_jobs import CapturedLines, attempt_with
from tests.support.real_service import is_alive
from tests.workers.isolation.old_project import INTERPRETERS, LEGACY, OLDEST

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("legacy")
    (made / "app").mkdir()
    (made / "app/__init__.py").touch()
    (made / "app/loads.py").write_text(LEGACY, encoding="utf-8")
    return made


@pytest.fixture
def logged() -> CapturedLines:
    return CapturedLines()


def task_of(folder: Path, call: str, python: str = OLDEST, **options: Any) -> Pipelines:
    known = Pipelines()
    definition = {"call": f"app.loads:{call}", "python": python, "cwd": str(folder), **options}
    assert load_tasks((), {"t": definition}, known_tasks=known) == {}
    return known


def run(
    folder: Path, call: str, args: dict[str, Any], logged: CapturedLines | None = None, *, python: str = OLDEST,
    options: dict[str, Any] | None = None, **row: Any,
) -> tuple[Attempt, Outcome]:  # fmt: skip
    attempt = attempt_with(logged, task="t", args_text=json.dumps(args), **row)
    return attempt, attempt.run(task_of(folder, call, python, **(options or {})).get("t"))


def settled(*arguments: Any, **more: Any) -> Settlement:
    _, outcome = run(*arguments, **more)
    assert isinstance(outcome, Settlement), outcome
    return outcome


def portable_modules() -> dict[str, Path]:
    """The modules of ours that another interpreter loads, by name."""
    code = (
        "import json, sys\n"
        f"sys.argv, path = ['', '-1'], {STANDALONE_PROGRAM!r}\n"
        "import runpy; namespace = runpy.run_path(path)\n"
        "namespace['provide_packages']()\n"
        "import dataloader.workers.isolation.standalone_context\n"
        "ours = {n: getattr(m, '__file__', None) for n, m in sys.modules.items() if n.startswith('dataloader.')}\n"
        "print(json.dumps({name: path for name, path in ours.items() if path}))\n"
    )
    found = json.loads(subprocess.run([OLDEST, "-c", code], capture_output=True, check=True, timeout=60).stdout)
    return {name: Path(path) for name, path in found.items()}


def test_portable_modules_are_marked_and_written_for_the_oldest_python():
    modules = portable_modules()
    marked = {
        f"dataloader.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}"
        for top in ("pipelines", "workers")
        for path in (ROOT / top).rglob("*.py")
        if (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .partition("\n")[0]
        .endswith("Portable.")
    }

    assert {*modules} == {*marked, "dataloader.pipelines.portable"}
    for path in (*modules.values(), Path(STANDALONE_PROGRAM)):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=MIN_VERSION)


@pytest.mark.parametrize("python", INTERPRETERS.values(), ids=INTERPRETERS)
def test_task_has_context_logs_and_result(folder, logged, python, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/ours")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    attempt, outcome = run(folder, "load", {"day": "Monday"}, logged, python=python, partition_key="p")

    assert isinstance(outcome, Settlement), outcome
    assert outcome.status is Status.SUCCEEDED, outcome.traceback
    result = dict(outcome.result)
    assert result.pop("PGAPPNAME").startswith("dataloader:")
    assert result.pop("version")[0] == 3
    assert result == {
        "file": str(folder / "app/loads.py"), "attempt": 1, "task": "t", "partition": "p", "start": None,
        "modules": [], "VIRTUAL_ENV": None,
    }  # fmt: skip
    assert attempt.reported.progress == {
        "processed": 1, "total": 2, "unit": "days", "stage": "x", "counts": {"rows": 7},
        "links": {"report": "https://example.org/1"},
    }  # fmt: skip
    assert outcome.reports is not None
    assert [use["dataset"] for use in outcome.reports.datasets] == ["sales"]
    assert [check["outcome"] for check in outcome.reports.checks] == ["passed"]
    assert logged.texts_of("stdout") == ["printed Monday"]
    assert logged.texts_of("stderr") == ["complained"]
    assert [(level, text) for level, stream, text in logged.lines if stream == "log"] == [
        ("WARNING", "warned 1"),
        ("INFO", 'loaded rows=3 table="a b"'),
        ("INFO", "check.passed check=rows value=7.0 detail=null"),
    ]


def test_four_kinds_and_ways_to_call(folder):
    assert settled(folder, "spread", {"first": 1}, options={"spread": True}).result == [1, "2"]
    assert settled(folder, "steps", {}).result == {"began_at": 4}
    attempt, _ = run(folder, "agenerator", {})
    assert attempt.reported.progress == {"processed": 2}
    assert settled(folder, "coroutine", {"seconds": 0}).result == "slept"
    exited = settled(folder, "main", {"day": 1}, options={"argv": ["--day", "{day}"]}, max_attempts=1)
    assert (exited.status, exited.error) == (Status.FAILED, "SystemExit: 3")


def test_next_attempt_resumes_at_the_checkpoint(folder):
    attempt, outcome = run(folder, "steps", {"fail_at": 1})

    assert isinstance(outcome, Settlement)
    assert (outcome.status, outcome.error, outcome.checkpoint) == (Status.QUEUED, "ValueError: stumbled", 2)
    assert outcome.error_fingerprint == "ValueError loads.py:steps"
    assert attempt.reported.checkpoint == 2
    assert settled(folder, "steps", {}, checkpoint_text="3").result == {"began_at": 4}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("fail", "Fail: no use"),
        ("connect", "NotAvailable: ctx.connect is not available in a task with an interpreter of its own; open"),
        ("transaction", "NotAvailable: ctx.transaction is not available"),
        ("offload", "NotAvailable: ctx.offload is not available"),
        ("limits", "Fail: the check 'rows' failed"),
    ],
)
def test_permanent_errors_fail_the_job(folder, kind, error):
    outcome = settled(folder, "raises", {"kind": kind})

    assert outcome.status is Status.FAILED
    assert (outcome.error or "").startswith(error)


@pytest.mark.parametrize(
    ("kind", "rules", "expected"),
    [
        ("snooze", {}, (30.0, True)),
        ("other", {"KeyError": 60}, (60.0, True)),
        ("exit", {}, (30.0, False)),
        ("produced", {}, (30.0, False)),
        ("checkpoint", {}, (30.0, False)),
    ],
)
def test_errors_are_retried_by_the_rules(folder, kind, rules, expected):
    outcome = settled(folder, "raises", {"kind": kind}, options={"rules": rules} if rules else {})

    assert outcome.status is Status.QUEUED
    assert (outcome.retry_in_sec, outcome.refund_attempt) == expected


def test_rule_by_name_and_last_attempt_fail(folder):
    args, options = {"kind": "other"}, {"no_retry": ["builtins.LookupError"]}

    assert settled(folder, "raises", args, options=options).status is Status.FAILED
    assert settled(folder, "raises", args, attempt=3, max_attempts=3).status is Status.FAILED


def test_rows_are_no_progress_and_wait_releases(folder):
    _, waiting = run(folder, "raises", {"kind": "wait"})

    assert (settled(folder, "rows", {}).error or "").startswith("NotProgress: the pipeline has yielded a dict")
    assert isinstance(waiting, Released)
    assert (waiting.reason, waiting.checkpoint, len(waiting.awaited)) == (ReleaseReason.WAITS, "cursor", 1)


def test_stop_time_is_known_in_another_interpreter(folder):
    attempt = attempt_with(task="t")
    attempt.stop_signal.stops_at = clock() + 30

    outcome = attempt.run(task_of(folder, "curious").get("t"))

    assert isinstance(outcome, Settlement)
    assert 10 < outcome.result <= 30


@pytest.mark.parametrize(
    ("how", "call", "step"),
    [("sleep", "waits", "request"), ("block", "waits", "sigterm"), ("", "coroutine", "request")],
)
def test_stop_ends_the_process(folder, logged, how, call, step):
    # On a busy machine a process may need longer than a short step to end.
    steps = {"stop_step_sec": 30.0 if step == "request" else 0.3}
    attempt = attempt_with(logged, settings=steps, task="t", args_text=json.dumps({"how": how, "seconds": 60}))
    ends: list[Outcome] = []
    task = task_of(folder, call).get("t")
    thread = threading.Thread(target=lambda: ends.append(attempt.run(task)))
    thread.start()
    if how:
        eventually(lambda: "begun" in logged.texts_of("stdout"))
    attempt.stop(StopReason.CANCEL)
    thread.join(60)

    (outcome,) = ends
    assert isinstance(outcome, Settlement)
    assert outcome.status is Status.CANCELED
    assert dict(outcome.event_fields or {})["stopped_by"] == step
    assert (logged.texts_of("stdout")[-1:] == ["stopped by cancel"]) == (how == "sleep")


def test_module_that_is_missing_is_named(folder):
    known = Pipelines()
    known.call("t", "nowhere.loads:load", python=OLDEST)
    outcome = attempt_with(task="t").run(known.get("t"))

    assert isinstance(outcome, Settlement)
    assert outcome.error == "ModuleNotFoundError: No module named 'nowhere'"


def test_name_that_is_missing_in_other_interpreter_is_named(tmp_path):
    (tmp_path / "embeds.py").write_text("from dataloader import Workers\n", encoding="utf-8")
    known = Pipelines()
    known.call("t", "embeds:load", python=OLDEST, cwd=str(tmp_path))
    outcome = attempt_with(task="t").run(known.get("t"))

    assert isinstance(outcome, Settlement)
    assert outcome.error is not None
    assert outcome.error.startswith("ImportError: cannot import name 'Workers' from 'dataloader'")


def test_decorated_function_is_imported_by_both(tmp_path, monkeypatch):
    (tmp_path / "both_sides.py").write_text(
        "import sys\nfrom dataloader import Args, Breaker, Context, Daily, Exponential, Fixed, Handle, Hourly, Linear\n"
        "from dataloader import Listed, Monthly, Table, Weekly, register, registry, schedule\n\n"
        "schedule(every=60)(registry.command('t.program', ['true']))\n"
        f"@register('t', python={OLDEST!r}, isolation='process', partitions=Daily('2030-01-01'), retry=Exponential())\n"
        "def load(args: Args, ctx: Context = None):\n    return [sys.executable, __name__]\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    import both_sides  # type: ignore[import-not-found]

    from dataloader.pipelines.contract import registry

    try:
        outcome = attempt_with(task="t").run(registry.get("t"))
    finally:
        registry._tasks.pop("t")
        registry._tasks.pop("t.program")

    assert both_sides.load({})[0] == sys.executable
    assert isinstance(outcome, Settlement)
    assert outcome.result is not None, outcome.traceback
    assert Path(outcome.result[0]).resolve() == Path(OLDEST).resolve()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose pydantic is a major version behind ours."""
    made = tmp_path_factory.mktemp("environment")
    subprocess.run([OLDEST, "-m", "venv", made], check=True, timeout=100)
    pip = [str(made / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", "pydantic>=1.10,<2"]
    subprocess.run(pip, check=True, timeout=100)
    return made


@pytest.mark.full
def test_packages_that_conflict_with_ours_are_used(environment, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__init__.py").write_text(
        "import os, sys, pydantic\n\n"
        "class Row(pydantic.BaseModel):\n    n: int\n\n"
        "def load(args, ctx):\n"
        "    row = Row.parse_obj(args)\n"
        "    return {'pydantic': pydantic.VERSION, 'row': row.dict(), 'prefix': sys.prefix, 'pid': os.getpid()}\n",
        encoding="utf-8",
    )
    known = Pipelines()
    known.call("t", "app:load", python=str(environment / "bin/python"), cwd=str(tmp_path))
    outcome = attempt_with(task="t", args_text='{"n": "5"}').run(known.get("t"))

    assert isinstance(outcome, Settlement)
    assert outcome.result is not None, outcome.traceback
    assert outcome.result["pydantic"].startswith("1.")
    assert outcome.result["row"] == {"n": 5}
    assert outcome.result["prefix"] == str(environment)
    assert not is_alive(outcome.result["pid"])


def test_project_with_a_package_app_uses_its_own_environment(tmp_path):
    """Also if dataloader is installed there: `app` is the project's, `Client` and `enqueue` are dataloader's."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__init__.py").write_text(
        "def load(args, ctx):\n"
        "    import dataloader._address\n"
        "    from dataloader import Client, Conflict, Context, Fail, enqueue\n"
        "    assert isinstance(ctx, Context) and issubclass(Conflict, Exception)\n"
        "    return [__file__, Client.__module__, enqueue.__module__, hasattr(dataloader, 'nothing_else')]\n",
        encoding="utf-8",
    )
    known = Pipelines()
    known.call("t", "app:load", python=sys.executable, cwd=str(tmp_path))
    outcome = attempt_with(task="t").run(known.get("t"))

    assert isinstance(outcome, Settlement)
    assert outcome.result == [str(tmp_path / "app/__init__.py"), "dataloader.client", "dataloader._enqueue", False]


def test_secrets_reach_the_task_and_nothing_else(folder, logged):
    store = SecretStore({"DL_SECRET_PARTNER": "hunter2-hunter2"})
    known = task_of(folder, "echo")
    args = json.dumps({"password": {"$secret": "partner"}})
    attempt = attempt_with(logged, task="t", args_text=args, settings={"secret_store": store})
    outcome = attempt.run(known.get("t"))

    assert isinstance(outcome, Settlement)
    assert outcome.result == {"length": 15, "echo": "***"}
    assert attempt.reported.progress == {"message": "***", "links": {"x": "https://example.org/***"}}


def test_job_runs_by_a_real_worker(worker_pools, folder):
    worker_pools.pool(pipelines=task_of(folder, "load"))
    job = worker_pools.wait_for_status(worker_pools.add_job("t", args={"day": 1}), Status.SUCCEEDED)

    assert job.progress["counts"] == {"rows": 7}
    (done,) = worker_pools.event_payloads(job.id, "done")
    assert done["exit_code"] == 0
    lines = eventually(lambda: worker_pools.queue_fixture.sql("SELECT line FROM dl_job_logs WHERE stream = 'stdout'"))
    assert lines == [("printed 1",)]


def test_drain_starts_the_interpreter_too(worker_pools, folder):
    job_id = worker_pools.add_job("t", args={"seconds": 0})

    (job,) = drain(worker_pools.dsn, task_of(folder, "coroutine"), ["q"])

    assert (job.id, job.result) == (job_id, "slept")


@pytest.mark.parametrize("python", INTERPRETERS.values(), ids=INTERPRETERS)
def test_child_asks_worker_for_parents_rates_and_jobs(worker_pools, folder, python):
    queue_db = worker_pools.queue_fixture
    Limits(queue_db.session).set("partner-api", rate=5, per_sec=1)
    tasks = task_of(folder, "asks", python)
    tasks.register("extract")(graph_tasks.extract)
    job = {"queue": "q", "lock_key": "a"}
    graph = {"jobs": [{**job, "key": "extract", "task": "extract", "args": {"rows": 3}},
                      {**job, "key": "t", "task": "t", "lock_key": "b", "after": [{"job": "extract"}]}]}  # fmt: skip
    ids = dict(queue_db.sql("SELECT key, job_id FROM dl_enqueue_graph(%s)", json.dumps(graph)))

    drain(worker_pools.dsn, tasks, ["q"])

    asked = queue_db.job(ids["t"])
    assert asked.status is Status.SUCCEEDED, asked.traceback or asked.error
    result = dict(asked.result)
    assert "colour" in result.pop("refused")
    follow_up, last = (queue_db.job(UUID(result.pop(name))) for name in ("job", "last"))
    assert result == {"rows": 3, "status": "succeeded", "waited": True, "jobs": 2}
    assert (follow_up.queue, follow_up.available_at) == ("other", datetime(2030, 1, 31, tzinfo=UTC))
    assert last.task == "whole"
    assert queue_db.sql("SELECT wait_state::text FROM dl_jobs WHERE job_id = %s", str(last.id)) == [("waiting",)]
    assert queue_db.sql("SELECT name FROM dl_checks WHERE job_id = %s", str(asked.id)) == [("rows",)]


def test_request_that_is_too_long_is_an_error_of_the_task(worker_pools, folder):
    """The worker would cut it in pieces, and send no reply."""
    job_id = worker_pools.add_job("t", args={})

    drain(worker_pools.dsn, task_of(folder, "long_request"), ["q"])

    job = worker_pools.queue_fixture.job(job_id)
    assert job.status is Status.SUCCEEDED, job.traceback or job.error
    assert "at most" in job.result
