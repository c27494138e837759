"""The roles may do what they are for, and nothing else; tried by those who have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg2
import pytest
from click.testing import CliRunner
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.db.rights import FEATURE_RIGHTS, service_rights
from dataloader.app.db.roles import roles_sql
from dataloader.app.errors import RightsMissing
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from tests.support import eventually, free_port
from tests.support.databases import another_role, role_logins
from tests.support.remedies import find_problems

ROOT = Path(__file__).parents[4]


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture
def roles(dsn: str) -> Iterator[dict[str, str]]:
    with role_logins(dsn) as logins:
        yield logins


@pytest.fixture(scope="module")
def refused_roles(shared_dsn: str) -> Iterator[dict[str, str]]:
    """For tests of what is refused, which leave nothing behind."""
    with role_logins(shared_dsn) as logins:
        yield logins


def do(dsn: str, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_every_table_of_ours_is_somebodys(dsn):
    found = do(
        dsn,
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition AND relname LIKE 'dl\\_%'"
        " AND relnamespace = 'public'::regnamespace",
    )
    tables = {name for (name,) in found}

    assert tables == set(service_rights()), "say above the table what the service does with it"


def test_doctor_misses_no_right_of_the_service(roles):
    assert [finding for finding in find_problems(roles["service"]) if finding.check == "rights"] == []


def test_functions_ignore_temporary_objects(dsn):
    """Temporary tables and types come before all others, unless the path says where; what hangs on them would run as
    the owner, also in a function that one with the owner's rights calls."""
    found = do(
        dsn,
        "SELECT proname, array_to_string(proconfig, ' ') FROM pg_proc"
        " WHERE (prosecdef OR proconfig::text LIKE '%search_path%') AND proname LIKE 'dl\\_%'"
        " AND pronamespace = 'public'::regnamespace",
    )

    assert len(found) > 5
    for name, config in found:
        assert re.search(r"search_path=\S+, pg_temp(\s|$)", config or ""), name


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE dl_jobs ADD COLUMN x int",
        "DROP TABLE dl_jobs",
        "TRUNCATE dl_jobs",
        "CREATE TABLE here (x int)",
        "DROP TRIGGER dl_jobs_audit ON dl_jobs",
        "INSERT INTO dl_api_keys (key_id, name, digest, scopes, created_by) VALUES ('x', 'x', 'x', '{admin}', 'x')",
        "UPDATE dl_api_keys SET scopes = '{admin}'",
        "UPDATE dl_api_keys SET revoked_at = NULL",
        "DELETE FROM dl_api_keys",
        "UPDATE dl_audit SET actor = 'somebody else'",
        "DELETE FROM dl_audit",
        "UPDATE dl_signing_secrets SET secret = 'mine'",
        "DELETE FROM dl_job_events",
        "INSERT INTO dl_schema (version, fingerprint) VALUES (99, 'x')",
        "ALTER FUNCTION dl_audit_prune(interval, int) SECURITY INVOKER",
        "CREATE TEMP TABLE here (x int); CREATE TRIGGER wipe AFTER TRUNCATE ON here EXECUTE FUNCTION dl_jobs_deleted()",
    ],
)
def test_the_service_changes_rows_and_not_what_holds_it(refused_roles, sql):
    with pytest.raises(errors.InsufficientPrivilege):
        do(refused_roles["service"], sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT digest FROM dl_api_keys",
        "SELECT secret FROM dl_signing_secrets",
        "SELECT * FROM dl_webhooks",
        "UPDATE dl_jobs SET priority = 1",
        "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
        "SELECT * FROM dl_enqueue_many('[]')",
        "SELECT dl_drop_partitions('dl_job_events', '1 day', false)",
        "SELECT dl_audit_prune('1 day', 10)",
    ],
)
def test_a_reader_reads_and_no_secrets(refused_roles, sql):
    assert do(refused_roles["reader"], "SELECT count(*) FROM dl_jobs") == [(0,)]
    with pytest.raises(errors.InsufficientPrivilege):
        do(refused_roles["reader"], sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT FROM dl_jobs",
        "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
        "SELECT FROM dl_audit",
        "SELECT dl_create_deliveries('{}')",
        "SELECT dl_audit_prune('1 day', 10)",
    ],
)
def test_an_enqueuer_enqueues_and_sees_nothing(roles, dsn, sql):
    do(roles["enqueuer"], "SELECT dl_enqueue(queue => 'q', task => 't', lock_key => 'k', args => '{\"a\": 1}')")
    assert do(dsn, "SELECT task, args FROM dl_jobs") == [("t", {"a": 1})]
    with pytest.raises(errors.InsufficientPrivilege):
        do(roles["enqueuer"], sql)


