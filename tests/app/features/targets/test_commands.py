"""The commands about targets, and what programs write with `dataloader effects`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result
from psycopg2.extensions import make_dsn
from werkzeug.serving import make_server

from dataloader.app.cli.command import cli
from dataloader.app.features.targets.rows import TargetRows
from dataloader.app.postgres.binaries import find_program
from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines import effects
from dataloader.pipelines.effects_script import ProgramRow, begin_script, end_script, parse_position, quote_literal
from tests.app.features.targets.conftest import AppFactory
from tests.support import free_port
from tests.support.databases import execute_sql
from tests.support.processes import ROOT
from tests.support.remedies import invoke
from tests.support.target_fixture import TARGET, TargetFixture, write_part

HOSTILE = 'it\'s "a" target; <b>'
FULL_SETTINGS = "ON_ERROR_STOP=1"
_VARIABLES = ("DL_JOB_ID", "DL_RUN_ID", "DL_FENCE", "DL_EFFECTS_TABLE")
LOAD = f"""
set -euo pipefail
next=$(( $(echo "$DL_POSITION" | sed s/null/0/) + 1 ))
(
 {sys.executable} -m dataloader effects begin
 echo "INSERT INTO parts VALUES ('part $next', '$DL_RUN_ID');"
 {sys.executable} -m dataloader effects end --position "$next"
) | $PSQL -v ON_ERROR_STOP=1 -q "$WAREHOUSE"
exit $STATUS
"""


def psql() -> str:
    program = find_program("psql")
    assert program is not None
    return str(program)


def run_psql(target: TargetFixture, sql: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [psql(), "-X", "-q", *options, target.dsn], input=sql, capture_output=True, text=True, timeout=30, check=False
    )


def run(*words: str, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(cli, ["effects", *words], env={**dict.fromkeys(_VARIABLES), **(env or {})})


@pytest.fixture
def row(target: TargetFixture) -> ProgramRow:
    """The row of a job that one attempt has claimed."""
    job_id = target.enqueue()
    target.run(load_part)
    fence, run_id, *_ = target.row(job_id)
    target.sql("DELETE FROM parts")
    return ProgramRow(job_id, UUID(run_id), fence, "public.dl_effects")


def load_part(args: Any, ctx: Any) -> None:
    with ctx.transaction() as connection:
        write_part(connection, "a", ctx)
        ctx.checkpoint(1)


def variables(row: ProgramRow) -> dict[str, str | None]:
    return dict(zip(_VARIABLES, map(str, row), strict=True))


INSERT = "INSERT INTO parts VALUES ('x', 'y');\n"


# ── for programs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_program_loads_in_parts_and_resumes_from_the_position(target: TargetFixture):
    env = {"WAREHOUSE": target.dsn, "PSQL": psql(), "PYTHONPATH": str(ROOT)}
    job_id = target.enqueue()
    for status in ("1", "0"):
        target.tasks.command("t", ["bash", "-c", LOAD], target=TARGET, env={**env, "STATUS": status}, cwd=str(ROOT))
        outcome = target.run(None)
        target.tasks = type(target.tasks)()

    assert isinstance(outcome, Settlement)
    assert outcome.status is Status.SUCCEEDED, outcome.error
    assert target.parts == ["part 1", "part 2"]
    assert target.row(job_id)[2] == 2


def test_position_is_committed_with_the_rows(target: TargetFixture, row: ProgramRow):
    begin, end = (run(*words, env=variables(row)).stdout for words in (("begin",), ("end", "--position", '"2026-01"')))

    done = run_psql(target, begin + INSERT + end, "-v", FULL_SETTINGS)

    assert (done.returncode, done.stderr) == (0, "")
    assert target.parts == ["x"]
    assert target.row(row.job_id)[2:] == ("2026-01", None, False)


def test_end_without_a_position_keeps_the_one_before(target: TargetFixture, row: ProgramRow):
    begin, end = (run(word, env=variables(row)).stdout for word in ("begin", "end"))

    assert run_psql(target, begin + INSERT + end, "-v", FULL_SETTINGS).returncode == 0
    assert target.parts == ["x"]
    assert target.row(row.job_id)[2] == 1


def test_final_transaction_keeps_the_result(target: TargetFixture, row: ProgramRow):
    begin = run("begin", env=variables(row)).stdout
    end = run("end", "--final", "--result", '{"rows": 7}', env=variables(row)).stdout

    assert run_psql(target, begin + INSERT + end, "-v", FULL_SETTINGS).returncode == 0
    assert target.row(row.job_id)[2:] == (1, {"rows": 7}, True)


@pytest.mark.parametrize("options", [("-v", FULL_SETTINGS), ()], ids=["stops at an error", "goes on"])
@pytest.mark.parametrize("moment", ["before", "between"])
def test_attempt_that_lost_its_job_commits_nothing(
    target: TargetFixture, row: ProgramRow, options: tuple[str, ...], moment: str
):
    begin, end = (run(word, env=variables(row)).stdout for word in ("begin", "end"))
    raised = f"UPDATE dl_effects SET fence = fence + 1, run_id = '{uuid4()}';\n"
    if moment == "before":
        target.sql(raised)
        script = begin + INSERT + end
    else:  # within the transaction, which no other session can do while the row is locked
        script = begin + INSERT + raised + end

    done = run_psql(target, script, *options)

    assert f"another attempt has job {row.job_id} now: run {row.run_id}, fence {row.fence}" in done.stderr
    assert (done.returncode == 0) == (not options)
    assert target.parts == []


def test_next_attempt_waits_for_the_end_of_the_program(target: TargetFixture, row: ProgramRow):
    with subprocess.Popen([psql(), "-X", "-q", target.dsn], stdin=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        program.stdin.write(begin_script(row) + "SELECT pg_advisory_lock(7);\n")
        program.stdin.flush()
        locked = "SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
        wait_for(lambda: target.sql(locked) == [(1,)])
        with pytest.raises(Exception, match="lock"):
            target.sql("SELECT 1 FROM dl_effects FOR UPDATE NOWAIT")
        program.stdin.close()
        program.wait(10)
    assert target.sql("SELECT count(*)::int FROM dl_effects") == [(1,)]


def wait_for(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    pytest.fail("it has not come")


@pytest.mark.parametrize(
    ("words", "env", "exit_code", "message"),
    [
        (["begin"], {}, 4, "not fenced: DL_JOB_ID, DL_RUN_ID, DL_FENCE, DL_EFFECTS_TABLE are not set."),
        (["begin"], {"DL_FENCE": None}, 4, "not fenced: DL_FENCE is not set."),
        (["begin"], {"DL_FENCE": "1; DROP"}, 4, "DL_FENCE is '1; DROP', which is no fence"),
        (["begin"], {"DL_FENCE": str(2**63)}, 4, "which is no fence"),
        (["begin"], {"DL_JOB_ID": "x' OR 1"}, 4, "which are no ids"),
        (["begin"], {"DL_EFFECTS_TABLE": "parts; --"}, 4, "which is no quoted name of a table with its schema"),
        (["begin"], {"DL_EFFECTS_TABLE": 'public."a" b'}, 4, "which is no quoted name"),
        (["begin", "--no-such"], {}, 2, "--no-such"),
        (["bgin"], {}, 2, "No such command 'bgin'"),
        (["end"], {}, 4, "not fenced: DL_JOB_ID"),
        (["end", "--position", "2026-01-31"], {"": ""}, 2, "the position is not JSON that can be kept"),
        (["end", "--position", "NaN"], {"": ""}, 2, "NaN is not JSON"),
        (["end", "--position", "1e999"], {"": ""}, 2, "too large"),
        (["end", "--position", "[" * 2000], {"": ""}, 2, "the position"),
        (["end", "--position", json.dumps("x" * 64_000)], {"": ""}, 2, "64002 bytes of JSON; at most 64000 are kept"),
        (["end", "--position", '"\\u0000"'], {"": ""}, 2, "NUL"),
        (["end", "--result", "1"], {"": ""}, 2, "--result belongs to --final"),
        (["end", "--final", "--result", "{"], {"": ""}, 2, "the result is not JSON that can be kept"),
        (["end", "--final", "--result", json.dumps("x" * 1_000_000)], {"": ""}, 2, "at most 1,000,000 are kept"),
    ],
)
def test_refused_command_prints_sql_that_fails(
    target: TargetFixture, row: ProgramRow, words: list[str], env: dict[str, Any], exit_code: int, message: str
):
    complete = variables(row)
    given = {name: value for name, value in ({**complete, **env} if env else {}).items() if name}
    if not env:
        given = {}
    begin = begin_script(row) if words[0] == "end" else ""

    refused = run(*words, env=given)
    done = run_psql(target, begin + refused.stdout + INSERT + "COMMIT;\n")

    assert refused.exit_code == exit_code, refused.output
    assert message in refused.stderr
    assert message.partition(":")[0] in done.stderr
    assert target.parts == [], "what follows is refused too"
    assert target.row(row.job_id)[2] == 1


HARD = ["it's", 'a "b" \\ c', "$dataloader$ $$ $1", "ё 日本 😀", ":x :'y'", "\n\t\r\u2028", "%s {table} --", "\\u0000 "]


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_values_are_quoted_for_every_setting(target: TargetFixture, row: ProgramRow, conforming: str):
    position = parse_position(json.dumps(HARD))
    schema = '"it\'s $dataloader$ ""%x"" {table} :x \\"'
    target.sql(f"CREATE SCHEMA {schema}".replace("%", "%%"))
    target.sql(f"ALTER TABLE dl_effects SET SCHEMA {schema}".replace("%", "%%"))
    hostile = row._replace(table=f"{schema}.dl_effects")
    script = begin_script(hostile) + INSERT + end_script(hostile, position=position, is_final=True, result=position)

    done = run_psql(
        target, f"SET standard_conforming_strings = {conforming}; SET escape_string_warning = off;\n{script}",
        "-v", FULL_SETTINGS, "-v", "x=wrong", "-v", "y=wrong",
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    found = target.sql(f"SELECT position, result FROM {schema}.dl_effects".replace("%", "%%"))
    assert found == [(HARD, HARD)]
    assert quote_literal(position).isascii()


def test_names_that_the_worker_gives_are_accepted(target: TargetFixture, row: ProgramRow):
    for table in ("public.dl_effects", '"Имя ""x"""."dl_effects"'):
        shown = run("begin", env=variables(row._replace(table=table)))
        assert (shown.exit_code, table in shown.stdout) == (0, True)


