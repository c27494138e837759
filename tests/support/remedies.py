"""Findings of doctor, and their remedies run as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable

from click.testing import CliRunner, Result

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.findings import Finding, Severity
from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.registry import FEATURES
from tests.support.databases import execute_sql
from tests.support.processes import ROOT, SETTING_PREFIXES, clean_environment

RunCommand = Callable[..., str]
_SQL_KEYWORDS = ("ALTER ", "CREATE ", "DROP ", "GRANT ", "REINDEX ", "ROLLBACK ", "SELECT ", "SET ", "VACUUM ")


def find_problems(
    dsn: str,
    *,
    schema: str = "public",
    workers: str | None = None,
    api: int = 16,
    features: Iterable[Feature] = FEATURES,
) -> list[Finding]:
    """What doctor finds that is not in order. `workers`: their own way to the database; `api`: its connections."""
    pool = Pool(dsn, transactions_only=True, application_name="dataloader-doctor", schema=schema)
    try:
        found = run_checks(DatabaseFacts(pool), Connections(dsn, workers, 5.0, api), features)
    finally:
        pool.close()
    return [finding for finding in found if finding.severity is not Severity.OK]


def find_finding(findings: list[Finding], severity_and_check: str, text: str = "") -> Finding:
    """The first finding of this severity and check, such as `warning bloat`."""
    fitting = [f for f in findings if f"{f.severity.word} {f.check}" == severity_and_check and text in f.message]
    assert fitting, [(f.severity.word, f.check, f.message) for f in findings]
    return fitting[0]


def is_gone(dsn: str, check: str, text: str = "") -> bool:
    return not [finding for finding in find_problems(dsn) if finding.check == check and text in finding.message]


def run_in_process(dsn: str, *arguments: str, schema: str = "public", **env: str) -> str:
    """The output of a command that succeeds, in a process as a shell starts it."""
    given = {**clean_environment(), "DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema, **env}
    argv = [sys.executable, "-m", "app", *arguments]
    done = subprocess.run(argv, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_in_this_process(dsn: str, *arguments: str, schema: str = "public", **env: str) -> str:
    """The same, sparing the start of a process: the command line is parsed and run as there."""
    done = invoke(dsn, *arguments, schema=schema, **env)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def invoke(dsn: str, *arguments: str, schema: str = "public", **env: str) -> Result:
    """However it ends."""
    absent = {name: None for name in os.environ if name.startswith(SETTING_PREFIXES)}
    given = {**absent, "DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema, **env}
    return CliRunner().invoke(cli, list(arguments), env=given)


def run_remedy(dsn: str, remedy: str, schema: str = "public", *, run: RunCommand = run_in_this_process) -> None:
    """As it is printed: a command, or statements up to the first piece that is prose."""
    statements: list[str] = []
    for piece in remedy.split("; "):
        if piece == "dataloader migrate" or piece.startswith("dataloader webhooks "):
            run(dsn, *piece.split()[1:], schema=schema)
            return
        if not piece.startswith(_SQL_KEYWORDS):
            break
        statements.append(piece)
    assert statements, f"no statement in {remedy!r}"
    execute_sql(dsn, *statements)
