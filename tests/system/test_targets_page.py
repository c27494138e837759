"""The example of docs/targets.md against a killed worker; workers/test_target_pages.py has its other tasks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dataloader import Client
from dataloader.app.queue.job import Status
from dataloader.pipelines import effects
from tests.support import Databases, Process, eventually, free_port
from tests.support.checkout import python_blocks
from tests.support.processes import ROOT, clean_environment

PAGE = (ROOT / "docs/targets.md").read_text(encoding="utf-8")
TABLE = "CREATE TABLE orders (day date, number int, amount int)"
# The insert of the third day waits until the worker has been killed.
STOP_AT_THIRD_DAY = """
CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_advisory_xact_lock_shared(1);
    RETURN new;
END $$;
CREATE TRIGGER orders_wait BEFORE INSERT ON orders FOR EACH ROW WHEN (new.day = '2030-01-03')
    EXECUTE FUNCTION wait_for_lock();
SELECT pg_advisory_lock(1);
"""
IS_WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class Site:
    """A service with a target, and commands in another terminal."""

    def __init__(self, queue_dsn: str, targets: dict[str, str], folder: Path) -> None:
        (folder / "my_etl.py").write_text("\n".join(python_blocks(PAGE)), encoding="utf-8")
        port = free_port()
        self._folder = folder
        self.client = Client(f"http://127.0.0.1:{port}")
        self._env = {
            "DL_DB_DSN": queue_dsn,
            "DL_TARGETS": json.dumps(targets),
            "DL_PIPELINES": "my_etl",
            "DL_URL": f"http://127.0.0.1:{port}",
            "APP_PORT": str(port),
            "PYTHONPATH": f"{folder}:{ROOT}",
        }

    @contextmanager
    def running(self, name: str) -> Iterator[Process]:
        with Process.dataloader("serve", output=self._folder / name, env=self._env) as service:
            service.wait_for_line("is ready at")
            yield service

    def command(self, line: str) -> list[str]:
        """Run a line of the page, such as `dataloader show JOB | tail -n 3`."""
        script = line.replace("dataloader ", f"{sys.executable} -m app ", 1)
        env = clean_environment() | self._env
        done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, env=env, cwd=ROOT, check=True)
        return done.stdout.splitlines()


def shown_commands() -> list[tuple[str, list[str]]]:
    """The commands of the page, each with the lines that it prints."""
    shown: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                shown.append((line[2:], []))
            else:
                shown[-1][1].append(line)
    return shown


def without_names(lines: list[str]) -> list[str]:
    """Without times, and without the names of the machine and its processes."""
    texts = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00", "TIME", line).rstrip() for line in lines]
    return [re.sub(r"[\w.-]+:\d+\b", "WORKER", line) for line in texts if line.strip()]


@pytest.fixture
def dsns(databases: Databases) -> Iterator[tuple[str, str]]:
    """Of a queue and a warehouse."""
    with databases.fresh(schema=False) as queue_dsn, databases.fresh(schema=False) as warehouse_dsn:
        execute(warehouse_dsn, TABLE)
        yield queue_dsn, warehouse_dsn


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_each_day_is_written_once_when_the_worker_is_killed(dsns: tuple[str, str], tmp_path: Path):
    queue_dsn, warehouse_dsn = dsns
    site = Site(queue_dsn, {"warehouse": warehouse_dsn}, tmp_path)
    (trigger, printed), (kill, _), *looks = shown_commands()
    assert kill.startswith("kill -9")
    (shown_id,) = re.findall(r"Job (\S+) is", printed[0])
    with closing(psycopg2.connect(warehouse_dsn)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute(STOP_AT_THIRD_DAY)
        with site.running("first") as service:
            first_line = site.command(trigger)[0]
            (job_id,) = re.findall(r"Job (\S+) is", first_line)
            assert first_line.replace(job_id, shown_id) == printed[0]
            eventually(lambda: execute(warehouse_dsn, IS_WAITING) == [(1,)], message="the third day is written")
            eventually(lambda: len(site.client.logs(job_id)["lines"]) == 3, message="the log is stored")
            service.kill()
        cursor.execute("SELECT pg_advisory_unlock(1)")
    with site.running("second"):
        eventually(lambda: site.client.status(job_id)["status"] == Status.SUCCEEDED, message="the job has succeeded")
        eventually(lambda: len(site.client.logs(job_id)["lines"]) == 5, message="the log is stored")
        for command, lines in looks:
            result = [line.replace(job_id, shown_id) for line in site.command(command.replace(shown_id, job_id))]
            assert without_names(result) == without_names(lines), command

    queries = re.findall(r"^dwh=> (SELECT .*?);\n.*\n-.*\n((?: .*\n)+)", PAGE, re.MULTILINE)
    assert len(queries) == 2
    for query, rows in queries:
        cells = [[cell.strip() for cell in row.split("|")] for row in rows.replace(shown_id, job_id).splitlines()]
        texts = f"SELECT row_to_json(t) FROM ({query}) t"
        values = [[value_text(value) for value in row.values()] for (row,) in execute(warehouse_dsn, texts)]
        assert values == cells


def value_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def test_the_table_of_the_page_is_the_one_that_is_created():
    assert f"```sql\n{effects.CREATE_TABLE};\n```" in PAGE