def test_help_shows_how_a_program_uses_it():
    shown = run("--help").stdout

    assert "set -euo pipefail" in shown
    assert "dataloader effects end --position" in shown
    assert all(name in shown for name in (*_VARIABLES, "DL_TARGET", "DL_POSITION"))


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def url(open_app: AppFactory) -> Iterator[Callable[[], str]]:
    servers = []

    def serve() -> str:
        server = make_server("127.0.0.1", 0, open_app().application, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_targets_are_listed(target: TargetFixture, other_role: str, url: Callable[[], str]):
    target.targets = {
        TARGET: target.dsn, HOSTILE: other_role, "away": f"host=127.0.0.1 port={free_port()} password=open-sesame",
        "queue": target.queue_db.dsn,
    }  # fmt: skip
    TargetRows(target.queue_db.session).declare(["a", "b"], {"a": TARGET, "b": TARGET})
    target.enqueue()
    target.run(load_part)
    address = url()

    table = invoke(target.queue_db.dsn, "targets", "--url", address)
    document = invoke(target.queue_db.dsn, "targets", "list", "--json", "--url", address)

    lines = {line.split("  ")[0]: " ".join(line.split()) for line in table.stdout.splitlines()}
    assert lines["target"] == "target entry reachable fenced tasks rows"
    assert lines[TARGET] == "warehouse warehouse yes yes a, b 1"
    assert "yes no: the role" in lines[HOSTILE]
    assert lines["away"] == "away away no: Connection refused"
    assert "yes: it is the queue's own database" in lines["queue"]
    assert "open-sesame" not in table.output + document.output
    assert {found["target"] for found in json.loads(document.stdout)["targets"]} == {*target.targets}


def test_no_target_is_said(target: TargetFixture, url: Callable[[], str]):
    target.targets.clear()

    assert "names no target" in invoke(target.queue_db.dsn, "targets", "--url", url()).stderr


def test_schema_is_printed_without_settings(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "dataloader", "targets", "schema"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DL_DB_DSN": "not a dsn"},
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, f"{effects.CREATE_TABLE};\n")


@pytest.mark.parametrize("name", [TARGET, HOSTILE])
def test_schema_grants_the_role_of_the_target(target: TargetFixture, other_role: str, name: str):
    printed = invoke(target.queue_db.dsn, "targets", "schema", name, DL_TARGETS=json.dumps({name: other_role}))

    assert printed.exit_code == 0, printed.output
    execute_sql(target.dsn, printed.stdout, printed.stdout)
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    target.targets = {name: other_role}
    job_id = target.enqueue()
    target.run(load_part, target=name)
    assert target.row(job_id)[2] == 1


def test_role_is_quoted_and_that_of_the_default_entry_counts(target: TargetFixture):
    role = 'user"; DROP TABLE parts; --'
    settings = json.dumps({"default": make_dsn("host=db", user=role)})

    printed = invoke(target.queue_db.dsn, "targets", "schema", TARGET, DL_TARGETS=settings)

    assert printed.stdout.endswith('ON dl_effects TO "user""; DROP TABLE parts; --";\n')


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({}, "DL_TARGETS has no entry 'warehouse'"),
        ({TARGET: "host=db"}, "the entry 'warehouse' of DL_TARGETS names no"),
    ],
)
def test_schema_of_an_unknown_role_says_so(target: TargetFixture, settings: dict[str, str], note: str):
    printed = invoke(target.queue_db.dsn, "targets", "schema", TARGET, DL_TARGETS=json.dumps(settings))

    assert printed.exit_code == 0
    assert printed.stdout.endswith("-- GRANT SELECT, INSERT, UPDATE, DELETE ON dl_effects TO the_role;\n")
    assert note in printed.stderr