FORGED = '{"action": "key_make", "actor": "the boss", "via": "session", "address": "10.0.0.1"}'
ONE = "SELECT dl_enqueue(queue => 'q', task => 't', lock_key => 'k')"
LINES = "SELECT action, actor, via, address, subject FROM dl_audit ORDER BY audit_id"


@pytest.mark.parametrize(
    "act", ["", "not JSON", FORGED, f'{{"each": {{"x": {FORGED}}}}}'], ids=["none", "bad", "one", "each"]
)
def test_enqueuer_is_audited_under_its_own_name(roles, dsn, act):
    login = parse_dsn(roles["enqueuer"])["user"]
    do(roles["enqueuer"], f"SET dl.audit_context = %s; SET dl.events_checked = 'yes'; {ONE}", act)
    many = json.dumps([{"queue": "q", "task": "t", "lock_key": str(n)} for n in range(2)])
    do(roles["enqueuer"], "SET LOCAL dl.audit_context = %s; SELECT * FROM dl_enqueue_many(%s)", act, many)

    assert do(dsn, LINES) == [("dl_enqueue", login, "sql", None, "job")] * 2
    assert do(dsn, "SELECT DISTINCT db_user FROM dl_audit") == [(login,)]


def test_inserting_account_is_audited_by_name(roles, dsn):
    login = parse_dsn(roles["enqueuer"])["user"]
    do(dsn, f"GRANT INSERT ON dl_jobs TO {login}")
    do(
        roles["enqueuer"],
        "SET dl.audit_context = %s; INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
        FORGED,
    )

    assert do(dsn, LINES) == [("insert", login, "sql", None, "job")]


def test_audit_of_account_names_no_act_of_its_choice(roles, dsn):
    login = parse_dsn(roles["enqueuer"])["user"]
    do(dsn, f"GRANT INSERT ON dl_jobs TO {login}")
    do(
        roles["enqueuer"],
        "SET dl.function = 'key_make'; INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
    )

    assert do(dsn, LINES) == [("insert", login, "sql", None, "job")]


@pytest.mark.superuser("an administrator changes what a login inherits")
def test_service_is_audited_as_it_says_also_by_set_role(roles, dsn, superuser):
    login, prefix = parse_dsn(roles["service"])["user"], parse_dsn(roles["service"])["user"].removesuffix("_login")
    do(roles["service"], f"{ONE}; SET dl.audit_context = %s; {ONE}", FORGED)
    do(
        superuser(dsn),
        f"ALTER ROLE {login} NOINHERIT; GRANT {prefix} TO {login} WITH INHERIT FALSE"
        if is_16(dsn)
        else f"ALTER ROLE {login} NOINHERIT",
    )
    do(roles["service"], f"SET ROLE {prefix}; SET dl.audit_context = %s; {ONE}", FORGED)

    assert do(dsn, LINES) == [("key_make", "the boss", "session", "10.0.0.1", "job")] * 2


def is_16(dsn: str) -> bool:
    """From this version on a membership is inherited or not by itself."""
    return bool(do(dsn, "SELECT current_setting('server_version_num')::int >= 160000")[0][0])


