"""A database in another encoding than UTF-8 is refused in one sentence, by each command that works with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import Process, free_port
from tests.support.databases import Databases


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def other_dsn(databases: Databases, encoding: str) -> Iterator[str]:
    with databases.fresh(schema=False, options=f"ENCODING '{encoding}' LOCALE 'C'") as dsn:
        yield dsn


def test_each_command_refuses_it(start: Callable[..., Process], other_dsn: str, encoding: str):
    commands = ("migrate", "serve", "worker", "doctor")
    env = {"DL_DB_DSN": other_dsn, "APP_PORT": str(free_port())}
    processes = {command: start(command, env=env) for command in commands}

    codes = {command: process.wait() for command, process in processes.items()}

    assert codes == {"migrate": 65, "serve": 65, "worker": 65, "doctor": 1}
    for command, process in processes.items():
        assert f"has the encoding {encoding}" in process.text, command
        assert "CREATE DATABASE jobs ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0" in process.text, command
        assert "Traceback" not in process.text, command
