"""The start: what is in the way is said plainly, with a code of its own, and nothing else is harmed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from app.config.dsn import parse, write
from app.queue.schema import SCHEMA_VERSION
from tests.support import PrivateServer, Process, eventually, free_port
from tests.support.running import Jobs, Runner, ask, servers_of

READY = {"serve": "is ready at", "worker": "dataloader works"}  # what each prints


def test_a_second_service_in_the_same_folder_finds_the_port_taken_and_harms_nothing(
    start: Callable[..., Process], home: Path
):
    first = Runner(start, None)("serve", DL_DATA_DIR=str(home)).until_ready()
    servers = servers_of(home)

    second = Runner(start, None)("serve", APP_PORT=str(first.port), DL_DATA_DIR=str(home))

    assert second.process.wait() == 69
    assert f"cannot listen on 127.0.0.1 port {first.port}" in second.process.text
    assert "another process listens there already" in second.process.text
    assert "Traceback" not in second.process.text
    assert servers_of(home) == servers != []
    assert first.get("/status")[0] == 200
    assert first.stop() == 0
    assert servers_of(home) == []


def test_two_services_on_two_ports_share_the_embedded_server_and_the_last_one_stops_it(
    start: Callable[..., Process], home: Path
):
    one = Runner(start, None)("serve", DL_DATA_DIR=str(home)).until_ready()
    other = Runner(start, None)("worker", DL_DATA_DIR=str(home)).until_ready()

    assert one.stop() == 0
    assert len(servers_of(home)) == 1
    assert other.stop() == 0
    assert servers_of(home) == []


def test_tables_that_do_not_fit_are_told_with_the_remedy(run: Runner, dsn: str):
    ask(dsn, "UPDATE dl_schema SET version = %s, serves_from = %s", SCHEMA_VERSION + 1, SCHEMA_VERSION + 1)
    newer = [run(host) for host in ("serve", "worker")]
    for running in newer:
        assert running.process.wait() == 65
        assert "upgrade dataloader instead" in running.process.text
        assert "Traceback" not in running.process.text

    ask(dsn, "DELETE FROM dl_schema")
    older = [run(host) for host in ("serve", "worker")]
    for running in older:
        assert running.process.wait() == 65
        assert "run `dataloader migrate`" in running.process.text
        assert "Traceback" not in running.process.text


def test_newer_tables_that_serve_this_version_are_worked_on(run: Runner, dsn: str, tmp_path: Path):
    ask(dsn, "INSERT INTO dl_schema VALUES (%s, 'of a later release', now(), %s)", SCHEMA_VERSION + 1, SCHEMA_VERSION)
    jobs = Jobs(dsn, tmp_path)

    running = run("serve").until_ready()
    jobs.insert()

    jobs.until({"succeeded": 1})
    assert running.get("/status")[0] == 200


def test_an_empty_database_is_given_its_tables(start: Callable[..., Process], empty_dsn: str, tmp_path: Path):
    Runner(start, empty_dsn)("serve").until_ready()
    jobs = Jobs(empty_dsn, tmp_path)

    jobs.insert()

    jobs.until({"succeeded": 1})


def test_a_database_that_is_away_is_waited_for(start: Callable[..., Process], server: PrivateServer, tmp_path: Path):
    """The API answers meanwhile, and says so; the schema is prepared, and "ready" printed, when it is there."""
    ask(server.dsn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    server.stop()
    serve = Runner(start, server.dsn)("serve")
    worker = Runner(start, server.dsn)("worker", WORKERS_JSON='[{"queue":"other","concurrency":1}]')
    serve.process.wait_for_port(serve.port)
    for running in (serve, worker):
        running.process.wait_for("schema.not_ready")
        running.process.wait_for("not ready: waiting for the database at")
        assert READY[running.host] not in running.process.text

    assert serve.get("/health") == (200, {"status": "healthy"})
    assert serve.get("/status")[0] == 503
    assert serve.get("/api/v1/jobs/4a0f9b52-6a41-4f8e-8d4c-7e9d8c1b2a3f/status")[0] == 503

    server.start()
    for running in (serve, worker):
        running.until_ready().process.wait_for(READY[running.host])
    jobs = Jobs(server.dsn, tmp_path)
    jobs.insert()
    jobs.until({"succeeded": 1})
    for running in (serve, worker):
        assert running.stop() == 0
        assert len(running.log("schema.ready")) == 1
        assert "Traceback" not in running.process.text


def test_a_service_that_still_waits_for_its_database_stops_when_told_to(
    start: Callable[..., Process], server: PrivateServer
):
    server.stop()
    for running in [Runner(start, server.dsn)(host) for host in ("serve", "worker")]:
        running.process.wait_for("schema.not_ready")

        assert running.stop(signal.SIGINT) == 0
        assert running.ended_by_itself(), running.process.text


def test_a_module_that_cannot_be_imported_is_named_and_the_others_work(run: Runner, jobs: Jobs):
    running = [run(host, DL_PIPELINES="tests.support.etl_broken") for host in ("serve", "worker")]

    for one in running:
        one.until_ready()
        said = {line["module"]: line["error"] for line in one.log("pipeline.broken")}
        assert said == {"tests.support.etl_broken.crooked": "RuntimeError: the ruler is crooked"}
        one.process.wait_for("    tests.support.etl_broken.crooked: RuntimeError: the ruler is crooked")
    assert running[0].get("/status")[1]["workers"]["broken_modules"] == sorted(said)
    jobs.insert("test.straight")
    jobs.until({"succeeded": 1})


def test_missing_package_is_refused_with_all_other_faults(start: Callable[..., Process], dsn: str):
    packages = "pipelines,acme_nowhere,tests.support.nowhere"
    for running in [Runner(start, dsn)(host, DL_PIPELINES=packages, DEBUG="much") for host in READY]:
        assert running.process.wait() == 78
        for fault in (
            "'acme_nowhere', which cannot be imported",
            "'tests.support.nowhere', which",
            "DEBUG: found 'much'",
        ):
            assert fault in running.process.text
        assert "ready at" not in running.process.text


def test_package_whose_import_fails_is_refused(run: Runner, tmp_path: Path):
    (tmp_path / "acme_sad").mkdir()
    (tmp_path / "acme_sad/__init__.py").write_text("raise RuntimeError('no licence')")

    for running in [run(host, DL_PIPELINES="acme_sad", PYTHONPATH=str(tmp_path)) for host in READY]:
        assert running.process.wait() == 78
        assert (
            "DL_PIPELINES: found 'acme_sad', which cannot be imported: RuntimeError: no licence" in running.process.text
        )
        assert "Traceback" not in running.process.text


def test_missing_database_is_named_with_what_creates_it(start: Callable[..., Process], dsn: str):
    run = Runner(start, write({**parse(dsn), "dbname": "not_there"}))
    for running in [run(host) for host in READY]:
        running.process.wait_for("not ready: database 'not_there' does not exist")
        assert "createdb" in running.process.text
        assert READY[running.host] not in running.process.text


def test_the_api_alone_and_a_worker_alone_meet_in_the_database(run: Runner, jobs: Jobs):
    api = run("serve", "--no-workers").until_ready()
    (job,) = jobs.insert()
    assert api.get("/status")[1]["workers"] is None
    assert api.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "queued"

    worker = run("worker").until_ready()

    eventually(lambda: api.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "succeeded")
    assert api.stop() == worker.stop() == 0


def test_a_worker_without_a_queue_is_a_mistake(run: Runner):
    running = run("worker", WORKERS_JSON="[]")

    assert running.process.wait() == 78
    assert "WORKERS_JSON" in running.process.text


def test_an_address_that_cannot_be_had_is_told(run: Runner):
    running = run("serve", "--host", "203.0.113.7")

    assert running.process.wait() == 69
    assert "203.0.113.7" in running.process.text
    assert "Traceback" not in running.process.text


def test_a_taken_port_is_told_whoever_has_it(run: Runner):
    import socket

    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert run("serve", APP_PORT=str(port)).process.wait() == 69
