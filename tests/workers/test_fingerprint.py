"""The fingerprint of an error: stable over edits, and different for different places."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import Pipelines, registry
from dataloader.pipelines.task import task_from_callable
from dataloader.workers.fingerprint import fingerprint
from tests.support import isolated_tasks  # noqa: F401 - registers them
from tests.support.claimed_jobs import attempt_with

INSTALLED = "/venv/lib/python3.12/site-packages/etl/sales.py"
SOURCE = """
import json

def parse(text):
    return json.loads(text)

def look_up(rows):
    return [rows[name] for name in ("id",)]

def load(text):
    try:
        return look_up(parse(text))
    except KeyError as error:
        raise LookupError("no id") from error

def clean_up(text):
    try:
        load(text)
    finally:
        {}["gone"]
"""


def failing(name: str, text: str, *, path: str = "/srv/etl/sales.py", before: str = "") -> Exception:
    namespace: dict[str, Any] = {"__name__": "etl.sales"}
    exec(compile(before + SOURCE, path, "exec"), namespace)  # noqa: S102 - a file of an author
    error = error_of(lambda: namespace[name](text))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def error_of(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_class_and_innermost_own_function_below_which_a_library_failed():
    assert fingerprint(failing("parse", "{")) == "JSONDecodeError sales.py:parse"
    assert fingerprint(failing("load", "{")) == "JSONDecodeError sales.py:parse"
    assert fingerprint(failing("look_up", "")) == "TypeError sales.py:look_up"


def test_it_is_the_same_after_lines_and_the_message_have_changed():
    here = failing("parse", "{", before="# a comment\n" * 40)

    assert fingerprint(here) == fingerprint(failing("parse", "[1, x"))


def test_another_function_or_class_has_another_one():
    fingerprints = {
        fingerprint(failing("parse", "{")),
        fingerprint(failing("look_up", "")),
        fingerprint(failing("load", "{}")),
        fingerprint(failing("parse", "{", path="/srv/etl/orders.py")),
    }

    assert len(fingerprints) == 4


def test_error_raised_from_another_or_in_a_clean_up_is_the_outer_one():
    assert fingerprint(failing("load", "{}")) == "LookupError sales.py:load"
    assert fingerprint(failing("clean_up", "{}")) == "KeyError sales.py:clean_up"


def test_exception_group_has_the_same_one_in_any_order():
    errors = [failing("parse", "{"), failing("look_up", "")]
    there, back = ExceptionGroup("two", errors), ExceptionGroup("two", [ExceptionGroup("inner", errors[::-1])])

    assert fingerprint(there) == fingerprint(back) == "JSONDecodeError sales.py:parse"


def test_deeply_nested_group_has_one():
    error: Exception = failing("parse", "{")
    for _ in range(5_000):
        error = ExceptionGroup("outer", [error])

    assert fingerprint(error) == "JSONDecodeError sales.py:parse"


def test_concurrent_coroutines_that_fail_have_their_own_function():
    async def fetch() -> None:
        raise OSError("gone")

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch())

    assert fingerprint(error_of(lambda: asyncio.run(run()))) == "OSError test_fingerprint.py:fetch"


def test_without_own_code_it_is_the_class_alone():
    assert fingerprint(RuntimeError("never raised")) == "RuntimeError"
    assert fingerprint(failing("parse", "{", path=INSTALLED)) == "JSONDecodeError"


def test_installed_package_of_the_task_is_its_own_code():
    error = failing("parse", "{", path=INSTALLED)

    assert fingerprint(error, "etl.jobs.daily") == "JSONDecodeError sales.py:parse"


def test_attempt_that_fails_writes_it_and_a_retry_clears_it(worker_pools):
    worker_pools.pool()
    job_id = worker_pools.add_job("broken", max_attempts=1)
    job = worker_pools.wait_for_status(job_id, Status.FAILED)

    assert job.error_fingerprint == "ValueError worker_pool_fixture.py:_run_broken"
    for pool in worker_pools.pools:
        pool.stop(grace=10)
    worker_pools.queue_fixture.queue.retry(job_id)
    assert worker_pools.queue_fixture.job(job_id).error_fingerprint is None


def test_library_that_is_imported_is_not_own_code():
    assert fingerprint(error_of(lambda: json.loads("{"))) == "JSONDecodeError test_fingerprint.py:<lambda>"


@pytest.mark.parametrize(
    ("task", "args", "expected"),
    [
        ("apart.steps", {}, "ValueError isolated_tasks.py:yield_steps"),
        ("apart.raises", {"what": "fail"}, "Fail isolated_tasks.py:raise_error"),
        ("apart.dies", {"how": "kill"}, "killed by SIGKILL"),
    ],
)
def test_process_of_its_own_reports_it(task, args, expected):
    attempt = attempt_with(
        None,
        settings={"packages": ("tests.support.isolated_tasks",)},
        task=task,
        args_text=json.dumps(args),
        max_attempts=3,
    )
    outcome = attempt.run(registry.get(task))

    assert isinstance(outcome, Settlement)
    assert outcome.error_fingerprint == expected


def test_command_has_its_exit_code(worker_pools):
    tasks = Pipelines()
    tasks.command("program", [sys.executable, "-c", "import sys; sys.exit(3)"])
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program", max_attempts=1), Status.FAILED)

    assert job.error_fingerprint == "exit code 3"


def test_attempt_that_cannot_start_has_a_fixed_one():
    outcome = attempt_with(None, settings={}, task="t", args_text="[1]").run(task_from_callable("t", print))

    assert isinstance(outcome, Settlement)
    assert outcome.error_fingerprint == "refused"
