"""What doctor says of targets, and that its remedies help."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.acts.findings import Finding, Severity
from dataloader.app.db.pool import Pool
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.targets import rows
from dataloader.app.features.targets.checks import check_targets
from dataloader.app.features.targets.feature import FEATURE
from dataloader.app.features.targets.rows import TargetRows
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.pipelines import effects
from tests.support import free_port
from tests.support.databases import execute_sql
from tests.support.remedies import invoke
from tests.support.target_fixture import TARGET, TargetFixture, write_part

HOSTILE = 'it\'s a "target"; $(rm) <b>'


def load_part(args: Any, ctx: Any) -> None:
    with ctx.transaction() as connection:
        write_part(connection, "a", ctx)
        ctx.checkpoint(1)


def check(target: TargetFixture) -> list[Finding]:
    servers = TargetServers(target.targets, queue_dsn=target.queue_db.dsn)
    return list(check_targets(target.queue_db.session, servers))


def problems(target: TargetFixture) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(target) if finding.severity is not Severity.OK}


def name_target(target: TargetFixture, name: str = TARGET) -> None:
    """As a task does, whose worker has started."""
    TargetRows(target.queue_db.session).declare(["load"], {"load": name})


def print_schema(target: TargetFixture, *arguments: str) -> str:
    done = invoke(target.queue_db.dsn, "targets", "schema", *arguments, DL_TARGETS=json.dumps(target.targets))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_target_of_the_settings_without_tasks_and_rows_is_not_contacted(target: TargetFixture):
    target.targets["elsewhere"] = f"host=127.0.0.1 port={free_port()}"

    assert check(target) == []


def test_fenced_target_is_in_order(target: TargetFixture):
    name_target(target)
    (before,) = check(target)
    target.enqueue()
    target.run(load_part)

    (after,) = check(target)

    assert (before.severity, before.message) == (
        Severity.OK, "target 'warehouse' gets its table dl_effects by the first attempt",
    )  # fmt: skip
    assert (after.severity, after.message) == (Severity.OK, "target 'warehouse' is fenced: 1 row")


@pytest.mark.parametrize("name", [TARGET, HOSTILE])
def test_remedy_of_a_target_without_a_table_creates_it(target: TargetFixture, other_role: str, name: str):
    target.targets = {name: other_role}
    name_target(target, name)

    found = problems(target)["target_not_fenced"]

    assert found.severity is Severity.WARNING
    assert found.message.startswith(f"not fenced: target {name!r} has no table dl_effects in its schema public")
    assert re.fullmatch(r"dataloader targets schema .+ \| psql", found.remedy)
    execute_sql(target.dsn, print_schema(target, name))
    assert problems(target) == {}


def test_remedy_of_a_table_that_may_not_be_written_grants_it(target: TargetFixture, other_role: str):
    execute_sql(target.dsn, effects.CREATE_TABLE)
    target.targets = {TARGET: other_role}
    name_target(target)

    found = problems(target)["target_not_fenced"]

    assert found.severity is Severity.WARNING
    execute_sql(target.dsn, found.remedy)
    assert problems(target) == {}


def test_target_that_no_task_names_is_no_warning(target: TargetFixture, other_role: str):
    execute_sql(target.dsn, "GRANT ALL ON parts TO PUBLIC")
    target.targets = {TARGET: other_role}
    target.enqueue()
    target.run(load_part)

    assert problems(target)["target_not_fenced"].severity is Severity.INFO


def test_table_of_another_shape_is_an_error(target: TargetFixture):
    execute_sql(target.dsn, effects.CREATE_TABLE, "ALTER TABLE dl_effects DROP COLUMN position")
    name_target(target)

    found = problems(target)["target_table"]

    assert found.severity is Severity.ERROR
    assert "it has no column position" in found.message
    assert found.remedy == "rename it, or compare it with dataloader targets schema"


def test_target_that_is_away_is_a_warning_without_its_address(target: TargetFixture):
    target.targets[TARGET] = f"host=127.0.0.1 port={free_port()} password=open-sesame"
    name_target(target)

    found = problems(target)["target_unreachable"]

    assert found.severity is Severity.WARNING
    assert "'warehouse', which the task load names, cannot be read from here: Connection refused" in found.message
    assert "open-sesame" not in repr(found)


def test_role_that_may_not_delete_leaves_rows(target: TargetFixture, other_role: str):
    execute_sql(
        target.dsn, effects.CREATE_TABLE, f'GRANT SELECT, INSERT, UPDATE ON dl_effects TO "{_user(other_role)}"'
    )
    target.targets = {TARGET: other_role}
    name_target(target)

    found = problems(target)["target_rows"]

    assert found.severity is Severity.INFO
    execute_sql(target.dsn, found.remedy)
    assert problems(target) == {}


def test_rows_that_should_have_been_deleted_are_information(target: TargetFixture):
    job_id = target.enqueue()
    target.run(load_part)
    target.queue_db.sql("UPDATE dl_job_targets SET claimed_at = now() - interval '3 days'")
    assert problems(target) == {}, "its job has just ended"
    target.queue_db.sql("UPDATE dl_jobs SET finished_at = now() - interval '3 days' WHERE job_id = %s", str(job_id))

    found = problems(target)["target_rows"]

    assert found.message == "rows that no job needs are left in target 'warehouse': 1"
    target.targets.clear()
    (unknown,) = problems(target).values()
    assert (unknown.check, unknown.severity) == ("target_unknown", Severity.INFO)
    assert "that the settings do not name: 'warehouse'" in unknown.message


def test_session_that_is_idle_in_a_transaction_is_named(target: TargetFixture, monkeypatch: pytest.MonkeyPatch):
    job_id, seen = target.enqueue(), []

    def load(args: Any, ctx: Any) -> None:
        load_part(args, ctx)
        with ctx.transaction() as connection:
            write_part(connection, "b", ctx)
            assert "target_sessions" not in problems(target), "not for long"
            monkeypatch.setattr(rows, "LONG_IDLE_SEC", -1.0)
            seen.append(problems(target)["target_sessions"])

    target.run(load)
    run_id = target.queue_db.job(job_id).run_id
    assert run_id is not None
    left = psycopg2.connect(target.dsn, application_name=attempt_application_name(job_id, run_id))
    left.cursor().execute("SELECT 1 FROM dl_effects FOR UPDATE")
    seen.append(problems(target)["target_sessions"])

    running, over = seen
    assert (running.severity, over.severity) == (Severity.INFO, Severity.WARNING)
    assert f"the running attempt of job {job_id}" in running.message
    assert running.remedy.startswith(f"dataloader cancel {job_id};")
    assert f"the session of an attempt that has ended of job {job_id}" in over.message
    execute_sql(target.dsn, over.remedy.partition("; ")[0])
    left.close()
    assert "target_sessions" not in problems(target)


def test_target_in_the_queues_database_needs_no_table(target: TargetFixture):
    target.targets[TARGET] = target.queue_db.dsn
    name_target(target)

    assert check(target) == []


def test_doctor_has_these_findings(target: TargetFixture, other_role: str):
    target.targets[TARGET] = other_role
    name_target(target)
    pool = Pool(target.queue_db.dsn, size=1)
    connections = Connections(target.queue_db.dsn, None, 5.0, 16, features={"targets": TargetServers(target.targets)})
    try:
        found = run_checks(DatabaseFacts(pool), connections, [FEATURE])
    finally:
        pool.close()

    assert "target_not_fenced" in {finding.check for finding in found}


def test_command_examines_the_targets_of_the_settings(target: TargetFixture):
    target.targets[TARGET] = make_dsn(target.dsn, dbname="no_such_database", password="open-sesame")
    name_target(target)

    done = invoke(target.queue_db.dsn, "doctor", "--json", DL_TARGETS=json.dumps(target.targets))

    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert 'database "no_such_database" does not exist' in found["target_unreachable"]["message"]
    assert "open-sesame" not in done.output


def _user(dsn: str) -> str:
    user: str = parse_dsn(dsn)["user"]
    return user