def test_insert_only_account_can_insert_with_or_without_roles(dsn, request):
    with another_role(dsn) as login:
        do(dsn, f"GRANT INSERT (queue, task, lock_key) ON dl_jobs TO {login}")
        for key in ("before", "after"):
            do(
                make_dsn(dsn, user=login, password="x"),
                "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', %s)",
                key,
            )
            request.getfixturevalue("roles")
    assert do(dsn, "SELECT lock_key FROM dl_jobs ORDER BY job_id") == [("before",), ("after",)]


def test_an_enqueuers_temporary_tables_are_not_the_queues(roles, dsn):
    connection = psycopg2.connect(roles["enqueuer"])
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TEMP TABLE dl_jobs (queue text, task text);"
                "CREATE FUNCTION pg_temp.grab() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN DELETE FROM public.dl_audit; RETURN NULL; END $$;"
                "CREATE TRIGGER grab AFTER INSERT ON pg_temp.dl_jobs EXECUTE FUNCTION pg_temp.grab()"
            )
            cursor.execute("SELECT public.dl_enqueue(queue => 'q', task => 't', lock_key => 'k')")
            cursor.execute("SELECT count(*) FROM pg_temp.dl_jobs")
            assert cursor.fetchone() == (0,)
    finally:
        connection.close()
    assert do(dsn, "SELECT count(*) FROM public.dl_jobs") == [(1,)]


def test_an_enqueuers_temporary_types_are_not_the_queues(roles, dsn):
    connection = psycopg2.connect(roles["enqueuer"])
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE pg_temp.seen (as_whom text); GRANT ALL ON pg_temp.seen TO PUBLIC;"
                "CREATE FUNCTION pg_temp.evil(pg_catalog.uuid) RETURNS bool LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO pg_temp.seen VALUES (current_user); RETURN true; END $$;"
                "CREATE DOMAIN pg_temp.uuid AS pg_catalog.uuid CHECK (pg_temp.evil(VALUE))"
            )
            cursor.execute("SELECT public.dl_enqueue(queue => 'q', task => 't', lock_key => 'k')")
            cursor.execute("SELECT count(*) FROM pg_temp.seen WHERE as_whom <> current_user")
            assert cursor.fetchone() == (0,)
    finally:
        connection.close()
    assert do(dsn, "SELECT count(*) FROM public.dl_jobs") == [(1,)]


def test_only_our_own_tables_stand_in_parts(dsn):
    for call in (
        "dl_create_partitions('x', '1 day', '1 day')",
        "dl_advance_sequence('x')",
        "dl_drop_partitions('x', '1 day', false)",
    ):
        with pytest.raises(psycopg2.Error, match="unknown partitioned table|does not exist"):
            do(dsn, f"SELECT * FROM {call}")


def test_service_role_records_and_prunes_reports(roles, dsn):
    run = "01234567-89ab-4def-8123-456789abcdef"
    do(
        dsn,
        "INSERT INTO dl_jobs (queue, task, lock_key, status, run_id, partition_key, live_key)"
        f" VALUES ('q', 't', 'k', 'succeeded', '{run}', 'p', 'slice:t:p')",
    )
    check = '{"name": "rows", "value": 1, "outcome": "warned"}'
    report = (
        f'[{{"run_id": "{run}", "checks": [{check}], "datasets": [{{"kind": "produced", "dataset": "d", "rows": 1}}]}}]'
    )
    record = f"SELECT dl_record_reports(%s, array_agg(job_id)) FROM dl_jobs WHERE run_id = '{run}'"

    assert do(roles["service"], record, report) == [(1,)]
    assert do(roles["service"], f"SELECT warnings FROM dl_jobs WHERE run_id = '{run}'") == [(1,)]
    assert do(roles["reader"], "SELECT dataset FROM dl_last_dataset_events('d')") == [("d",)]
    do(roles["service"], "DELETE FROM dl_checks; DELETE FROM dl_dataset_events")
    for role in ("reader", "enqueuer"):
        with pytest.raises(errors.InsufficientPrivilege):
            do(roles[role], record, report)


