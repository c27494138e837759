"""Transactions in a target from processes of their own: of this interpreter, of another one, and of programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines, load_tasks
from dataloader.pipelines.effects import CREATE_TABLE
from tests.support.target_fixture import TARGET, TargetFixture
from tests.workers.isolation.old_project import OLDEST

_LOADS = """
import os, signal

def load(args, ctx):
    for key in ctx.each(["a", "b", "c"]):
        with ctx.transaction() as connection:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO parts (key, run) VALUES (%s, %s)", [key, str(ctx.attempt)])
            if key == args.get("kill_in"):
                os.kill(os.getpid(), signal.SIGKILL)
        if key == args.get("kill_after"):
            os.kill(os.getpid(), signal.SIGKILL)
    return type(connection).__mro__[2].__module__.partition(".")[0]

def finish(args, ctx):
    with ctx.transaction(final=True, result={"rows": 3}) as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO parts (key) VALUES ('all')")
    os.kill(os.getpid(), signal.SIGKILL)

def commit(args, ctx):
    with ctx.transaction() as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO parts (key) VALUES ('all')")
        connection.commit()

def of_queue(args, ctx):
    with ctx.transaction(target="queue"):
        pass
"""
_PROGRAM = """
import os, psycopg2, sys
connection = psycopg2.connect(sys.argv[1])
cursor = connection.cursor()
row = [os.environ["DL_JOB_ID"], os.environ["DL_RUN_ID"], os.environ["DL_FENCE"]]
table = os.environ["DL_EFFECTS_TABLE"]
key = f"job_id = %s AND run_id = %s AND fence = %s"
cursor.execute(f"SELECT 1 FROM {table} WHERE {key} FOR UPDATE", row)
assert cursor.fetchone()
cursor.execute("INSERT INTO parts VALUES (%s)", [os.environ["DL_POSITION"]])
cursor.execute(f"UPDATE {table} SET position = '2' WHERE {key}", row)
connection.commit()
sys.exit(0 if os.environ["DL_POSITION"] == "2" else 1)
"""


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        made = TargetFixture(queue_db, dsn)
        made.targets["queue"] = queue_db.dsn
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_loads.py").write_text(_LOADS, encoding="utf-8")
    return tmp_path


KINDS = ["process", "psycopg2", "psycopg"]  # isolation, or the driver in an interpreter of its own


def use(target: TargetFixture, folder: Path, kind: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target.tasks = Pipelines()
    definition: dict[str, Any] = {"call": f"own_loads:{call}", "target": TARGET}
    if kind == "process":
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop("own_loads", None)
        definition["isolation"] = "process"
    else:
        definition |= {"python": sys.executable, "cwd": str(folder)}
        if kind == "psycopg":
            (folder / "psycopg2.py").write_text("raise ImportError", encoding="utf-8")
    target.definitions = {"t": definition}
    assert load_tasks((), target.definitions, known_tasks=target.tasks) == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["kill_in", "kill_after"])
def test_a_killed_process_writes_each_part_once(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
):
    use(target, folder, kind, "load", monkeypatch)
    job_id = target.enqueue(args={place: "b"})

    assert target.run().status is Status.QUEUED
    target.queue_db.sql("UPDATE dl_jobs SET args = '{}'")
    outcome = target.run()

    driver = "psycopg" if kind == "psycopg" else "psycopg2"
    assert (outcome.status, outcome.error) == (Status.SUCCEEDED, None)
    assert outcome.result == ("dataloader" if kind == "process" else driver)
    assert target.parts == ["a", "b", "c"]
    assert target.row(job_id)[2]["each"][0]["done"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_work_that_a_killed_process_has_finished_is_not_repeated(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    use(target, folder, kind, "finish", monkeypatch)
    target.enqueue()

    assert target.run().status is Status.QUEUED
    outcome = target.run()

    assert (outcome.status, outcome.result) == (Status.SUCCEEDED, {"rows": 3})
    assert target.parts == ["all"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_within_the_block_is_refused(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    use(target, folder, kind, "commit", monkeypatch)
    target.enqueue()

    assert "commit() within ctx.transaction()" in target.run().error
    assert target.parts == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_whose_job_was_lost_claims_nothing(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    use(target, folder, kind, "load", monkeypatch)
    target.enqueue()
    attempt = target.attempt()
    target.queue_db.lose_attempt(attempt.job)

    outcome = attempt.run(target.tasks.get("t"))

    assert type(outcome).__name__ == "LeaseLost"
    assert target.parts == []


def test_an_interpreter_without_a_driver_is_told_which(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    use(target, folder, "psycopg2", "load", monkeypatch)
    target.definitions["t"]["python"] = OLDEST
    target.tasks = Pipelines()
    load_tasks((), target.definitions, known_tasks=target.tasks)
    target.enqueue()

    outcome = target.run()

    assert outcome.status is Status.FAILED
    assert "needs a driver in this interpreter: psycopg2, or psycopg 3" in outcome.error


def test_another_interpreter_has_no_transaction_in_the_queue(
    target: TargetFixture, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    use(target, folder, "psycopg2", "of_queue", monkeypatch)
    target.enqueue()

    assert "it is of the queue's database there: name a target of another database" in target.run().error


def test_a_program_gets_what_it_needs_for_the_fence(target: TargetFixture, folder: Path):
    target.tasks = Pipelines()
    target.sql(CREATE_TABLE)
    (folder / "program.py").write_text(_PROGRAM, encoding="utf-8")
    target.tasks.command("t", [sys.executable, str(folder / "program.py"), target.dsn], target=TARGET)
    job_id = target.enqueue()

    assert target.run().status is Status.QUEUED
    assert target.run().status is Status.SUCCEEDED
    assert target.parts == ["2", "null"]
    target.sql("UPDATE dl_effects SET done_at = now(), result = '5'")
    target.queue_db.sql("UPDATE dl_jobs SET status = 'queued' WHERE job_id = %s", str(job_id))
    assert target.run().result == 5
    assert target.parts == ["2", "null"], "the program is not started"


def test_a_program_does_not_start_without_its_target(target: TargetFixture):
    target.tasks = Pipelines()
    target.targets[TARGET] = "host=127.0.0.1 port=1 dbname=x"
    target.tasks.command("t", [sys.executable, "-c", "raise SystemExit(7)"], target=TARGET)
    target.enqueue()

    outcome = target.run()

    assert outcome.status is Status.QUEUED
    assert "onnection" in outcome.error
