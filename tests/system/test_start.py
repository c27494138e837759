"""The start: what is in the way is reported plainly, with a code of its own, and nothing else is harmed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from dataloader.app.config.dsn import format_dsn, parse_dsn
from dataloader.app.db.schema import SCHEMA_VERSION
from tests.support import PrivateServer, Process, eventually, free_port
from tests.support.databases import execute_sql
from tests.support.real_service import (
    ServiceJobs,
    ServiceStarter,
    postgres_pids_of,
    query_rows,
    wait_for_end_of_postgres,
)

HOSTS = ("serve", "worker")


def test_second_service_on_a_taken_port_harms_nothing(start: Callable[..., Process], home: Path):
    first = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    servers = postgres_pids_of(home)

    second = ServiceStarter(start, None)("serve", APP_PORT=str(first.port), DL_DATA_DIR=str(home))

    assert second.process.wait() == 69
    assert f"cannot listen on 127.0.0.1 port {first.port}" in second.process.text
    assert "another process listens there already" in second.process.text
    assert "Traceback" not in second.process.text
    assert postgres_pids_of(home) == servers != []
    assert first.get("/status")[0] == 200
    assert first.stop() == 0
    wait_for_end_of_postgres(home)


def test_last_of_two_services_stops_the_shared_server(start: Callable[..., Process], home: Path):
    one = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    other = ServiceStarter(start, None)("worker", DL_DATA_DIR=str(home)).wait_until_ready()

    assert one.stop() == 0
    assert len(postgres_pids_of(home)) == 1
    assert other.stop() == 0
    wait_for_end_of_postgres(home)


def test_incompatible_tables_are_refused_with_the_remedy(run: ServiceStarter, dsn: str):
    query_rows(dsn, "UPDATE dl_schema SET version = %s, serves_from = %s", SCHEMA_VERSION + 1, SCHEMA_VERSION + 1)
    newer = [run(host) for host in ("serve", "worker")]
    for running in newer:
        assert running.process.wait() == 65
        assert "upgrade dataloader instead" in running.process.text
        assert "Traceback" not in running.process.text

    query_rows(dsn, "DELETE FROM dl_schema")
    older = [run(host) for host in ("serve", "worker")]
    for running in older:
        assert running.process.wait() == 65
        assert "run `dataloader migrate`" in running.process.text
        assert "Traceback" not in running.process.text


def test_newer_tables_that_serve_this_version_are_worked_on(run: ServiceStarter, dsn: str, tmp_path: Path):
    query_rows(
        dsn, "INSERT INTO dl_schema VALUES (%s, 'of a later release', now(), %s)", SCHEMA_VERSION + 1, SCHEMA_VERSION
    )
    jobs = ServiceJobs(dsn, tmp_path)

    running = run("serve").wait_until_ready()
    jobs.insert()

    jobs.wait_for_counts({"succeeded": 1})
    assert running.get("/status")[0] == 200


def test_an_empty_database_is_given_its_tables(start: Callable[..., Process], empty_dsn: str, tmp_path: Path):
    ServiceStarter(start, empty_dsn)("serve").wait_until_ready()
    jobs = ServiceJobs(empty_dsn, tmp_path)

    jobs.insert()

    jobs.wait_for_counts({"succeeded": 1})


def test_a_database_that_is_away_is_waited_for(start: Callable[..., Process], server: PrivateServer, tmp_path: Path):
    """The API answers meanwhile, and says so; the schema is prepared, and "ready" printed, when it is there."""
    query_rows(server.dsn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    server.stop()
    serve = ServiceStarter(start, server.dsn)("serve")
    worker = ServiceStarter(start, server.dsn)("worker", WORKERS_JSON='[{"queue":"other","concurrency":1}]')
    serve.process.wait_for_port(serve.port)
    for running in (serve, worker):
        running.process.wait_for_line("schema.not_ready")
        running.process.wait_for_line("waiting for the database at")
        assert "service.ready" not in running.process.text

    assert serve.get("/health") == (200, {"status": "healthy"})
    assert serve.get("/status")[0] == 503
    assert serve.get("/api/v1/jobs/4a0f9b52-6a41-4f8e-8d4c-7e9d8c1b2a3f/status")[0] == 503

    server.start()
    for running in (serve, worker):
        running.wait_until_ready().process.wait_for_line("service.ready")
    jobs = ServiceJobs(server.dsn, tmp_path)
    jobs.insert()
    jobs.wait_for_counts({"succeeded": 1})
    for running in (serve, worker):
        assert running.stop() == 0
        assert len(running.log_lines("schema.ready")) == 1
        assert "Traceback" not in running.process.text


def test_service_waiting_for_its_database_can_be_stopped(start: Callable[..., Process], server: PrivateServer):
    server.stop()
    for running in [ServiceStarter(start, server.dsn)(host) for host in ("serve", "worker")]:
        running.process.wait_for_line("schema.not_ready")

        assert running.stop(signal.SIGINT) == 0
        assert running.check_clean_exit(), running.process.text


def test_failing_module_is_named_and_others_work(run: ServiceStarter, jobs: ServiceJobs):
    running = [run(host, DL_PIPELINES="tests.support.etl_broken") for host in ("serve", "worker")]

    for one in running:
        one.wait_until_ready()
        result = {line["module"]: line["error"] for line in one.log_lines("pipeline.import_failed")}
        assert result == {"tests.support.etl_broken.crooked": "RuntimeError: the ruler is crooked"}
        one.process.wait_for_line('"tests.support.etl_broken.crooked": "RuntimeError: the ruler is crooked"')
    assert running[0].get("/status")[1]["workers"]["broken_modules"] == sorted(result)
    jobs.insert("test.straight")
    jobs.wait_for_counts({"succeeded": 1})


def test_missing_package_is_refused_with_all_other_faults(start: Callable[..., Process], dsn: str):
    packages = "pipelines,acme_nowhere,tests.support.nowhere"
    for running in [ServiceStarter(start, dsn)(host, DL_PIPELINES=packages, DEBUG="much") for host in HOSTS]:
        assert running.process.wait() == 78
        for fault in (
            "'acme_nowhere', which cannot be imported",
            "'tests.support.nowhere', which",
            "DEBUG: found 'much'",
        ):
            assert fault in running.process.text
        assert "ready at" not in running.process.text


def test_package_whose_import_fails_is_refused(run: ServiceStarter, tmp_path: Path):
    (tmp_path / "acme_sad").mkdir()
    (tmp_path / "acme_sad/__init__.py").write_text("raise RuntimeError('no licence')")

    for running in [run(host, DL_PIPELINES="acme_sad", PYTHONPATH=str(tmp_path)) for host in HOSTS]:
        assert running.process.wait() == 78
        assert (
            "DL_PIPELINES: found 'acme_sad', which cannot be imported: RuntimeError: no licence" in running.process.text
        )
        assert "Traceback" not in running.process.text


def test_missing_database_is_named_with_what_creates_it(start: Callable[..., Process], dsn: str):
    run = ServiceStarter(start, format_dsn({**parse_dsn(dsn), "dbname": "not_there"}))
    for running in [run(host) for host in HOSTS]:
        running.process.wait_for_line("database 'not_there' does not exist at")
        assert "createdb" in running.process.text
        assert "service.ready" not in running.process.text


def test_the_api_alone_and_a_worker_alone_meet_in_the_database(run: ServiceStarter, jobs: ServiceJobs):
    api = run("serve", "--no-workers").wait_until_ready()
    (job,) = jobs.insert()
    assert api.get("/status")[1]["workers"] is None
    assert api.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "queued"

    worker = run("worker").wait_until_ready()

    eventually(lambda: api.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "succeeded")
    assert api.stop() == worker.stop() == 0


def test_a_worker_without_a_queue_is_a_mistake(run: ServiceStarter):
    running = run("worker", WORKERS_JSON="[]")

    assert running.process.wait() == 78
    assert "WORKERS_JSON" in running.process.text


def test_unavailable_address_is_reported(run: ServiceStarter):
    running = run("serve", "--host", "203.0.113.7")

    assert running.process.wait() == 69
    assert "203.0.113.7" in running.process.text
    assert "Traceback" not in running.process.text


def test_taken_port_is_reported(run: ServiceStarter):
    import socket

    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert run("serve", APP_PORT=str(port)).process.wait() == 69


def test_healthy_service_writes_no_error_into_the_servers_log(start: Callable[..., Process], server: PrivateServer):
    execute_sql(server.dsn, "CREATE ROLE etl LOGIN", "CREATE DATABASE etl OWNER etl")
    dsn = format_dsn({**parse_dsn(server.dsn), "user": "etl", "dbname": "etl"})
    log = Path(query_rows(server.dsn, "SHOW data_directory")[0][0]).parent / "server.log"
    before = len(log.read_text())

    assert start("migrate", env={"DL_DB_DSN": dsn}).wait() == 0
    running = ServiceStarter(start, dsn)("serve").wait_until_ready()
    start("doctor", env={"DL_DB_DSN": dsn}).wait()
    assert running.stop() == 0

    levels = ("ERROR: ", "WARNING: ", "FATAL: ", "PANIC: ")
    assert [line for line in log.read_text()[before:].splitlines() if any(level in line for level in levels)] == []