def test_service_role_cannot_misuse_partition_functions(roles, dsn):
    for span, ahead in (("1 second", "1 hour"), ("1 hour", "10 years"), ("50 days", "1 day"), ("-1 day", "1 day")):
        with pytest.raises(errors.RaiseException, match="allowed are an hour to 31 days"):
            do(roles["service"], f"SELECT dl_create_partitions('dl_job_logs', '{span}', '{ahead}')")
    with pytest.raises(errors.RaiseException):
        do(dsn, "SELECT dl_create_partitions('dl_job_logs', '-1 day', '1 day')")

    do(dsn, "SELECT setval('dl_job_logs_log_id_seq', (SELECT max(high) FROM dl_partitions('dl_job_logs')))")
    (part, low), *_ = do(dsn, "SELECT part, low FROM dl_partitions('dl_job_logs')")
    result = "ts, job_id, attempt, level, stream, line) VALUES"
    do(
        dsn,
        f"INSERT INTO {part} (log_id, {result}"
        f" ({low}, now() - interval '20 hours', gen_random_uuid(), 1, 'INFO', 'log', 'x')",
    )
    drop = "SELECT dl_drop_partitions('dl_job_logs', '1 second', false)"
    assert do(roles["service"], drop) == []
    assert do(dsn, drop) == [(part,)], "the owner may drop its tables anyway"


def test_definer_functions_are_not_public_before_roles_exist(dsn):
    strong = do(
        dsn,
        "SELECT proname, has_function_privilege('public', oid, 'EXECUTE'), proconfig::text FROM pg_proc"
        " WHERE prosecdef AND pronamespace = 'public'::regnamespace",
    )

    assert {
        "dl_create_deliveries",
        "dl_create_alert_deliveries",
        "dl_enqueue",
        "dl_drop_partitions",
        "dl_audit_prune",
    } <= {name for name, *_ in strong}
    assert [name for name, open_to_all, _ in strong if open_to_all] == []
    assert [name for name, _, pinned in strong if "pg_temp" not in pinned] == []


def test_missing_rights_are_reported_with_remedy(roles):
    pool = Pool(roles["enqueuer"], size=1, overflow=0)
    with pytest.raises(RightsMissing, match=r"permission denied for table dl_api_keys; .*--roles"):
        ApiKeys(pool).active()
    pool.close()


def test_roles_statement_names_rights_of_features():
    printed = roles_sql(prefix="r")

    for right in FEATURE_RIGHTS:
        assert f"To {right.feature}:" in printed
        assert f"Without it: {right.loss}." in printed
    assert 'GRANT pg_signal_backend TO "r_service";' in printed


def test_roles_statement_is_printed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PG_SCHEMA_QUEUE", "etl")

    printed = CliRunner().invoke(cli, ["migrate", "--roles"])

    assert printed.output == roles_sql("etl")
    assert 'GRANT USAGE ON SCHEMA "etl" TO "dataloader_service"' in printed.output
    assert "{" not in printed.output.replace("'{admin}'", "")


def test_the_whole_service_runs_under_the_services_role(roles, dsn, start):
    """A job is triggered, run and logged, another canceled and retried; keys are used, and acts written down."""
    owner = Pool(dsn, size=1, overflow=0)
    _, token = ApiKeys(owner).create(NewApiKey(name="k", scopes=frozenset({Scope.OPERATE}), created_by="test"))
    port = free_port()
    quick = {"DL_REAPER_PERIOD_SEC": "0.2", "DL_HEARTBEAT_SEC": "0.2"}
    env = {"DL_DB_DSN": roles["service"], "APP_PORT": str(port), "DL_LOG_FORMAT": "json", **quick}
    process = start("serve", env=env)
    process.wait_for_line("service.ready")

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(f"http://127.0.0.1:{port}/api/v1{path}", data, headers)
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - our own service
            return json.loads(answer.read())

    job = {"queue": "etl.default", "task": "noop", "lock_key": "k", "args": {"sleep1": 0, "sleep2": 0, "sleep3": 0}}
    first = ask("/jobs/trigger", {**job, "idempotency_key": "once"})["job_id"]
    eventually(lambda: ask(f"/jobs/{first}/status")["status"] == "succeeded")
    later = ask("/jobs/trigger", {**job, "queue": "nobody.works.here"})["job_id"]
    assert ask(f"/jobs/{later}/cancel", {})["status"] == "canceled"
    assert ask(f"/jobs/{later}/retry", {})["status"] == "queued"
    assert {line["action"] for line in ask("/audit")["entries"]} >= {"trigger_job", "cancel_job", "retry_job"}
    ask("/jobs")
    ask(f"/jobs/{first}")
    ask(f"/jobs/{first}/events")
    ask(f"/jobs/{first}/logs")
    eventually(lambda: ApiKeys(owner).all()[0].last_used_at is not None)
    owner.close()

    assert "permission denied" not in process.text


