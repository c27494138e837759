"""The looks of the sampler at servers: one that is slow, and one whose role may not see what the sessions do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.features.where import server_looks
from dataloader.app.features.where.account import find_cause
from dataloader.app.features.where.server_looks import ServerLooks
from dataloader.pipelines.portable import clock
from tests.app.features.where.test_accounts import MOMENT
from tests.support.databases import another_role, execute_sql
from tests.support.waiting import eventually

SLOW_SEC = 0.15  # for a look


@pytest.fixture
def name(target_dsn: str) -> Iterator[str]:
    """That of an attempt, whose session has executed a statement."""
    made = f"dataloader:{uuid4()}:0a1b2c3d"
    with closing(psycopg2.connect(target_dsn, application_name=made)) as connection:
        connection.cursor().execute("SELECT 1 FROM sales")
        yield made


def look(looks: ServerLooks, name: str) -> None:
    """Have the server looked at once more."""
    before = looks.look_count

    def looked() -> bool:
        looks.request([name])
        return looks.look_count > before

    eventually(looked, message="the server was looked at")


def test_slow_server_is_not_asked_for_longer_each_time(target_dsn: str, name: str, monkeypatch: pytest.MonkeyPatch):
    execute_sql(
        target_dsn,
        "CREATE SCHEMA slow",
        "CREATE VIEW slow.pg_stat_activity AS SELECT a.* FROM pg_catalog.pg_stat_activity a"
        f" CROSS JOIN (SELECT pg_sleep({SLOW_SEC})) waited",
    )
    later_sec = [0.0]
    monkeypatch.setattr(server_looks, "clock", lambda: clock() + later_sec[0])
    with closing(
        ServerLooks({"warehouse": make_dsn(target_dsn, options="-c search_path=slow,pg_catalog")}, 1.0)
    ) as looks:
        problems = []
        for pause_sec in (30.0, 60.0):
            look(looks, name)
            eventually(lambda: "was not asked" in looks.problems.get("warehouse", ""), message="it was slow")
            problems.append(looks.problems["warehouse"])
            count = looks.look_count
            later_sec[0] += pause_sec - 5
            looks.request([name])  # too early: another look would lengthen the next pause
            later_sec[0] += 6
        look(looks, name)

        assert looks.look_count == count + 1
        assert [problem.rpartition("for ")[2] for problem in problems] == ["30 s", "60 s"]
        assert looks.problems["warehouse"].endswith("so that it was not asked for 120 s")


def test_quick_server_is_asked_each_second(target_dsn: str, name: str):
    with closing(ServerLooks({"warehouse": target_dsn}, 0.01)) as looks:
        for _ in range(3):
            look(looks, name)

        assert looks.problems == {}
        assert [found.statement for found in looks.latest(name)] == ["SELECT … FROM sales"]


def test_role_without_rights_sees_no_statement_and_says_so(target_dsn: str, name: str):
    with another_role(target_dsn) as role:
        looks = ServerLooks({"warehouse": make_dsn(target_dsn, user=role, password="x")}, 0.01)
        look(looks, name)
        found, problems = looks.latest(name), looks.problems
        looks.close()

    assert [(session.state, session.wait) for session in found] == [(None, None)]
    assert problems == {"warehouse": "the role may not see what the sessions do"}
    cause = find_cause(MOMENT | {"driver": True}, found)
    assert (cause.kind, cause.statement) == ("network", None)
