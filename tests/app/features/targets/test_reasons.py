"""What `why` and the job's page say of targets."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from dataloader.app.features.jobs import job_page
from dataloader.app.features.targets import reasons
from dataloader.app.queue.job import Status
from dataloader.pipelines import effects
from tests.app.features.targets.conftest import AppFactory
from tests.support import free_port
from tests.support.databases import execute_sql
from tests.support.target_fixture import TARGET, TargetFixture, write_part

HOSTILE = 'it\'s a "target" <b>'


@pytest.fixture(autouse=True)
def waiting_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for a target on a busy machine too."""
    monkeypatch.setattr(job_page, "_TARGET_WAIT_SEC", 30.0)
    monkeypatch.setattr(reasons, "_WAIT_SEC", 30.0)


def load_part(args: Any, ctx: Any) -> None:
    with ctx.transaction() as connection:
        write_part(connection, "a", ctx)
        ctx.checkpoint(["2026-01-31", {"password": "hidden"}])


def reasons_of(open_app: AppFactory, job_id: UUID) -> dict[str, dict[str, Any]]:
    answer = open_app().get(f"/api/v1/jobs/{job_id}/why").get_json()
    return {reason["code"]: reason for reason in answer["reasons"]}


def page_of(open_app: AppFactory, job_id: UUID) -> str:
    answer = open_app().get(f"/jobs/{job_id}")
    assert answer.status_code == 200
    return answer.text


def part_of(open_app: AppFactory, job_id: UUID) -> str:
    """The text of the part about targets, without its tags."""
    found = re.search(r'<section class="sec" id="targets".*?</section>', page_of(open_app, job_id), re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[0])).split())


def test_released_job_names_the_session_that_holds_its_row(
    target: TargetFixture, open_app: AppFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(effects, "MAX_WAIT_SEC", 0.2)
    job_id = target.enqueue()
    target.register(load_part)
    lost = target.claim()
    target.attempt(lost).run(target.tasks.get("t"))
    first = lost.run_id
    target.queue_db.lose_attempt(lost)
    zombie = psycopg2.connect(target.dsn, application_name=f"dataloader:{job_id}:{str(first)[:8]}")
    cursor = zombie.cursor()
    cursor.execute("SELECT pg_backend_pid() FROM dl_effects WHERE job_id = %s FOR UPDATE", [str(job_id)])
    (pid,) = cursor.fetchone() or (0,)

    target.run()

    assert target.queue_db.job(job_id).status is Status.QUEUED
    reason = reasons_of(open_app, job_id)["target_busy"]
    assert "The previous attempt's transaction was still open in target 'warehouse'" in reason["message"]
    assert f"held by the session of run {str(first)[:8]} (pid {pid}), idle in transaction, for " in reason["message"]
    assert reason["message"].endswith(".")
    assert reason["details"]["session"]["pid"] == pid
    assert f"the session of run {str(first)[:8]} (pid {pid}), idle in transaction" in part_of(open_app, job_id)
    zombie.close()
    reason = reasons_of(open_app, job_id)["target_busy"]
    assert reason["message"].endswith("No session holds the job's row there any more.")
    target.targets[TARGET] = f"host=127.0.0.1 port={free_port()}"
    reason = reasons_of(open_app, job_id)["target_busy"]
    assert reason["message"].endswith("Who holds the job's row there is not known: Connection refused.")


def test_running_job_says_which_targets_are_not_fenced(target: TargetFixture, other_role: str, open_app: AppFactory):
    target.targets = {HOSTILE: other_role}
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    job_id = target.enqueue()
    seen: list[Any] = []

    def load(args: Any, ctx: Any) -> None:
        load_part(args, ctx)
        seen.append(reasons_of(open_app, job_id))
        seen.append(part_of(open_app, job_id))
        seen.append(page_of(open_app, job_id))

    target.run(load, target=HOSTILE)

    found, part, page = seen
    assert list(found)[-2:] == ["target_not_fenced", "running"]
    message = found["target_not_fenced"]["message"]
    assert f"to target {HOSTILE!r} is not fenced" in message
    assert "may not create one" in message
    assert f"{HOSTILE} no" in part
    assert page.count("may not create one") == 1, "a note has it; a fact appears once"
    assert "may not create one" in part_of(open_app, job_id), "once there is no note"
    assert "<b>" not in page.partition('id="targets"')[2].partition("</section>")[0]
    assert "target_not_fenced" not in reasons_of(open_app, job_id), "it has ended"


def test_page_has_no_part_for_a_job_without_a_target(target: TargetFixture, open_app: AppFactory):
    assert 'id="targets"' not in page_of(open_app, target.enqueue())


def test_page_shows_the_position_of_a_job_that_runs(target: TargetFixture, open_app: AppFactory):
    job_id, seen = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        seen.append(part_of(open_app, job_id))
        load_part(args, ctx)
        seen.append(part_of(open_app, job_id))
        with ctx.transaction(final=True, result=1) as connection:
            write_part(connection, "b", ctx)
        seen.append(part_of(open_app, job_id))

    target.run(load, settle=False)

    before, after, done = seen
    assert "none yet" in before
    assert '[ "2026-01-31", { "password": "***" }]' in re.sub(r"\s+", " ", after)
    assert "no session" in after
    assert "attempt 1" in after
    assert "done" in done


def test_page_of_an_ended_job_contacts_no_target(target: TargetFixture, open_app: AppFactory):
    job_id = target.enqueue()
    target.run(load_part)
    target.targets[TARGET] = f"host=127.0.0.1 port={free_port()}"

    part = part_of(open_app, job_id)

    assert part.startswith("Targets not read: the job has ended Target Fenced Claimed by warehouse yes attempt 1")


def test_page_does_not_wait_for_a_target_that_is_away(target: TargetFixture, open_app: AppFactory):
    job_id, seen = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        load_part(args, ctx)
        target.targets[TARGET] = f"host=127.0.0.1 port={free_port()}"
        seen.append(part_of(open_app, job_id))

    target.run(load)

    assert "not read: Connection refused" in seen[0]
