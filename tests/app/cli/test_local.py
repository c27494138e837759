"""Pipelines run in the foreground, and skeletons that work as they are written; for real, in processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dataloader.app.cli import skeleton
from dataloader.app.db import schema
from dataloader.pipelines.schedule_definition import slice_live_key
from tests.app.cli.test_watch import ON_A_TERMINAL
from tests.support import Process, eventually
from tests.support.databases import query_value
from tests.support.processes import ROOT, clean_environment
from tests.support.warm_commands import warm_commands

TASKS = """
import logging, time
from pathlib import Path
from dataloader.pipelines.contract import register
from dataloader.pipelines.partitions import Daily
from dataloader.pipelines.schedules import schedule

@register("talks")
def talks(args, ctx):
    print("printed")
    logging.getLogger("lib").info("logged")
    ctx.progress(1, 2, "rows")
    return {"args": args}

@register("measured")
def measured(args, ctx):
    ctx.produced("warehouse.sales", rows=args["rows"])
    ctx.link("report", "https://host/x")
    ctx.check("rows", args["rows"], min=1, vs="median:7", tolerance=0.3)
    ctx.check("nulls", 3, max=0, severity="warn")

@register("broken", args={"type": "object", "properties": {"n": {"type": "integer"}}})
def broken(args):
    raise ValueError("no good")

@register("keyed", lock_key="k:{id}")
def keyed(args):
    return None

@register("limited.keyed", lock_key="k:{id}", limits={"tenant:{id}": 1})
def limited_keyed(args):
    return None

@register("patient")
def patient(args, ctx):
    print("begun", flush=True)
    ctx.sleep(60)

@register("limited", time_limit=0.5)
def limited(args, ctx):
    ctx.sleep(60)

@register("deaf")
def deaf(args):
    print("begun", flush=True)
    while True:
        time.sleep(0.05)

@register("writes", isolation="process")
def writes(args, ctx):
    with ctx.transaction(final=True) as connection:
        connection.cursor().execute("CREATE TABLE written (x int)")
    ctx.enqueue("keyed", {"id": 1})

@register("dated", lock_key="dated:{day}", partitions=Daily("2026-01-01", zone="Europe/Moscow"))
@schedule("0 6 * * *", zone="Europe/Moscow", args={"day": "{partition}", "at": "{logical_at:%d.%m. %H:%M}"})
def dated(args, ctx):
    interval = None if ctx.interval is None else [ctx.interval.start.isoformat(), ctx.interval.end.isoformat()]
    return [args, ctx.partition, interval, ctx.logical_at.isoformat()]

@register("connects")
def connects(args, ctx):
    with ctx.connect("marts") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 7")
        return cursor.fetchone()[0]
