"""Findings of doctor, and their remedies run as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import psycopg2
from click.testing import CliRunner, Result
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT

from app.cli.command import cli
from app.doctor.examine import Ways, examine
from app.doctor.findings import Finding, Severity
from app.queue.examination import Examination
from app.queue.pool import Pool
from tests.support.processes import ROOT, SETTINGS, clean_environment

Command = Callable[..., str]
_SQL = ("ALTER ", "CREATE ", "DROP ", "GRANT ", "REINDEX ", "ROLLBACK ", "SELECT ", "SET ", "VACUUM ")


def look(dsn: str, *, schema: str = "public", workers: str | None = None, api: int = 16) -> list[Finding]:
    """What doctor finds that is not in order. `workers`: their own way to the database; `api`: its connections."""
    pool = Pool(dsn, transactions_only=True, application_name="dataloader-doctor", schema=schema)
    try:
        found = examine(Examination(pool), Ways(dsn, workers, 5.0, api))
    finally:
        pool.close()
    return [finding for finding in found if finding.severity is not Severity.OK]


def pick(findings: list[Finding], what: str, words: str = "") -> Finding:
    """The first finding of this severity and check, such as `warning bloat`."""
    fitting = [f for f in findings if f"{f.severity.word} {f.check}" == what and words in f.told]
    assert fitting, [(f.severity.word, f.check, f.told) for f in findings]
    return fitting[0]


def is_gone(dsn: str, check: str, words: str = "") -> bool:
    return not [finding for finding in look(dsn) if finding.check == check and words in finding.told]


def sql(dsn: str, *statements: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
        for statement in statements:
            cursor.execute(statement)


def in_process(dsn: str, *words: str, schema: str = "public", **env: str) -> str:
    """The output of a command that succeeds, in a process as a shell starts it."""
    given = {**clean_environment(), "DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema, **env}
    argv = [sys.executable, "-m", "app", *words]
    done = subprocess.run(argv, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_this_process(dsn: str, *words: str, schema: str = "public", **env: str) -> str:
    """The same, sparing the start of a process: the command line is parsed and run as there."""
    done = invoke(dsn, *words, schema=schema, **env)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def invoke(dsn: str, *words: str, schema: str = "public", **env: str) -> Result:
    """However it ends."""
    absent = {name: None for name in os.environ if name.startswith(SETTINGS)}
    given = {**absent, "DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema, **env}
    return CliRunner().invoke(cli, list(words), env=given)


def run_remedy(dsn: str, remedy: str, schema: str = "public", *, run: Command = in_this_process) -> None:
    """As it is printed: a command, or statements up to the first piece that is prose."""
    statements: list[str] = []
    for piece in remedy.split("; "):
        if piece == "dataloader migrate" or piece.startswith("dataloader webhooks "):
            run(dsn, *piece.split()[1:], schema=schema)
            return
        if not piece.startswith(_SQL):
            break
        statements.append(piece)
    assert statements, f"no statement in {remedy!r}"
    sql(dsn, *statements)
