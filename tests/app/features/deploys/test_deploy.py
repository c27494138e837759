"""A deploy of the pipelines' code: which processes claim, which finish, and what attempts record of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from uuid import uuid4

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.runtime.code_release import find_release
from tests.support.queue_fixture import QueueFixture

Deploy = Callable[..., tuple[int, str]]


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers")
    yield made
    made.close()


@pytest.fixture
def deploy(queue_db) -> Deploy:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["deploy", *words], env={"DL_DB_DSN": queue_db.dsn, "DL_RELEASE": "of-settings"})
        return done.exit_code, done.output

    return run


def register(queue_db: QueueFixture, name: str, release: str | None) -> None:
    info = WorkerInfo(uuid4(), name, "1", ("q",), ("t",), 2, code_release=release)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)


def drained(queue_db: QueueFixture) -> list[str]:
    return [name for (name,) in queue_db.sql("SELECT name FROM dl_workers WHERE draining ORDER BY name")]


def test_processes_of_other_releases_are_drained_and_waited_for(queue_db, deploy):
    register(queue_db, "host:1", "old")
    register(queue_db, "host:2", None)
    register(queue_db, "host:3", "new")
    run = queue_db.enqueue_and_claim("held")
    queue_db.sql("UPDATE dl_jobs SET worker = 'host:1' WHERE job_id = %s", str(run.id))

    waited = deploy("new", "--wait", "--timeout", "1")
    queue_db.settle(run)
    ended = deploy("new", "--wait")

    assert waited[0] == 1
    assert "still running: 1 job of release old; the longest, t, since " in waited[1]
    assert ended == (0, "1 worker process of release new claim jobs; 2 others drained, running 0 jobs.\n")
    assert drained(queue_db) == ["host:1", "host:2"]


def test_nothing_is_drained_while_the_release_has_too_few_processes(queue_db, deploy):
    register(queue_db, "host:1", "old")
    register(queue_db, "host:2", "new")

    code, shown = deploy("new", "--min-workers", "2", "--timeout", "1")

    assert code == 1
    assert "waiting for 1 more worker process of release new" in shown
    assert "1 worker process of release new missing; nothing was changed." in shown
    assert drained(queue_db) == []


def test_deploy_of_the_former_release_takes_one_back(queue_db, deploy):
    register(queue_db, "host:1", "old")
    register(queue_db, "host:2", "new")
    deploy("new")

    assert deploy("old")[0] == 0
    assert drained(queue_db) == ["host:2"]


def test_release_is_that_of_the_settings_unless_named(queue_db, deploy):
    register(queue_db, "host:1", "of-settings")

    assert deploy()[1].startswith("1 worker process of release of-settings claim jobs")


def test_deploy_is_audited_as_the_account(queue_db, deploy):
    register(queue_db, "host:1", "old")
    register(queue_db, "host:2", "new")
    deploy("new")

    ((action, actor),) = queue_db.sql("SELECT action, actor FROM dl_audit ORDER BY audit_id DESC LIMIT 1")
    assert (action, actor.partition(" ")[0]) == ("deploy", "account")


def test_attempts_record_the_release_that_ran_them(queue_db):
    job_id = queue_db.enqueue("k")
    for release in ("old", "new", None):
        queue = type(queue_db.queue)(queue_db.session, code_release=release)
        ((run, *_), _) = queue.claim("q", ["t"], [uuid4()], "host:1")
        queue_db.release(run)

    attempts = JobReader(queue_db.session).attempts(job_id)

    assert [attempt.release for attempt in attempts] == ["old", "new", None]
    ((payload,),) = queue_db.sql(
        "SELECT payload FROM dl_job_events WHERE kind = 'picked' ORDER BY event_id DESC LIMIT 1"
    )
    assert "release" not in payload  # what has no release costs nothing


@pytest.mark.parametrize("layout", ["branch", "packed", "detached", "worktree"])
def test_release_is_the_commit_of_the_package(tmp_path, monkeypatch, layout):
    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", "-C", tmp_path / "a", *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    package = f"company_{layout}"
    (tmp_path / "a" / package).mkdir(parents=True)
    (tmp_path / "a" / package / "__init__.py").touch()
    git("init", "--quiet", "--initial-branch", "team/main")
    git("add", "."), git("commit", "--quiet", "--message", "x")
    commit, path = git("rev-parse", "HEAD"), tmp_path / "a"
    if layout == "packed":
        git("pack-refs", "--all")
    elif layout == "detached":
        git("checkout", "--quiet", "--detach")
    elif layout == "worktree":
        path = tmp_path / "b"
        git("worktree", "add", "--quiet", str(path))
    monkeypatch.syspath_prepend(str(path))

    assert find_release(None, ["dataloader.pipelines", package]) == commit[:12]
    assert find_release("2026.11", [package]) == "2026.11"
    assert find_release("none", [package]) is None


def test_code_outside_of_a_working_copy_has_no_release(tmp_path, monkeypatch):
    (tmp_path / "installed.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    assert find_release(None, ["installed", "missing", "dataloader.pipelines"]) is None
