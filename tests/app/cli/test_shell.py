"""psql on the service's database, its connection string, and completion in real shells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import psycopg2
import pytest
from click.shell_completion import BashComplete

from dataloader.app.cli.command import cli
from dataloader.app.config.dsn import format_dsn, parse_dsn
from dataloader.app.runtime.commands import psql_environment
from tests.support.private_server import copy_data_dir
from tests.support.processes import ROOT, clean_environment

SHOWS_ITS_START = """#!/bin/sh
tr '\\0' ' ' </proc/$$/cmdline; echo
echo "$PGPASSWORD@$PGHOST:$PGPORT/$PGDATABASE as $PGUSER, $PGSSLMODE, $PGOPTIONS"
exit 7
"""


def is_group(name: str) -> bool:
    return isinstance(cli.get_command(click.Context(cli), name), click.Group)


@pytest.fixture
def dataloader(tmp_path):
    """Run the command in a process, with these variables; the first folder of PATH is the test's."""
    (tmp_path / "bin").mkdir()

    def ran(*args, path=f"{tmp_path}/bin:{os.environ['PATH']}", **env):
        return subprocess.run(
            [sys.executable, "-m", "app", *args],
            cwd=tmp_path, env={**clean_environment(), "PYTHONPATH": str(ROOT), **env, "PATH": path},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    return ran


def put_psql(folder: Path) -> None:
    (folder / "bin/psql").write_text(SHOWS_ITS_START)
    (folder / "bin/psql").chmod(0o755)


def test_psql_gets_password_by_environment(dataloader, tmp_path):
    put_psql(tmp_path)

    shown = dataloader("psql", "-c", "SELECT 1", DL_DB_DSN="postgresql://me:s3%20cret@db:6543/shop?sslmode=require")

    command, environment_ = shown.stdout.splitlines()
    assert shown.returncode == 7, shown.stderr
    assert command.endswith("psql -c SELECT 1 ")
    assert "s3" not in command
    assert environment_ == 's3 cret@db:6543/shop as me, require, -c search_path="public",public'


def test_psql_of_an_odd_schema_is_quoted():
    options = psql_environment({"options": "-c work_mem=1MB"}, 'my "odd\\ schema')["PGOPTIONS"]

    assert options == '-c work_mem=1MB -c search_path="my\\ ""odd\\\\\\ schema",public'


@pytest.mark.skipif(shutil.which("psql") is None, reason="no psql is installed here")
def test_psql_reaches_the_service_database(dataloader, dsn):
    shown = dataloader("psql", "--tuples-only", "--command", "SELECT count(*) + 41 FROM dl_schema", DL_DB_DSN=dsn)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip().isdigit()


def test_missing_psql_is_named_with_what_installs_it(run, monkeypatch):
    monkeypatch.setattr("dataloader.app.runtime.commands.find_program", lambda name: None)
    monkeypatch.setenv("DL_DB_DSN", "postgresql://nobody@nowhere/x")

    refused = run("psql")

    assert refused.exit_code == 69
    assert "postgresql-client" in refused.stderr
    assert "dataloader config --dsn" in refused.stderr


def test_config_dsn_prints_what_connects(run, monkeypatch, dsn):
    monkeypatch.setenv("DL_DB_DSN", format_dsn({**parse_dsn(dsn), "password": "s3cret"}))

    shown = run("config", "--dsn")

    assert "s3cret" in shown.stdout
    psycopg2.connect(shown.stdout.strip()).close()
    assert json.loads(run("config", "--dsn", "--json").stdout)["dsn"] == shown.stdout.strip()
    assert "s3cret" not in run("config").output
    assert "password" in run("config", "--help").stdout


@pytest.fixture
def home(run_folder, ready_made):
    """A DL_DATA_DIR with the embedded server's data in it, which the account of the server may enter."""
    folder = Path(tempfile.mkdtemp(prefix="home-", dir=run_folder))
    folder.chmod(0o755)
    (folder / "postgres").mkdir()
    copy_data_dir(ready_made, folder / "postgres")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_psql_and_dsn_reach_the_embedded_server(dataloader, tmp_path, home):
    put_psql(tmp_path)

    shown = dataloader("psql", DL_DATA_DIR=str(home))
    printed = dataloader("config", "--dsn", DL_DATA_DIR=str(home))

    assert shown.returncode == 7, shown.stderr
    assert printed.returncode == 0, printed.stderr
    host = parse_dsn(printed.stdout.strip())["host"]
    assert f"@{host}:" in shown.stdout


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (
            "bash",
            'COMP_WORDS=(dataloader new-p); COMP_CWORD=1; _dataloader_completion dataloader; echo "${COMPREPLY[@]}"',
        ),
        ("zsh", ""),
        ("fish", "complete --do-complete 'dataloader new-p'"),
    ],
)
def test_completion_script_completes_in_its_shell(dataloader, tmp_path, shell, script):
    printed = dataloader("completion", shell)

    assert printed.returncode == 0, printed.stderr
    assert "_DATALOADER_COMPLETE" in printed.stdout
    if script and shutil.which(shell) is not None:
        program = tmp_path / "bin/dataloader"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m app "$@"\n')
        program.chmod(0o755)
        env = {**clean_environment(), "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        done = subprocess.run(
            [shell, "-c", f"{printed.stdout}\n{script}"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "new-pipeline" in done.stdout, done.stderr


@pytest.mark.parametrize("group", [name for name in cli.list_commands(click.Context(cli)) if is_group(name)])
def test_subcommands_of_group_are_completed(group):
    def complete(*words, incomplete=""):
        found = BashComplete(cli, {}, "dataloader", "_DATALOADER_COMPLETE").get_completions([*words], incomplete)
        return [item.value for item in found]

    command = cli.get_command(click.Context(cli), group)
    assert isinstance(command, click.Group)
    assert complete(group) == command.list_commands(click.Context(command))
    if "list" in command.commands:  # which is done without a subcommand
        assert {*complete(group, "list", incomplete="--")} == {*complete(group, incomplete="--")}
