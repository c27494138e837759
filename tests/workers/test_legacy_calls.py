"""Callables of DL_TASKS and programs that know nothing of this project."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name
from dataloader.app.queue.job import Job, Settlement, Status
from dataloader.pipelines.contract import Fail, Pipelines, load_tasks
from dataloader.workers.pool import WorkerPool
from tests.support.claimed_jobs import CapturedLines, attempt_with
from tests.support.processes import free_port
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

pytestmark = pytest.mark.usefixtures("start_method")
MODULE = "tests.support.legacy_main"
INTERVAL = "client_connection_check_interval"
SHOW = "import os; print(os.environ.get('PGAPPNAME'), os.environ.get('PGOPTIONS'), os.environ.get('PGHOST'))"


def pool_with(worker_pools: WorkerPoolFixture, tasks: dict[str, Any], **options: Any) -> WorkerPool:
    known = Pipelines()
    assert load_tasks([], tasks, known_tasks=known) == {}
    return worker_pools.pool(pipelines=known, tasks=tasks, **({"stop_step_sec": 0.3} | options))


def ended(worker_pools: WorkerPoolFixture, task: str, status: Status = Status.SUCCEEDED, **args: Any) -> Job:
    return worker_pools.wait_for_status(worker_pools.add_job(task, args=args, max_attempts=1), status)


@pytest.mark.parametrize(("check", "interval"), [(True, "500ms"), (False, "0")])
def test_own_connection_carries_name_and_check(worker_pools, check, interval):
    pool_with(worker_pools, {"show": {"call": f"{MODULE}:show_session", "connection_check": check}})
    job = ended(worker_pools, "show", dsn=worker_pools.dsn, setting=INTERVAL)

    assert job.run_id is not None
    assert job.result == [attempt_application_name(job.id, job.run_id), interval]


def test_call_loads_no_module_but_its_own():
    tasks, known = {"t": f"{MODULE}:loaded_modules"}, Pipelines()
    load_tasks([], tasks, known_tasks=known)
    end = attempt_with(task="t", settings={"packages": ("pipelines",), "tasks": tasks}).run(known.get("t"))

    assert isinstance(end, Settlement)
    assert MODULE in end.result
    assert "dataloader.pipelines.noop" not in end.result


def program(code: str, **command: Any) -> tuple[Any, CapturedLines]:
    logged, known = CapturedLines(), Pipelines()
    known.command("t", [sys.executable, "-c", code], **command)
    attempt = attempt_with(logged, task="t")
    return attempt.run(known.get("t")), logged


def test_program_gets_our_name_and_its_own_options_last(monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c of=service")
    _, logged = program(SHOW, env={"PGOPTIONS": "-c work_mem=1MB", "PGAPPNAME": "mine"})

    (line,) = logged.texts_of("stdout")
    assert line.startswith("dataloader:")
    assert INTERVAL in line
    assert line.endswith("-c work_mem=1MB None")
    assert "of=service" not in line


def test_program_without_check_has_our_name_alone():
    _, logged = program(SHOW, connection_check=False)

    (line,) = logged.texts_of("stdout")
    assert line.startswith("dataloader:")
    assert line.endswith(" None None")


def test_failed_program_logs_names_of_withheld_variables(monkeypatch):
    monkeypatch.setenv("PGHOST", "db.internal")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("PGUSER", "etl")
    end, logged = program("raise SystemExit(1)", inherit=["PGUSER"], env={"PGDATABASE": "x"})

    assert end.status is Status.QUEUED
    (line,) = [line for line in logged.texts_of("log") if "not given" in line]
    assert "PGHOST, PGPASSWORD;" in line
    assert "hunter2" not in line
    assert not [name for name in ("PGUSER", "PGDATABASE", "PGAPPNAME", "PGOPTIONS") if name in line]


def test_program_that_succeeds_logs_no_withheld_variables(monkeypatch):
    monkeypatch.setenv("PGHOST", "db.internal")

    assert program("pass")[1].texts_of("log") == []


def test_server_that_does_not_answer_is_named_by_the_event(logged):
    gone = ConnectionSettings(dsn="", schema="public", targets={"gone": f"host=127.0.0.1 port={free_port()} dbname=x"})
    known = Pipelines()
    known.command("t", [sys.executable, "-c", SHOW])
    job_log = CapturedLines()
    end = attempt_with(job_log, task="t", settings={"connection_settings": gone}).run(known.get("t"))

    assert isinstance(end, Settlement)
    assert end.event_fields is not None
    assert end.event_fields["sessions_left"] == ["gone"]
    assert [fields["sessions_left"] for fields in logged("sessions.left")] == [["gone"]]
    assert logged("connection_check.off") == [{"servers": {"gone": "unreachable"}}]
    assert job_log.texts_of("stdout")[0].endswith(" None None")


# ── main() ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_main_parses_the_argv_of_its_task(worker_pools):
    pool_with(worker_pools, {"main": {"call": f"{MODULE}:main", "argv": ["--day", "{day}", "--code={code}"]}})

    assert ended(worker_pools, "main", day="2026-11-22", code=0).result is None
    assert ended(worker_pools, "main", Status.FAILED, day="2026-11-22", code=3).error == "SystemExit: 3"


def test_main_has_its_argv_in_a_thread_of_a_terminal_or_test():
    before, known = sys.argv, Pipelines()
    known.register("t", argv=["--day", "{day}"], isolation="process", memory_mb=500)(lambda: sys.argv[1:])
    end = attempt_with(task="t", args_text='{"day": "x"}', settings={"isolation_enabled": False}).run(known.get("t"))

    assert isinstance(end, Settlement)
    assert end.result == ["--day", "x"]
    assert sys.argv is before


def test_main_without_argv_fails_with_a_hint(worker_pools):
    pool_with(worker_pools, {"main": f"{MODULE}:main"})

    error = ended(worker_pools, "main", Status.FAILED).error
    assert error is not None
    assert error.startswith("SystemExit: 2; it has parsed a command line")
    assert "option argv" in error


def test_main_in_a_thread_fails_with_a_hint_too():
    known = Pipelines()
    known.register("t")(lambda: argparse.ArgumentParser().parse_args(["--unknown"]))
    end = attempt_with(task="t").run(known.get("t"))

    assert isinstance(end, Settlement)
    assert "option argv" in str(end.error)


def test_exit_code_of_its_own_has_no_hint():
    known = Pipelines()
    known.register("t")(lambda: sys.exit(2))
    end = attempt_with(task="t").run(known.get("t"))

    assert isinstance(end, Settlement)
    assert end.error == "SystemExit: 2"


def test_args_that_do_not_fit_are_not_retried():
    known = Pipelines()
    known.register("t")(lambda customer_id, since: None)
    end = attempt_with(task="t", args_text='{"customer_id": 7}').run(known.get("t"))

    assert isinstance(end, Settlement)
    assert (end.status, end.error) == (Status.FAILED, f"{Fail.__name__}: the args do not fit: since: is required")


# ── its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sessions(worker_pools: WorkerPoolFixture, job_id: UUID) -> list[int]:
    """Backends that run a statement of the job."""
    rows = worker_pools.queue_fixture.sql(
        "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %s) AND state = 'active'",
        f"dataloader:{job_id}:",
    )
    return [pid for (pid,) in rows]


def test_cancel_ends_a_blocking_call_and_its_query(worker_pools):
    pool_with(worker_pools, {"sleeps": f"{MODULE}:sleep_in_sql"})
    job_id = worker_pools.add_job("sleeps", args={"dsn": worker_pools.dsn, "seconds": 600})
    eventually(lambda: sessions(worker_pools, job_id))

    worker_pools.queue_fixture.queue.cancel(job_id)
    worker_pools.wait_for_status(job_id, Status.CANCELED)

    assert sessions(worker_pools, job_id) == []
    assert worker_pools.event_payloads(job_id, "canceled")[0]["stopped_by"] in ("cancel_query", "sigterm")


def test_shutdown_ends_a_process_that_has_stop_steps_left(worker_pools):
    pool = pool_with(worker_pools, {"sleeps": f"{MODULE}:sleep_in_sql"}, stop_step_sec=60, stop_wait_sec=0.2)
    job_id = worker_pools.add_job("sleeps", args={"dsn": worker_pools.dsn, "seconds": 600}, lease_ttl_sec=60)
    eventually(lambda: sessions(worker_pools, job_id))

    began = time.monotonic()
    assert pool.stop(grace=0.0)

    assert time.monotonic() - began < 30
    assert sessions(worker_pools, job_id) == []
    assert worker_pools.queue_fixture.job(job_id).status is Status.QUEUED
    assert worker_pools.queue_fixture.job(job_id).attempt == 0
