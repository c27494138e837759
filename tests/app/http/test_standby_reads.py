"""Lists and pages from a real standby: how old they are, and what happens when it is late, paused or killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient

from dataloader.app.db.pool import Pool
from dataloader.app.errors import SchemaMissing
from dataloader.app.http.app import OPERATIONS, create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.http.standby_reads import DATA_AGE_HEADER, StandbyCollector, StandbyExecutor, allowing_standby
from dataloader.app.postgres.binaries import Choice
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Context, Pipelines
from tests.support import eventually
from tests.support.standby import Pair, primary_and_standby

MAX_LAG_SEC = 60.0
SLOW_READ_SEC = 60  # unless something ends it
NEVER_FROM_STANDBY = {
    "trigger_job", "cancel_job", "get_job_status", "get_job", "explain_job", "explain_task", "list_workers",
    "stream_events", "show_job", "find_anything", "show_keys", "show_doctor", "log_in",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(run_folder: Path, postgres_binaries: Choice) -> Iterator[Pair]:
    with primary_and_standby(run_folder, postgres_binaries, synchronous=False) as made:
        yield made


@pytest.fixture
def standby(pair: Pair) -> Iterator[Pool]:
    made = Pool(pair.standby.dsn, size=2, overflow=6, connect_timeout_sec=2, command_timeout_sec=20, standby_only=True)
    with closing(made):
        yield made


@pytest.fixture
def executor(pair: Pair, standby: Pool) -> Iterator[StandbyExecutor]:
    primary = Pool(pair.primary.dsn, size=2, overflow=6)
    made = StandbyExecutor(primary, standby, max_lag_sec=MAX_LAG_SEC)
    with closing(primary):
        eventually(lambda: (made.age_sec() or MAX_LAG_SEC) < 1)
        yield made


@pytest.fixture
def client(executor: StandbyExecutor) -> FlaskClient:
    pipelines = Pipelines()

    @pipelines.register("noop")
    def noop(args: dict[str, Any], ctx: Context) -> None:
        """Do nothing."""

    options = WebOptions(version="1", max_data_age_sec=MAX_LAG_SEC, metrics_max_age_sec=0)
    app = create_app(JobQueue(executor), pipelines, options, collectors=[StandbyCollector(executor)])
    return app.test_client(use_cookies=False)


@pytest.fixture
def paused(pair: Pair) -> Iterator[None]:
    pair.standby.query("SELECT pg_wal_replay_pause()")
    eventually(lambda: pair.standby.query("SELECT pg_get_wal_replay_pause_state()") == [("paused",)])
    yield
    pair.standby.query("SELECT pg_wal_replay_resume()")


def trigger(client: FlaskClient) -> str:
    key = str(uuid4())
    response = client.post("/api/v1/jobs/trigger", json={"queue": "etl", "task": "noop", "lock_key": key})
    assert response.status_code == 200, response.text
    return str(response.get_json()["job_id"])


def listed_ids(client: FlaskClient) -> list[str]:
    return [job["job_id"] for job in client.get("/api/v1/jobs").get_json()["jobs"]]


def wait_until_replayed(pair: Pair) -> None:
    ((position,),) = pair.primary.query("SELECT pg_current_wal_lsn()::text")
    eventually(lambda: pair.standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", position) == [(True,)])


def test_every_standby_route_is_answered_by_the_standby(client, executor, pair):
    job_id = trigger(client)
    wait_until_replayed(pair)
    operations = [op for op in client.application.extensions[OPERATIONS] if op.standby]
    paths = [op.path for op in operations if "<" not in op.path and op.name != "find_jobs"]
    paths.append(f"/api/v1/jobs/find?id={job_id[:8]}")
    paths += [f"/jobs/{job_id}/log", f"/api/v1/jobs/{job_id}/logs", "/tasks/noop", "/api/v1/tasks/noop/checks"]

    assert {op.name for op in operations} & NEVER_FROM_STANDBY == set()
    assert all(op.method == "GET" for op in operations)
    assert {"list_jobs", "get_charts", "list_audit_entries", "get_job_logs", "get_metrics", "show_overview"} <= {
        op.name for op in operations
    }
    before = executor.counts()["primary"]
    for path in paths:
        response = client.get(path)
        assert response.status_code == 200, (path, response.text)
        assert float(response.headers[DATA_AGE_HEADER]) <= MAX_LAG_SEC, path
        assert executor.counts()["primary"] == before, path


def test_other_routes_never_read_from_the_standby(client, executor):
    job_id, before = trigger(client), executor.counts()

    for path in ("status", "why", ""):
        assert DATA_AGE_HEADER not in client.get(f"/api/v1/jobs/{job_id}/{path}".rstrip("/")).headers
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    assert executor.counts() == before


def test_paused_standby_shows_age_then_primary_answers(client, executor, paused, monkeypatch):
    job_id = trigger(client)

    # It has not replayed the job: what it shows grows old, and the page says so.
    assert job_id not in listed_ids(client)
    eventually(lambda: float(client.get("/api/v1/jobs").headers.get(DATA_AGE_HEADER, 0)) > 2)
    assert "Data from a standby" in client.get("/jobs").text

    monkeypatch.setattr(executor, "_max_lag_sec", 2.0)
    eventually(lambda: DATA_AGE_HEADER not in client.get("/api/v1/jobs").headers)
    assert job_id in listed_ids(client)
    assert "Data from a standby" not in client.get("/jobs").text
    assert "dataloader_standby_up 1.0" in client.get("/metrics").text


def test_job_just_triggered_is_found_everywhere(client, paused):
    job_id = trigger(client)

    for path in ("", "/status", "/logs", "/why", "/events"):
        assert client.get(f"/api/v1/jobs/{job_id}{path}").status_code == 200, path
    for path in ("", "/log"):
        assert client.get(f"/jobs/{job_id}{path}").status_code == 200, path


def test_browser_sees_its_own_change_at_once(client, paused):
    browser = client.application.test_client()
    token = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    response = browser.post("/queues", data={"queue": "etl", "state": "paused"}, headers=token)
    assert response.status_code == 303, response.text

    shown = browser.get("/queues")

    assert DATA_AGE_HEADER not in shown.headers
    assert "etl" in shown.text
    assert DATA_AGE_HEADER in client.get("/queues").headers


@pytest.fixture
def slow_audit(pair: Pair) -> Iterator[None]:
    """Each read of the audit takes long on the standby, and no query there holds up the replay."""
    pair.standby.query("ALTER SYSTEM SET max_standby_streaming_delay = 0")
    pair.standby.query("SELECT pg_reload_conf()")
    pair.primary.query("ALTER TABLE dl_audit RENAME TO dl_audit_rows")
    pair.primary.query(
        "CREATE VIEW dl_audit AS SELECT a.* FROM dl_audit_rows a,"
        f" (SELECT pg_sleep(CASE WHEN pg_is_in_recovery() THEN {SLOW_READ_SEC} ELSE 0 END) OFFSET 0) slow"
    )
    wait_until_replayed(pair)
    yield
    pair.primary.query("DROP VIEW dl_audit")
    pair.primary.query("ALTER TABLE dl_audit_rows RENAME TO dl_audit")
    pair.standby.query("ALTER SYSTEM RESET max_standby_streaming_delay")
    pair.standby.query("SELECT pg_reload_conf()")


def test_conflict_with_recovery_is_read_from_the_primary(client, executor, pair, slow_audit):
    """Vacuum on the primary removes rows that a query on the standby may still need; replay cancels the query."""
    conflicts = "SELECT confl_snapshot FROM pg_stat_database_conflicts WHERE datname = current_database()"
    slept = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    for action in ("removed", "kept"):
        pair.primary.query(
            "INSERT INTO dl_audit_rows (action, actor, via, subject) VALUES (%s, 'a', 'command', 'queue')", action
        )
    wait_until_replayed(pair)
    ((before,),), counts = pair.standby.query(conflicts), executor.counts()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, "/api/v1/audit")
        eventually(lambda: pair.standby.query(slept) == [(1,)])

        pair.primary.query("DELETE FROM dl_audit_rows WHERE action = 'removed'")
        pair.primary.query("VACUUM dl_audit_rows")
        response = answer.result(SLOW_READ_SEC)

    assert response.status_code == 200, response.text
    assert [entry["action"] for entry in response.get_json()["entries"]][:1] == ["kept"]
    assert DATA_AGE_HEADER not in response.headers
    assert executor.counts() == {**counts, "primary": counts["primary"] + 1}

    def has_conflict() -> bool:
        client.get("/queues")  # an idle session reports its statistics after ten seconds, a busy one after one
        return bool(pair.standby.query(conflicts) == [(before + 1,)])

    eventually(has_conflict)


def test_request_that_has_read_from_the_primary_stays_there(executor, standby, monkeypatch):
    real, asked = standby.execute, []

    def execute(name: str, parameters: Any = None, **options: Any) -> Any:
        asked.append(name)
        if name != "replication_position":
            raise SchemaMissing("the standby has no such table yet")
        return real(name, parameters, **options)

    monkeypatch.setattr(standby, "execute", execute)

    with allowing_standby() as reads:
        assert executor.execute("ping") == [(1,)]
        assert executor.execute("ping") == [(1,)]

    assert asked.count("ping") == 1
    assert reads.age_sec is None


def test_standby_of_another_server_is_refused(pair, monkeypatch):
    monkeypatch.setattr("dataloader.app.db.known_servers.KNOWN_TIMELINES._highest", {})
    pool = Pool(pair.standby.dsn, size=1, standby_only=True)

    with pytest.raises(Exception, match="a standby of another one"):
        pool.execute("ping")


# The last one: it ends the standby.
def test_standby_killed_under_load_fails_no_request(client, pair, executor):
    wait_until_replayed(pair)
    statuses: list[int] = []
    ages: list[str | None] = []
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            for path in ("/api/v1/jobs", "/jobs", "/metrics", "/api/v1/charts"):
                response = client.application.test_client().get(path)
                statuses.append(response.status_code)
                ages.append(response.headers.get(DATA_AGE_HEADER))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: sum(age is not None for age in ages) >= 20)
        pair.standby.kill()
        killed_at = len(statuses)
        eventually(lambda: len(statuses) >= killed_at + 60 and ages[-1] is None)
        assert executor.age_sec() is None

        pair.standby.start()
        eventually(lambda: ages[-1] is not None)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()

    assert set(statuses) == {200}