FUNCTIONS_OF_AN_ENQUEUER = {"dl_enqueue", "dl_enqueue_many", "dl_enqueue_graph", "dl_new_id", "dl_is_tag_list"}


def test_enqueuer_may_call_these_functions_only(roles):
    found = do(
        roles["enqueuer"],
        "SELECT DISTINCT proname FROM pg_proc WHERE proname LIKE 'dl\\_%' AND has_function_privilege(oid, 'EXECUTE')"
        " AND pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'dl_jobs'::regclass)",
    )

    assert {name for (name,) in found} == FUNCTIONS_OF_AN_ENQUEUER, "try what a new one shows of other jobs"


def test_enqueuer_waits_for_no_job_that_it_may_not_read(roles):
    foreign = do(roles["service"], "SELECT dl_enqueue('theirs', 'report', 'k')")[0][0]
    after = json.dumps([{"job_id": foreign, "on": "failed"}])

    with pytest.raises(errors.InvalidParameterValue, match=rf"there is no job {foreign}"):
        do(roles["enqueuer"], "SELECT dl_enqueue('mine', 'load', 'k', after => %s)", after)
    request = json.dumps([{"queue": "mine", "task": "load", "lock_key": "k", "after": json.loads(after)}])
    ((outcome, detail),) = do(roles["enqueuer"], "SELECT outcome, detail FROM dl_enqueue_many(%s)", request)
    assert (outcome, detail) == ("invalid", f"[0].job_id: there is no job {foreign}")
    do(roles["service"], "SELECT dl_enqueue('mine', 'load', 'k', after => %s)", after)


@pytest.mark.parametrize(
    "key",
    [
        {"live_key": "shared"},
        {"throttle": {"key": "shared", "per_sec": 2_678_400}},
        {"debounce": {"key": "shared", "wait_sec": 600}},
    ],
    ids=lambda key: next(iter(key)),
)
def test_key_of_a_job_of_another_task_is_a_conflict(roles, key):
    theirs = json.dumps([{"queue": "theirs", "task": "report", "lock_key": "k", **key}])
    ((foreign,),) = do(roles["service"], "SELECT job_id FROM dl_enqueue_many(%s)", theirs)
    mine = json.dumps([{"queue": "mine", "task": "load", "lock_key": "k", **key}])

    ((outcome, job_id),) = do(roles["enqueuer"], "SELECT outcome, job_id FROM dl_enqueue_many(%s)", mine)

    assert (outcome, job_id) == ("conflict", foreign)


def test_enqueuer_gets_no_ids_of_a_graph_of_other_jobs(roles):
    def graph(task: str) -> str:
        return json.dumps({"idempotency_key": "k", "jobs": [{"key": "a", "queue": "q", "task": task, "lock_key": "k"}]})

    call = "SELECT job_id FROM dl_enqueue_graph(%s)"
    theirs = do(roles["service"], call, graph("report"))

    with pytest.raises(errors.UniqueViolation, match="the key 'k' belongs to a graph with other jobs"):
        do(roles["enqueuer"], call, graph("load"))
    assert do(roles["enqueuer"], call, graph("report")) == theirs
