"""`dataloader where`: what is printed of a job, from a service and from answers with hostile text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.features.where import commands
from dataloader.app.features.where.where_lines import where_lines
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.app.features.where.conftest import WhereFixture
from tests.app.features.where.test_sessions import is_blocked, open_transaction
from tests.support.api_server import serving
from tests.support.databases import execute_sql

HOSTILE = "evil\x1b[2J\r\n\u202e"


def frame(function: str, kind: str, repeated: int = 1, file: str = "/srv/sales/load.py") -> dict[str, Any]:
    return {"file": file, "line": 88, "function": function, "kind": kind, "repeated": repeated}


def answer(**more: Any) -> dict[str, Any]:
    thread = {
        "name": HOSTILE, "is_task": True, "frame_count": 14,
        "frames": [
            frame("read", "standard"), frame("get", "standard"), frame(HOSTILE, "task", 3), frame("run", "dataloader"),
        ],
    }  # fmt: skip
    process = {
        "pid": 5, "parent_pid": 4, "depth": 1, "name": HOSTILE, "state": "running", "cpu_percent": 99.6,
        "cpu_sec": 61.23, "memory_mb": 512.4, "threads": 3,
    }  # fmt: skip
    session = {
        "pid": 7, "database": "d", "user": "u", "state": "active", "state_sec": 12.0, "transaction_sec": 60.0,
        "wait_event_type": "Lock", "wait_event": "relation", "statement": HOSTILE, "lock_on": "sales",
        "waits_for": [8, 0], "visible": True,
    }  # fmt: skip
    blocker = {
        "pid": 8, "application_name": HOSTILE, "user": "ann", "database": "d", "kind": "client backend",
        "state": "idle in transaction", "state_sec": 1.0, "transaction_sec": 720.0, "waits_for": [], "root": True,
        "job_id": None,
    }  # fmt: skip
    server = {"server": HOSTILE, "problem": HOSTILE, "sessions": [session], "blockers": [blocker, {"pid": 0}]}
    return {
        "status": "running", "summary": HOSTILE, "problem": None, "threads": [thread], "processes": [process],
        "process_count": 1, "servers": [server], **more,
    }  # fmt: skip


def test_lines_fold_other_code_and_print_no_control_characters():
    lines = list(where_lines(answer()))

    assert all(line.isprintable() for line in lines)
    assert lines == [
        "evil [2J",
        "",
        "Thread evil [2J, 14 frames",
        "  … 2 frames of Python's library: read",
        "  evil [2J /srv/sales/load.py:88 × 3",
        "  … 1 frame of dataloader: run",
        "",
        "1 process",
        "    5 evil [2J: running, 100 % of a CPU, 61.2 s in all, 512 MB",
        "",
        "Sessions on evil [2J",
        "  evil [2J",
        "  pid 7 active for 12 s, waits for Lock: relation on sales, blocked by pid 8, 0",
        "    evil [2J",
        "  blocked by pid 8 (evil [2J , user ann): idle in transaction, transaction 12 min, the root",
        "  blocked by a prepared transaction",
    ]


def test_all_frames_are_printed_on_request():
    lines = list(where_lines(answer(processes=[], servers=[]), shows_all=True))

    assert [line.split()[0] for line in lines[3:]] == ["read", "get", "evil", "run"]


def test_job_that_does_not_run_is_one_line():
    assert list(where_lines(answer(status="failed", summary="The job has ended."))) == ["The job has ended."]


def run(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["where", *arguments, "--url", url])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_command_shows_stack_and_holder(where: WhereFixture, target_dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commands, "_INTERVAL_SEC", 0.1)
    execute_sql(where.pools.dsn, "CREATE TABLE sales (id int)")
    with open_transaction(where.pools.dsn, "LOCK TABLE sales IN ACCESS EXCLUSIVE MODE") as other:
        job_id = where.start("query", statement="SELECT 'hidden' FROM sales")
        where.locate_until(job_id, is_blocked)
        with serving(where.pools.dsn, where.pools.pipelines) as url:
            printed = run(url, str(job_id))
            as_json = json.loads(run(url, str(job_id)[:13], "--json"))
            other.rollback()
            watched = run(url, str(job_id), "--watch")

    lines = printed.splitlines()
    assert lines[0].startswith("query in support/where_tasks.py:")
    assert "for a lock on sales, held by pid " in lines[0]
    assert any(line.startswith("  query  ") or line.startswith("  query ") for line in lines)
    assert "    SELECT '…' FROM sales" in lines
    assert any(line.startswith("  blocked by pid ") and line.endswith("the root") for line in lines)
    assert as_json["job_id"] == str(job_id)
    assert watched.splitlines()[-1] == "The job has ended: it is succeeded."


def test_key_without_the_scope_of_logs_is_refused(where: WhereFixture):
    keys = ApiKeys(where.app_pool)
    options = WebOptions(version="1")
    client = create_app(JobQueue(where.app_pool), Pipelines(), options, pool=where.app_pool, keys=keys).test_client()
    job_id = where.pools.add_job("stay")
    paths = (f"/api/v1/jobs/{job_id}/where", f"/api/v1/jobs/{job_id}/logs")
    tokens = {
        scope: keys.create(NewApiKey(name=scope.value, scopes=frozenset({scope}), created_by="test"))[1]
        for scope in (Scope.TRIGGER, Scope.READ)
    }

    statuses = {
        scope: [client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code for path in paths]
        for scope, token in tokens.items()
    }

    assert statuses == {Scope.TRIGGER: [403, 403], Scope.READ: [200, 200]}