"""


@pytest.fixture
def home(tmp_path):
    package = tmp_path / "acme_run"
    package.mkdir()
    (package / "__init__.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def dsn(empty_dsn):
    schema.migrate(empty_dsn, "public")
    return empty_dsn


@pytest.fixture
def interrupted(home):
    """A command that receives Ctrl-C as it would on a terminal."""

    def started(*args, **env):
        argv = [sys.executable, "-c", ON_A_TERMINAL, "run", *args]
        return Process(argv, output=home / "output", env=environment(env), cwd=home)

    return started


@pytest.fixture(scope="module")
def commands():
    with warm_commands() as commands:
        yield commands


@pytest.fixture
def ran(home, commands):
    """Run a command to its end: its output, its errors, and its exit code."""

    def done(*args, **env):
        return commands.run("run", *args, cwd=home, env=environment(env))

    return done


def environment(env):
    return {**clean_environment(), "PYTHONPATH": str(ROOT), "DL_PIPELINES": "acme_run", **env}


def test_in_memory_it_shows_what_it_says_and_gives_its_result(ran):
    out, err, code = ran("talks", "--arg", "n=1", "--local")

    assert code == 0
    printed, result = out.splitlines()
    assert printed == "printed"
    assert json.loads(result) == {"args": {"n": 1}}
    assert "INFO     logged" in err
    assert "1 of 2 rows (50%)" in err
    assert err.endswith("succeeded\n")


@pytest.mark.parametrize(
    "definition", [{"command": ["printf", "printed"]}, {"call": "builtins:print", "python": sys.executable}]
)
def test_in_memory_programs_and_own_interpreters_run(ran, definition):
    out, err, code = ran("program", "--local", DL_TASKS=json.dumps({"program": definition}))

    assert code == 0, err
    assert err.endswith("succeeded\n")
    assert out.startswith(("printed", "{}"))


@pytest.mark.parametrize(("rows", "code"), [(5, 0), (0, 1)])
def test_in_memory_checks_are_made_without_a_history(ran, rows, code):
    _, err, exit_code = ran("measured", "--arg", f"rows={rows}", "--local")

    assert exit_code == code, err
    if code:
        assert "the check 'rows' failed: 0 is outside its limits: low 1" in err
    else:
        assert "too little history for a median: 0 of at least 3 values" in err
        assert "3 is outside its limits: high 0" in err


def test_in_memory_results_of_parents_are_filled_in(ran):
    args = ("talks", "--args", '{"n": {"$result": "extract.rows"}}')

    out, err, code = ran(*args, "--local", "--upstream", '{"extract": {"rows": 3}}')

    assert code == 0, err
    assert json.loads(out.partition("\n")[2]) == {"args": {"n": 3}}
    assert "names no parent of this job" in ran(*args, "--local")[1]
    assert "--upstream needs --local" in ran(*args, "--upstream", "{}")[1]


def test_as_a_job_it_leaves_a_row_a_journal_and_a_log(ran, dsn):
    out, err, code = ran("talks", "--args", '{"n": 1}', DL_DB_DSN=dsn)

    assert code == 0, err
    assert out.startswith("printed\n")
    assert json.loads(out.partition("\n")[2]) == {"args": {"n": 1}}
    assert "INFO     logged" in err
    assert query_value(dsn, "SELECT status || ' ' || task || ' ' || lock_key || ' ' || producer FROM dl_jobs") == (
        "succeeded talks talks dataloader run"
    )
    assert query_value(dsn, "SELECT string_agg(line, ',' ORDER BY log_id) FROM dl_job_logs") == "printed,logged"


def test_the_job_has_the_limits_of_its_task(ran, dsn):
    _, err, code = ran("limited.keyed", "--arg", "id=7", DL_DB_DSN=dsn)

    assert code == 0, err
    assert query_value(dsn, "SELECT lock_key || ' ' || limits::text FROM dl_jobs") == 'k:7 {"tenant:7": 1}'


@pytest.mark.parametrize("where", ["--local", None])
def test_failure_shows_traceback_and_sets_exit_code(ran, dsn, where):
    _, err, code = ran("broken", *([where] if where else []), DL_DB_DSN=dsn)

    assert code == 1
    assert "ValueError: no good" in err
    assert "Traceback" in err


def test_unrunnable_task_is_reported_before_start(ran, dsn):
    assert "there is no task 'nope'; expected one of: broken" in ran("nope", "--local")[1]
    assert "invalid args" in ran("broken", "--arg", "n=x", "--local")[1]
    _, err, code = ran("keyed", DL_DB_DSN=dsn)
    assert code == 4
    assert "id" in err
    assert query_value(dsn, "SELECT count(*) FROM dl_jobs") == "0"


def test_in_memory_a_database_is_used_if_one_is_named(ran, dsn):
    _, err, code = ran("writes", "--local")
    assert code == 1
    assert "local run without a database" in err

    _, err, code = ran("writes", "--local", DL_DB_DSN=dsn)
    assert code == 0, err
    assert query_value(dsn, "SELECT count(*) FROM written") == "0"
    assert query_value(dsn, "SELECT task FROM dl_jobs") == "keyed"

    assert ran("connects", "--local", DL_TARGETS=json.dumps({"marts": dsn}))[0] == "7\n"


def test_in_memory_a_time_limit_holds(ran):
    _, err, code = ran("limited", "--local")

    assert code == 1
    assert "time limit of 500 ms" in err


@pytest.mark.parametrize("where", ["--local", None])
def test_ctrl_c_stops_at_the_next_safe_point(interrupted, dsn, where):
    with interrupted("patient", *([where] if where else []), DL_DB_DSN=dsn) as process:
        process.wait_for_line("begun")
        process.signal(signal.SIGINT)
        code = process.wait()

    assert code == 130
    assert "canceled" in process.text
    if where is None:
        assert query_value(dsn, "SELECT status FROM dl_jobs") == "canceled"


def test_a_second_ctrl_c_does_not_wait_for_one(interrupted):
    with interrupted("deaf", "--local") as process:
        process.wait_for_line("begun")
        process.signal(signal.SIGINT)
        process.wait_for_line("leaves at once")
        process.signal(signal.SIGINT)
        code = process.wait()

    assert code == 130


def test_a_job_that_waits_for_its_key_says_so(interrupted, dsn):
    query_value(dsn, "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('other', 'x', 'k:1') RETURNING job_id")
    query_value(
        dsn,
        "UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid(), lease_expires_at = now() + interval '1 h',"
        " wait_state = 'scheduled', attempt = 1 RETURNING job_id",
    )
    with interrupted("keyed", "--arg", "id=1", DL_DB_DSN=dsn) as process:
        process.wait_for_line("Waiting: another job with the lock key 'k:1' runs")
        query_value(dsn, "DELETE FROM dl_jobs WHERE task = 'keyed' RETURNING job_id")
        code = process.wait()

    assert code == 1
    assert "lost: its row was deleted" in process.text


def test_a_database_that_goes_away_is_waited_for(interrupted, server):
    schema.migrate(server.dsn, "public")
    with interrupted("patient", DL_DB_DSN=server.dsn) as process:
        process.wait_for_line("begun")
        server.stop()
        process.wait_for_line("The database does not answer")
        server.start()
        process.signal(signal.SIGINT)
        eventually(lambda: "canceled" in process.text, message=lambda: process.text)

        assert process.wait() == 130


# ── what a job is for ───────────────────────────────────────────────────────────────────────────────────────────────

JANUARY_31 = ["2026-01-30T21:00:00+00:00", "2026-01-31T21:00:00+00:00"]  # in Moscow


@pytest.mark.parametrize("where", ["--local", None])
def test_a_slice_is_loaded_by_hand(ran, dsn, where):
    options = ["dated", "--partition-key", "2026-01-31", *([where] if where else [])]

    out, err, code = ran(*options, DL_DB_DSN=dsn)

    assert code == 0, err
    at = JANUARY_31[1]
    assert json.loads(out) == [{"day": "2026-01-31", "at": "01.02. 00:00"}, "2026-01-31", JANUARY_31, at]
    if where is None:
        assert query_value(dsn, "SELECT task || partition_key || state FROM dl_slices") == "dated2026-01-31succeeded"


def test_a_nominal_time_has_the_interval_of_its_schedule(ran, dsn):
    out, err, code = ran("dated", "--logical-at", "2026-02-01T03:00:00Z", "--arg", "day={partition}", DL_DB_DSN=dsn)

    assert code == 0, err
    assert json.loads(out) == [{"day": "2026-01-31"}, "2026-01-31", JANUARY_31, "2026-02-01T03:00:00+00:00"]


def test_args_that_are_empty_are_not_those_of_the_schedule(ran):
    out, err, code = ran("dated", "--partition-key", "2026-01-31", "--args", "{}", "--local")

    assert code == 0, err
    assert json.loads(out)[0] == {}


def test_a_slice_that_another_job_loads_is_refused(ran, dsn):
    key = slice_live_key("dated", "2026-01-31")
    values = f"('q', 'dated', 'k', '{key}')"
    job_id = query_value(dsn, f"INSERT INTO dl_jobs (queue, task, lock_key, live_key) VALUES {values} RETURNING job_id")

    _, err, code = ran("dated", "--partition-key", "2026-01-31", DL_DB_DSN=dsn)

    assert code == 4
    assert f"another job loads this slice: {job_id}" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("dated", "--partition-key", "2026-02-30"), "2026-02-30"),
        (("dated", "--partition-key", "2025-12-31"), "2025-12-31"),
        (("talks", "--partition-key", "2026-01-31"), "the task 'talks' declares no partitions"),
        (("talks", "--logical-at", "2026-01-31T00:00:00Z", "--arg", "day={partition}"), "partition"),
        (("dated", "--partition-key", "2026-01-31", "--arg", "day={nothing}"), "nothing"),
    ],
)
def test_what_does_not_exist_is_refused_before_the_start(ran, options, message):
    _, err, code = ran(*options, "--local")

    assert code == 4, err
    assert message in err
    assert "Traceback" not in err


# ── new-pipeline ────────────────────────────────────────────────────────────────────────────────────────────────────


def shell(command, folder):
    """Run a printed command as it is pasted: no PYTHONPATH, and what `make run` installs."""
    env = {name: value for name, value in clean_environment().items() if not name.startswith("PYTEST")}
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(("options", "package"), [((), "my_pipelines"), (("--dir", "acme_new/etl"), "acme_new.etl")])
def test_printed_commands_of_skeleton_work_as_pasted(run, home, monkeypatch, options, package):
    monkeypatch.chdir(home)

    shown = run("new-pipeline", "load.orders", *options)

    assert shown.exit_code == 0
    assert f"Wrote {package.replace('.', '/')}/load_orders.py" in shown.stdout
    commands = dict(re.findall(r"^  (\w+) it: +(.+)$", shown.stdout, re.MULTILINE))
    assert "pytest" not in commands["test"]
    tested = shell(commands["test"], home)
    assert "Ran 2 tests" in tested.stderr, tested.stdout + tested.stderr
    assert tested.returncode == 0, tested.stderr
    ran = shell(commands["run"], home)
    assert json.loads(ran.stdout) == {"days": 1}, ran.stderr
    setting, _, rest = commands["serve"].partition(" ")
    assert setting == f"DL_PIPELINES=dataloader.pipelines,{package}"
    assert rest.endswith("dataloader serve")
    listed = shell(f"{setting} {rest.removesuffix('serve')}tasks", home)
    assert "load.orders" in listed.stdout
    assert "noop" in listed.stdout, "the shipped package is not hidden"


@pytest.mark.parametrize("name", ["pipelines", "app", "workers", "dataloader", "json", "app/etl"])
def test_package_that_would_hide_an_installed_one_is_refused(run, home, monkeypatch, name):
    monkeypatch.chdir(home)

    refused = run("new-pipeline", "load.orders", "--dir", name)

    assert refused.exit_code == 2
    assert "would hide the installed package" in refused.stderr
    assert [path.name for path in home.iterdir()] == ["acme_run"]


def test_in_checkout_skeleton_joins_shipped_pipelines(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(skeleton, "_is_checkout", lambda: True)

    shown = run("new-pipeline", "load.orders").stdout

    assert "Wrote pipelines/load_orders.py" in shown
    test = Path("tests/pipelines/test_load_orders.py").read_text(encoding="utf-8")
    assert "from dataloader.pipelines.load_orders import load_orders" in test
    assert "DL_PIPELINES" not in shown


def test_nothing_is_overwritten(run, home, monkeypatch):
    monkeypatch.chdir(home)
    run("new-pipeline", "orders")
    Path("my_pipelines/orders.py").write_text("mine")

    again = run("new-pipeline", "orders")

    assert again.exit_code == 2
    assert "my_pipelines/orders.py and tests/my_pipelines/test_orders.py exist already" in again.stderr
    assert Path("my_pipelines/orders.py").read_text() == "mine"
    assert "run other" in run("new-pipeline", "other").stdout


@pytest.mark.parametrize(
    "args",
    [["Load.Orders"], ["load..x"], ["load.class"], ["x", "--dir", "/tmp"], ["x", "--dir", "a-b"], ["x", "--dir", "."]],
)
def test_what_cannot_be_imported_is_refused(run, home, monkeypatch, args):
    monkeypatch.chdir(home)

    assert run("new-pipeline", *args).exit_code == 2
    assert [path.name for path in home.iterdir()] == ["acme_run"]
