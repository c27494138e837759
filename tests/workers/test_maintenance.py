"""One worker process runs the periodic duties for all, one slice at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import pytest

from dataloader.app.db.connection import Row, Session
from dataloader.app.errors import DatabaseUnavailable, SchemaOutdated
from dataloader.app.features.bulk.rows import BulkAction, BulkOperations, BulkState
from dataloader.app.features.jobs.job_search import Filter
from dataloader.app.features.statistics.duty import rest_sec
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.app.state.statistics import Statistics
from dataloader.pipelines.portable import clock
from dataloader.workers import maintenance
from dataloader.workers.duties import Duty
from dataloader.workers.maintenance import Maintenance, follower_duties
from tests.support.duties import duty, duty_context
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


def test_late_statistics_rest_less_and_then_not_at_all():
    assert rest_sec(0.1, 0.0) == pytest.approx(0.9)
    assert rest_sec(0.1, 30.0) == pytest.approx(0.45)
    assert rest_sec(0.1, 60.0) == rest_sec(0.1, 3600.0) == 0.0


def new_maintenance(
    queue_db: QueueFixture, *entries: Duty, followed: Sequence[Duty] = (), session: Session | None = None
) -> Maintenance:
    session = session or queue_db.new_session(application_name="dataloader-maintenance")
    return Maintenance(session, queue_db.new_session(), entries, on_crash=pytest.fail, follower_duties=followed)


def leader_connections(queue_db: QueueFixture) -> int:
    return int(
        queue_db.fetch_row(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dataloader-maintenance%%'"
        )
    )


def lock_is_free(queue_db: QueueFixture) -> bool:
    return not queue_db.fetch_row(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1684828527 AND objid = 5"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def run_steps(maintenance: Maintenance, count: int) -> None:
    for _ in range(count):
        maintenance.run_once()


# ── the list of duties ──────────────────────────────────────────────────────────────────────────────────────────────


def test_new_duty_is_one_entry(queue_db):
    runs: list[str] = []
    leader = new_maintenance(queue_db, Duty("remind", 30.0, lambda: runs.append("remind")))

    pause = leader.run_once()

    assert runs == ["remind"]
    assert 15.0 < pause <= 30.0


def test_duties_without_work_are_one_statement(queue_db):
    runs: list[str] = []
    entries = [
        Duty(name, 0.0, lambda name=name: runs.append(name), has_work=name)  # type: ignore[misc]
        for name in ("has_ready_jobs", "has_blocked_jobs", "has_graph_work")
    ]
    leader = new_maintenance(queue_db, *entries)
    run_steps(leader, 4)
    assert runs == []

    queue_db.enqueue("k")
    run_steps(leader, 4)
    assert set(runs) == {"has_ready_jobs"}


def test_duty_that_is_woken_while_it_is_asked_is_asked_again(queue_db, monkeypatch):
    runs: list[str] = []
    leader = new_maintenance(queue_db, Duty("repair", 30.0, lambda: runs.append("repair"), has_work="has_ready_jobs"))
    ask = Session.ask

    def ask_before_the_job_is_there(session: Session, names: Iterable[str]) -> Row:
        answers = ask(session, names)
        if not queue_db.fetch_row("SELECT count(*) FROM dl_jobs"):
            queue_db.enqueue("k")
            leader.wake("repair")
        return answers

    monkeypatch.setattr(Session, "ask", ask_before_the_job_is_there)
    run_steps(leader, 2)

    assert runs == ["repair"]


def test_duty_runs_when_it_cannot_be_asked_whether_it_has_work(queue_db):
    runs: list[str] = []
    leader = new_maintenance(queue_db, Duty("repair", 30.0, lambda: runs.append("repair"), has_work="has_graph_work"))
    queue_db.sql("ALTER TABLE dl_graph_work RENAME TO dl_elsewhere")

    run_steps(leader, 2)

    assert runs == ["repair"]


def test_duty_with_more_to_do_leaves_turns_to_the_others(queue_db):
    runs: list[str] = []

    def run_endless() -> float:
        runs.append("endless")
        return 0.0

    leader = new_maintenance(
        queue_db, Duty("endless", 30.0, run_endless), Duty("short", 0.0, lambda: runs.append("short"))
    )

    run_steps(leader, 20)

    assert runs.count("endless") >= 5
    assert runs.count("short") >= 5


@pytest.mark.parametrize(
    "error", [SchemaOutdated("permission denied"), DatabaseUnavailable("lock timeout"), KeyError("bug")]
)
def test_failing_duty_waits_and_the_others_run(queue_db, caplog, error):
    runs: list[str] = []

    def fail() -> None:
        runs.append("failing")
        raise error

    leader = new_maintenance(queue_db, Duty("failing", 30.0, fail), Duty("other", 0.0, lambda: runs.append("other")))

    run_steps(leader, 6)

    assert runs.count("failing") == 1
    assert runs.count("other") == 5
    assert "maintenance.failed" in caplog.text


def test_pause_of_a_failing_duty_doubles_and_two_lines_are_logged(queue_db, monkeypatch, caplog):
    caplog.set_level("INFO")
    errors = [DatabaseUnavailable("no space left on device")] * 8
    times: list[float] = []
    now = start = clock()
    monkeypatch.setattr(maintenance, "clock", lambda: now)

    def run() -> None:
        times.append(now - start)
        if errors:
            raise errors.pop()

    leader = new_maintenance(queue_db, Duty("failing", 2.0, run))
    for _ in range(10):
        now += leader.run_once()

    assert times == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0, 185.0]
    assert [record.getMessage() for record in caplog.records if record.getMessage().startswith("maintenance.")] == [
        "maintenance.failed",
        "maintenance.recovered",
    ]


def test_firings_that_cannot_be_written_are_tried_again_after_a_pause(worker_pools: WorkerPoolFixture, caplog):
    caplog.set_level("INFO")
    queue_db = worker_pools.queue_fixture
    queue_db.sql(
        "CREATE SEQUENCE tries;"
        " CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('tries'); RAISE disk_full USING MESSAGE = 'no space left on device'; END $$;"
        " CREATE TRIGGER filling BEFORE INSERT ON dl_firings FOR EACH ROW EXECUTE FUNCTION fill_disk();"
        " INSERT INTO dl_schedules (name, source, task, overrides, next_at)"
        " SELECT 's' || n, 'people', 'quick', '{}', clock_timestamp() FROM generate_series(1, 5) n"
    )
    worker_pools.listening_pool({"q": 1})
    eventually(lambda: queue_db.fetch_row("SELECT last_value FROM tries") >= 3, message="it is tried again")
    queue_db.sql("DROP TRIGGER filling ON dl_firings")

    eventually(lambda: "maintenance.recovered" in caplog.text, message="it works again")
    queue_db.sql("DROP FUNCTION fill_disk; DROP SEQUENCE tries")

    assert queue_db.fetch_row("SELECT count(*) FROM dl_firings") == 5
    assert (caplog.text.count("maintenance.failed"), caplog.text.count("delayed")) == (1, 0)


def test_wake_runs_a_duty_before_its_interval(queue_db):
    runs: list[str] = []
    leader = new_maintenance(queue_db, Duty("bulk", 3600.0, lambda: runs.append("bulk"), first_delay_sec=3600.0))
    leader.run_once()

    leader.wake("bulk")
    leader.run_once()

    assert runs == ["bulk"]


@pytest.mark.parametrize("is_paced", [False, True])
@pytest.mark.parametrize("pause", [None, 20.0])
def test_duty_that_is_woken_while_it_runs_runs_again(queue_db, pause: float | None, is_paced: bool):
    runs: list[str] = []

    def run() -> float | None:
        runs.append("schedules")
        if len(runs) == 1:
            leader.wake("schedules")
        return pause

    leader = new_maintenance(queue_db, Duty("schedules", 30.0, run, is_paced=is_paced))
    pauses = [leader.run_once() for _ in range(3)]

    assert runs == ["schedules"] * 2
    assert pauses[2] > 15.0


# ── the leader ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_process_leads_until_its_connection_is_lost(queue_db):
    runs: list[str] = []
    session = queue_db.new_session(application_name="dataloader-maintenance")
    first = new_maintenance(queue_db, Duty("duty", 0.0, lambda: runs.append("first")), session=session)
    second = new_maintenance(queue_db, Duty("duty", 0.0, lambda: runs.append("second")))
    first.run_once()
    second.run_once()
    assert (first.is_leader, second.is_leader) == (True, False)

    queue_db.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'dataloader-maintenance'"
    )
    eventually(lambda: lock_is_free(queue_db))
    second.run_once()
    session.close()  # as the next statement on it finds out
    first.run_once()

    assert (first.is_leader, second.is_leader) == (False, True)
    assert runs == ["first", "second"]


def test_former_leader_leads_again_without_a_heartbeat(queue_db):
    session = queue_db.new_session(application_name="dataloader-maintenance")
    leader = new_maintenance(queue_db, Duty("duty", 0.0, lambda: None), session=session)
    leader.run_once()
    leader.on_heartbeat(HeartbeatResult())

    session.close()  # as the next statement on it finds out
    eventually(lambda: lock_is_free(queue_db))
    leader.run_once()

    assert leader.is_leader


def test_follower_keeps_no_connection_open(queue_db):
    idle = Duty("idle", 1.0, lambda: None)
    first, second = new_maintenance(queue_db, idle), new_maintenance(queue_db, idle)
    first.run_once()
    run_steps(second, 2)

    assert leader_connections(queue_db) == 1


def add_forgotten_job(queue_db: QueueFixture, key: str) -> UUID:
    """A job that is blocked although its key is free."""
    holder = queue_db.enqueue_and_claim(key, queue=key)
    job_id = queue_db.enqueue(key, queue=key)
    assert queue_db.claim(queue=key) == []
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(holder.id))
    assert queue_db.wait_state(job_id) == "blocked"
    return job_id


def test_next_leader_repairs_blocked_jobs_after_a_death(queue_db):
    first = new_maintenance(queue_db, duty(queue_db, "blocked"))
    second = new_maintenance(queue_db, duty(queue_db, "blocked"))
    first.run_once()
    second.run_once()
    assert first.is_leader
    job_id = add_forgotten_job(queue_db, "k")

    first.close()  # as the server does it when the process is gone
    eventually(lambda: lock_is_free(queue_db))
    second.run_once()

    assert second.is_leader
    assert queue_db.wait_state(job_id) == "ready"


def test_follower_repairs_blocked_jobs_of_frozen_leader(queue_db, monkeypatch):
    frozen = new_maintenance(queue_db, duty(queue_db, "blocked"))
    frozen.run_once()
    follower = new_maintenance(queue_db, followed=follower_duties(duty_context(queue_db.new_session())))
    earlier = add_forgotten_job(queue_db, "k")
    follower.run_once()
    assert queue_db.wait_state(earlier) == "ready"

    later = add_forgotten_job(queue_db, "l")
    follower.run_once()
    assert queue_db.wait_state(later) == "blocked"  # a moment ago it has looked
    later_on = clock() + 31.0
    monkeypatch.setattr(maintenance, "clock", lambda: later_on)
    follower.run_once()

    assert queue_db.wait_state(later) == "ready"
    assert not follower.is_leader


@pytest.mark.parametrize(
    ("heartbeat", "is_due"),
    [
        (HeartbeatResult(), False),
        (HeartbeatResult(is_led=False), True),
        (HeartbeatResult(next_schedule_in_sec=-4.0), False),
        (HeartbeatResult(next_schedule_in_sec=-6.0), True),
        (HeartbeatResult(has_waiting_work=True), True),
    ],
)
def test_heartbeat_that_asks_for_it_has_a_follower_check(queue_db, monkeypatch, heartbeat, is_due):
    leader, follower = new_maintenance(queue_db, Duty("duty", 1.0, lambda: None)), new_maintenance(queue_db)
    leader.run_once()
    woken: list[str] = []
    for name, maintenance_of in (("leader", leader), ("follower", follower)):
        monkeypatch.setattr(maintenance_of.thread, "wake", lambda name=name: woken.append(name))
        maintenance_of.on_heartbeat(heartbeat)

    assert woken == (["follower"] if is_due else [])


def test_heartbeat_with_a_late_schedule_has_the_leader_fire(queue_db):
    runs = list[str]()
    leader = new_maintenance(queue_db, Duty("schedules", 30.0, lambda: runs.append("run")))
    leader.run_once()

    leader.on_heartbeat(HeartbeatResult(next_schedule_in_sec=-4.0))
    leader.run_once()
    assert runs == ["run"]
    leader.on_heartbeat(HeartbeatResult(next_schedule_in_sec=-6.0))
    leader.run_once()
    assert runs == ["run", "run"]


def test_heartbeats_replace_the_checks_of_a_follower(queue_db, monkeypatch):
    leader, checks = new_maintenance(queue_db, Duty("duty", 1.0, lambda: None)), list[str]()
    leader.run_once()
    follower = new_maintenance(queue_db, followed=[Duty("check", 0.0, lambda: checks.append("check"))])
    follower.run_once()
    assert len(checks) == 1

    follower.on_heartbeat(HeartbeatResult(has_waiting_work=True))  # it has looked a moment ago
    follower.run_once()
    assert len(checks) == 1

    now = clock() + 31.0
    monkeypatch.setattr(maintenance, "clock", lambda: now)
    follower.on_heartbeat(HeartbeatResult(has_waiting_work=True))
    follower.run_once()
    assert len(checks) == 2
    follower.on_heartbeat(HeartbeatResult(is_led=False))
    follower.run_once()
    assert len(checks) == 3


def test_follower_fires_the_late_schedule_of_a_frozen_leader(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture
    frozen = new_maintenance(queue_db, Duty("duty", 1.0, lambda: None))
    frozen.run_once()
    follower = worker_pools.listening_pool({"q": 1})
    queue_db.sql(
        "INSERT INTO dl_schedules (name, source, task, overrides, next_at)"
        " VALUES ('s', 'people', 'quick', '{}', clock_timestamp() - interval '4 s')"
    )

    eventually(lambda: queue_db.fetch_row("SELECT count(*) FROM dl_firings"), 15.0, "it is fired at a heartbeat")

    assert frozen.is_leader
    assert queue_db.session_count(f"application_name = 'dataloader-maintenance:{follower.id}'") == 0, "no leader"
    frozen.close()


def test_failing_duty_of_a_follower_ends_no_process(queue_db, caplog):
    """All followers have the same: none would be left to run jobs."""
    runs: list[str] = []

    def fail() -> None:
        raise KeyError("bug")

    leader = new_maintenance(queue_db, Duty("idle", 1.0, lambda: None))
    leader.run_once()
    other = Duty("other", 30.0, lambda: runs.append("other"))
    follower = new_maintenance(queue_db, followed=[Duty("failing", 30.0, fail), other])

    run_steps(follower, 2)

    assert runs == ["other"]
    assert caplog.text.count("maintenance.failed") == 1


def test_another_pool_takes_over_when_the_leader_stops(worker_pools: WorkerPoolFixture):
    first = worker_pools.listening_pool({"q": 1})
    eventually(lambda: leader_connections(worker_pools.queue_fixture) == 1, message="one leads")
    worker_pools.listening_pool({"q": 1})

    first.stop(grace=1)

    bulk = BulkOperations(worker_pools.queue_fixture.session)
    worker_pools.queue_fixture.enqueue("k", queue="unused")
    operation = bulk.start(BulkAction.CANCEL, Filter(queue="unused"), expected=1)
    eventually(lambda: bulk.get(operation.bulk_id).state is BulkState.DONE, message="the other one does it")


def test_one_pool_of_two_runs_bulk_and_statistics(worker_pools: WorkerPoolFixture):
    for _ in range(2):
        worker_pools.listening_pool({"q": 1})
    bulk, statistics = (
        BulkOperations(worker_pools.queue_fixture.session),
        Statistics(worker_pools.queue_fixture.session),
    )
    for n in range(3):
        worker_pools.queue_fixture.enqueue(f"k{n}", queue="unused")

    operation = bulk.start(BulkAction.CANCEL, Filter(), expected=3)

    eventually(lambda: bulk.get(operation.bulk_id).state is BulkState.DONE, message="the operation is done")
    eventually(lambda: statistics.by_queue().get("unused"), message="events are aggregated")
    assert leader_connections(worker_pools.queue_fixture) == 1
