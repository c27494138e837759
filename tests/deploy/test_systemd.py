"""The units of deploy/systemd under a real systemd, installed as docs/deploying.md says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.support.machine import Machine, booted_machine, install_units, missing_for_machine
from tests.support.processes import ROOT, free_port
from tests.support.proxy import SilentProxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(300)]
STATE = "/var/lib/dataloader"
TASKS = f"""
from pathlib import Path
from dataloader import register

@register("acme.wait")
def wait(args, ctx):
    Path("{STATE}", str(ctx.job_id)).touch()
    while not Path("{STATE}/go").exists():
        ctx.sleep(0.05)
"""


class Service:
    """The three units of the machine, and the jobs of their database."""

    def __init__(self, machine: Machine, dsn: str, port: int) -> None:
        self.machine, self.dsn, self.port = machine, dsn, port

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, values)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def enqueue(self) -> str:
        """A job that runs until `release`, and runs now."""
        job = str(uuid4())
        statement = "INSERT INTO dl_jobs (job_id, queue, task, lock_key) VALUES (%s, 'etl.default', 'acme.wait', %s)"
        self.query(statement, job, job)
        self.wait_for(job, "running", 1)
        return job

    def release(self) -> None:
        self.machine.run("touch", f"{STATE}/go")

    def row(self, job: str) -> tuple[str, int]:
        ((status, attempt),) = self.query("SELECT status, attempt FROM dl_jobs WHERE job_id = %s", job)
        return status, attempt

    def wait_for(self, job: str, status: str, attempt: int) -> None:
        eventually(lambda: self.row(job) == (status, attempt), 60, lambda: f"{self.row(job)}\n{self.log()}")

    def log(self) -> str:
        return "".join(self.machine.journal(f"dataloader-{unit}") for unit in ("migrate", "api", "worker@1"))

    def main_pid(self, unit: str) -> int:
        return int(self.machine.show(unit, "MainPID"))


@pytest.fixture
def service(tmp_path: Path, server: Any) -> Iterator[Service]:
    if missing := missing_for_machine():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    port = free_port()
    with SilentProxy(server.dsn) as proxy, booted_machine(tmp_path) as machine:
        parts = {key: value for key, value in parse_dsn(proxy.dsn).items() if key in ("host", "port", "user", "dbname")}
        service = Service(machine, make_dsn(**parts), port)
        service.query("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield service


def install(service: Service) -> None:
    text = (ROOT / "deploy/systemd/environment.example").read_text(encoding="utf-8")
    settings = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    service.machine.write(f"{STATE}/acme.py", TASKS)
    install_units(
        service.machine,
        settings | {
            "DL_DB_DSN": service.dsn, "APP_PORT": str(service.port), "DL_PIPELINES": "dataloader.pipelines,acme",
            "DL_SHUTDOWN_GRACE_SEC": "1",
        },
    )  # fmt: skip


def test_units_run_stop_and_restart(service: Service):
    install(service)
    machine, worker = service.machine, "dataloader-worker@1"
    machine.run("systemctl", "stop", "dataloader-worker@2")
    job = service.enqueue()

    machine.run("systemctl", "stop", worker)
    assert service.row(job) == ("queued", 0), "a stop costs no attempt"
    assert machine.show(worker, "Result") == "success"

    machine.run("systemctl", "start", worker)
    service.wait_for(job, "running", 1)
    killed = service.main_pid(worker)
    machine.run("kill", f"-{signal.SIGKILL.value}", str(killed))
    service.wait_for(job, "running", 2)
    assert service.main_pid(worker) not in (0, killed), "systemd starts it again"
    service.release()
    service.wait_for(job, "succeeded", 2)

    eventually(lambda: "ready" in machine.run("curl", "-s", f"http://127.0.0.1:{service.port}/status", check=False))
    assert machine.show("dataloader-migrate", "Result") == "success"
    for unit in (worker, "dataloader-api"):
        assert machine.show(unit, "ActiveState") == "active", service.log()
        pid = service.main_pid(unit)
        assert machine.run("stat", "--format=%U", f"/proc/{pid}").strip() == "dataloader"
        status = machine.run("cat", f"/proc/{pid}/status")
        assert "NoNewPrivs:\t1" in status
        assert "CapBnd:\t0000000000000000" in status
        inside = ["nsenter", f"--target={pid}", "--mount", "--root", "--setuid=65534", "sh", "-c"]
        assert machine.run(*inside, "ls /home /root /run/user 2>/dev/null || echo hidden").strip() == "hidden"
        assert (
            machine.run("nsenter", f"--target={pid}", "--mount", "sh", "-c", "touch /usr/x || echo ro").strip() == "ro"
        )
    lines = [json.loads(line) for line in machine.journal(worker).splitlines() if line.startswith("{")]
    assert lines
    assert not [line for line in lines if line.get("event") == "process_lock.missing"]


def test_deploy_in_the_middle_of_a_long_job(service: Service):
    """The recipe as docs/deploying.md prints it: the old process finishes its job, the new one has the rest."""
    install(service)
    machine, settings = service.machine, "/etc/dataloader/worker-2026.11.1"
    service.query("UPDATE dl_workers SET draining = true")
    machine.run("sed", "-i", "s/^DL_SHUTDOWN_GRACE_SEC=.*/DL_SHUTDOWN_GRACE_SEC=60/", "/etc/dataloader/environment")
    machine.run("systemctl", "disable", "--now", "dataloader-worker@1", "dataloader-worker@2")
    machine.run("sh", "-c", f"mkdir -p /opt/etl/2026.11.1 && mv {STATE}/acme.py /opt/etl/2026.11.1/acme.py")
    machine.write(settings, "DL_RELEASE=2026.11.1\nPYTHONPATH=/opt/etl/2026.11.1\n")
    machine.run("systemctl", "enable", "--now", "dataloader-worker@2026.11.1")
    long_job = service.enqueue()
    machine.write("/root/acme_etl/__init__.py", "")  # what the recipe copies
    machine.write("/opt/etl/2026.11.2/acme.py", TASKS)
    start, deploy, stop = deploy_recipe()

    in_root = "cd /root && export PATH=/opt/dataloader/bin:$PATH && set -a && . /etc/dataloader/environment && "
    machine.run("sh", "-euc", f"{in_root} {start}")
    waiting = machine.run("sh", "-c", f"{in_root} {deploy} --timeout 20 2>&1; echo ended with $?")
    new_job = service.enqueue()

    assert "still running: 1 job of release 2026.11.1; the longest, acme.wait, since " in waiting
    assert "ended with 1" in waiting
    assert releases(service, long_job) == ["2026.11.1"]
    assert releases(service, new_job) == ["2026.11.2"]

    service.release()
    machine.run("sh", "-euc", f"{in_root} {deploy}")
    machine.run("sh", "-euc", stop)
    service.wait_for(long_job, "succeeded", 1)
    service.wait_for(new_job, "succeeded", 1)
    assert machine.show("dataloader-worker@2026.11.1", "ActiveState") == "inactive"
    assert machine.show("dataloader-worker@2026.11.2", "ActiveState") == "active"


def releases(service: Service, job: str) -> list[str]:
    """Of the attempts of a job."""
    statement = (
        "SELECT payload ->> 'release' FROM dl_job_events WHERE job_id = %s AND kind = 'picked' ORDER BY event_id"
    )
    return [release for (release,) in service.query(statement, job)]


def deploy_recipe() -> tuple[str, str, str]:
    """The commands before the deploy, the deploy, and those after it."""
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    block = page.partition("**systemd.**")[2].partition("```sh\n")[2].partition("```")[0]
    start, _, rest = block.partition("dataloader deploy ")
    release, _, stop = rest.partition("\n")
    return start, f"dataloader deploy {release}", stop
