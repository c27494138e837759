"""What the API says of the targets of a job, and of those of the settings."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.features.targets.rows import TargetRows
from dataloader.app.features.targets.servers import TargetServers
from dataloader.pipelines import effects
from tests.app.features.targets.conftest import AppFactory
from tests.support import free_port
from tests.support.databases import execute_sql
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall
from tests.support.target_fixture import TARGET, TargetFixture, write_part

HOSTILE = 'it\'s "a" target; <b>%s {table}</b> \\'


def load_part(args: Any, ctx: Any) -> None:
    with ctx.transaction() as connection:
        write_part(connection, "a", ctx)
        ctx.checkpoint({"day": 3, "password": "hidden"})


def read_job(open_app: AppFactory, job_id: UUID) -> list[dict[str, Any]]:
    answer = open_app().get(f"/api/v1/jobs/{job_id}/targets").get_json()
    targets: list[dict[str, Any]] = answer["targets"]
    return targets


def read_targets(open_app: AppFactory) -> dict[str, dict[str, Any]]:
    answer = open_app().get("/api/v1/targets").get_json()
    return {target["target"]: target for target in answer["targets"]}


def declare(target: TargetFixture, **targets_by_task: str) -> None:
    TargetRows(target.queue_db.session).declare(targets_by_task, targets_by_task)


# ── of a job ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_position_and_holder_are_read_from_the_target(target: TargetFixture, open_app: AppFactory):
    job_id, seen = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        load_part(args, ctx)
        with ctx.transaction() as connection:
            write_part(connection, "b", ctx)
            seen.extend(read_job(open_app, job_id))

    target.run(load)

    (during,) = seen
    run_id, fence = str(target.queue_db.job(job_id).run_id), target.row(job_id)[0]
    assert (during["target"], during["fenced"], during["problem"]) == (TARGET, True, None)
    assert (during["run_id"], during["fence"], during["unread"]) == (run_id, fence, None)
    live = during["live"]
    assert (live["position"], live["done_at"], live["locked"]) == ({"day": 3, "password": "***"}, None, True)
    (session,) = live["sessions"]
    assert session["application_name"] == f"dataloader:{job_id}:{run_id[:8]}"
    assert (session["run"], session["state"], session["holds_row"]) == (run_id[:8], "idle in transaction", True)
    assert 0 <= session["transaction_sec"] < 60
    (after,) = read_job(open_app, job_id)
    assert (after["live"]["locked"], after["live"]["sessions"]) == (False, [])
    assert after["live"]["at"] is not None


def test_session_of_others_that_holds_the_row_is_named_with_those_that_wait(
    target: TargetFixture, open_app: AppFactory
):
    job_id = target.enqueue()
    target.run(load_part, settle=False)
    run = target.queue_db.job(job_id).run_id
    name = f"dataloader:{job_id}:{str(run)[:8]}"

    with target.open_transaction() as step:
        step("SET application_name = 'a person''s \"psql\"'")
        step("SELECT 1 FROM dl_effects WHERE job_id = %s FOR UPDATE", str(job_id))
        lock = "UPDATE dl_effects SET fence = fence WHERE job_id = %s"
        waiting = psycopg2.connect(target.dsn, application_name=name)
        call = BackgroundCall(waiting.cursor().execute, lock, [str(job_id)])
        target.wait_for_lock_waiter()
        (found,) = read_job(open_app, job_id)
    call.result()
    waiting.close()

    holder, waiter = found["live"]["sessions"]
    assert (holder["application_name"], holder["run"], holder["holds_row"]) == ('a person\'s "psql"', None, True)
    assert (waiter["run"], waiter["waits_for"], waiter["holds_row"]) == (str(run)[:8], [holder["pid"]], False)


def test_session_that_blocks_an_attempt_elsewhere_is_named(target: TargetFixture, open_app: AppFactory):
    job_id = target.enqueue()
    target.register(load_part)
    with target.open_transaction() as step:
        step("LOCK TABLE parts IN EXCLUSIVE MODE")
        call = BackgroundCall(target.run, None, settle=False)
        target.wait_for_lock_waiter()
        (found,) = read_job(open_app, job_id)
    call.result()

    own, blocking = found["live"]["sessions"]
    assert own["holds_row"]
    assert own["waits_for"] == [blocking["pid"]]
    assert blocking["run"] is None


def test_problem_of_a_target_that_is_not_fenced_is_given(target: TargetFixture, other_role: str, open_app: AppFactory):
    target.targets[TARGET] = other_role
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    job_id = target.enqueue()
    target.run(load_part)

    (found,) = read_job(open_app, job_id)

    assert found["fenced"] is False
    assert "has no table dl_effects in its schema public" in found["problem"]
    assert (found["live"]["position"], found["live"]["locked"]) == (None, False)


def test_job_without_a_target_has_none_and_an_unknown_job_is_not_found(target: TargetFixture, open_app: AppFactory):
    assert read_job(open_app, target.enqueue()) == []
    answer = open_app().get(f"/api/v1/jobs/{uuid4()}/targets")
    assert (answer.status_code, answer.get_json()["code"]) == (404, "job_not_found")


def test_target_that_cannot_be_read_is_said_in_a_field(target: TargetFixture, open_app: AppFactory):
    job_id = target.enqueue()
    target.run(load_part)
    target.targets[TARGET] = f"host=127.0.0.1 port={free_port()} user=secret_user password=secret_password"

    (away,) = read_job(open_app, job_id)
    target.targets.clear()
    (unknown,) = read_job(open_app, job_id)

    assert away["live"] is None
    assert away["fenced"] is True
    assert away["unread"] == "Connection refused"
    assert unknown["unread"] == "the settings of this process have no such target"


def test_row_of_another_name_is_read_by_the_default_entry(target: TargetFixture, open_app: AppFactory):
    job_id = target.enqueue()
    target.run(load_part)
    target.targets.clear()
    target.targets["default"] = target.dsn

    (found,) = read_job(open_app, job_id)

    assert found["live"]["position"] == {"day": 3, "password": "***"}


def test_target_of_a_hostile_name_is_read(target: TargetFixture, open_app: AppFactory):
    target.targets = {HOSTILE: target.dsn}
    job_id = target.enqueue()
    target.run(load_part, target=HOSTILE)

    (found,) = read_job(open_app, job_id)

    assert found["target"] == HOSTILE
    assert found["live"]["position"] == {"day": 3, "password": "***"}


def test_table_in_a_schema_of_a_hostile_name_is_used(target: TargetFixture, open_app: AppFactory):
    schema = 'per%cent "and" {table} %(job_id)s'
    quoted = '"' + schema.replace('"', '""') + '"'
    target.sql(f"CREATE SCHEMA {quoted}".replace("%", "%%"))
    owner = target.sql("SELECT current_user")[0][0]
    database = target.sql("SELECT current_database()")[0][0]
    path = f'ALTER ROLE "{owner}" IN DATABASE "{database}" SET search_path = {quoted}, public'
    target.sql(path.replace("%", "%%"))
    job_id = target.enqueue()

    target.run(load_part)

    (found,) = read_job(open_app, job_id)
    assert found["live"]["position"] == {"day": 3, "password": "***"}
    assert target.sql("SELECT schemaname FROM pg_tables WHERE tablename = 'dl_effects'") == [(schema,)]


def test_silent_target_is_waited_for_once_and_briefly(target: TargetFixture, open_app: AppFactory):
    job_id = target.enqueue()
    target.run(load_part)
    with SilentProxy(target.dsn) as proxy:
        proxy.silence()
        target.targets[TARGET] = proxy.dsn
        client = open_app()
        times, answers = [], []
        for _ in range(2):
            started = time.monotonic()
            answers += client.get(f"/api/v1/jobs/{job_id}/targets").get_json()["targets"]
            times.append(time.monotonic() - started)

    assert [answer["live"] for answer in answers] == [None, None]
    assert "timeout expired" in answers[0]["unread"]
    assert times[0] < 10
    assert times[1] < 2, "a target that was just away is not asked again"


# ── of the settings ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_targets_are_listed_with_their_tasks_and_rows(target: TargetFixture, open_app: AppFactory):
    target.targets[HOSTILE] = target.dsn
    declare(target, t=TARGET, u=TARGET, v=HOSTILE, w="nowhere")
    target.enqueue()
    target.run(load_part)

    found = read_targets(open_app)

    assert list(found) == sorted([TARGET, HOSTILE, "nowhere"])
    assert found[TARGET] == {
        "target": TARGET, "entry": TARGET, "queue_database": False, "reachable": True, "fenced": True, "problem": None,
        "tasks": ["t", "u"], "rows": 1,
    }  # fmt: skip
    assert (found[HOSTILE]["tasks"], found[HOSTILE]["rows"]) == (["v"], 1)
    assert (found["nowhere"]["entry"], found["nowhere"]["queue_database"]) == (None, True)


def test_table_that_does_not_exist_yet_is_not_created_by_a_look(target: TargetFixture, open_app: AppFactory):
    found = read_targets(open_app)[TARGET]

    assert (found["fenced"], found["problem"], found["rows"]) == (True, None, None)
    assert target.sql("SELECT to_regclass('dl_effects')") == [(None,)]


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        ((), "has no table dl_effects in its schema public, and its role"),
        ((effects.CREATE_TABLE,), "may not read and write the table public.dl_effects"),
        ((effects.CREATE_TABLE, "ALTER TABLE dl_effects DROP COLUMN position"), "it has no column position"),
    ],
)
def test_target_that_is_not_fenced_says_why(
    target: TargetFixture, other_role: str, open_app: AppFactory, prepare: tuple[str, ...], problem: str
):
    target.targets[TARGET] = other_role
    execute_sql(target.dsn, *prepare)

    found = read_targets(open_app)[TARGET]

    assert (found["reachable"], found["fenced"]) == (True, False)
    assert problem in found["problem"]


def test_answers_have_no_address_and_no_password(target: TargetFixture, open_app: AppFactory):
    target.targets.update(
        refused=f"host=127.0.0.1 port={free_port()} user=someone password=open-sesame",
        lost="host=no-such-host.invalid user=someone password=open-sesame",
        wrong=make_dsn(target.dsn, dbname="no_such_database"),
        queue=target.queue_db.dsn,
    )

    answer = open_app().get("/api/v1/targets")

    assert not {text for text in ("open-sesame", "127.0.0.1", "no-such-host", "host=") if text in answer.text}
    found = {target["target"]: target for target in answer.get_json()["targets"]}
    assert (found["refused"]["reachable"], found["refused"]["problem"]) == (False, "Connection refused")
    assert found["lost"]["problem"] == "the name of its host cannot be resolved"
    assert found["wrong"]["problem"] == 'database "no_such_database" does not exist'
    assert (found["queue"]["queue_database"], found["queue"]["fenced"], found["queue"]["reachable"]) == (
        True, True, None,
    )  # fmt: skip


def test_service_without_targets_lists_none(target: TargetFixture, open_app: AppFactory):
    target.targets.clear()

    assert read_targets(open_app) == {}


def test_declared_targets_are_those_of_the_last_declaration(target: TargetFixture):
    rows = TargetRows(target.queue_db.session)
    rows.declare(["a", "b", "c"], {"a": "x", "b": "x"})
    rows.declare(["b", "c"], {"c": 'it\'s "y"'})

    assert rows.tasks() == {"x": ["a"], 'it\'s "y"': ["c"]}


# ── the servers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_same_question_is_asked_once(target: TargetFixture):
    servers, asked = TargetServers({TARGET: target.dsn}), []

    def question(connection: Any) -> int:
        asked.append(connection)
        return len(asked)

    values = [servers.ask({(TARGET, "x"): question})[TARGET, "x"].value for _ in range(3)]

    assert values == [1, 1, 1]


def test_late_answer_is_for_the_next_asker(target: TargetFixture):
    servers = TargetServers({TARGET: target.dsn})

    def slow(connection: Any) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.5)")
        return "slept"

    first = servers.ask({(TARGET, "x"): slow}, wait_sec=0.05)[TARGET, "x"]
    second = servers.ask({(TARGET, "x"): slow}, wait_sec=30)[TARGET, "x"]

    assert (first.value, first.problem) == (None, "it has not answered yet")
    assert second.value == "slept"


def test_questions_at_once_are_bounded(target: TargetFixture):
    servers = TargetServers({TARGET: target.dsn})

    def slow(connection: Any) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.5)")
        return "slept"

    answers = servers.ask({(TARGET, n): slow for n in range(6)}, wait_sec=30)

    values = [answer.value for answer in answers.values()]
    assert values == ["slept"] * 4 + [None] * 2
    assert "not answered yet" in str(answers[TARGET, 5].problem)
