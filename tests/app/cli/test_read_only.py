"""Commands that write to a database which is read-only."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from psycopg2.extensions import parse_dsn

from dataloader.app.cli.command import cli
from tests.support.databases import execute_sql


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--uninstall", "--yes"]])
def test_read_only_database_is_named_as_the_reason(dsn: str, command: list[str]):
    name = parse_dsn(dsn)["dbname"]
    execute_sql(dsn, "UPDATE dl_schema SET version = version - 1")
    execute_sql(dsn, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')

    result = CliRunner().invoke(cli, command, env={"DL_DB_DSN": dsn})

    execute_sql(
        f"{dsn} options='-c default_transaction_read_only=off'",
        f'ALTER DATABASE "{name}" RESET default_transaction_read_only',
    )
    assert result.exit_code == 69
    assert "read-only transaction" in result.output
    assert "default_transaction_read_only is on: ALTER DATABASE … RESET it" in result.output
