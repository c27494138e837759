"""The first hour of a user, step by step, by the programs and requests that a user has."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.sql import SQL, Composable, Identifier, Literal

from tests.field.deployment import Access, Deployment
from tests.field.ground import Wheels
from tests.support.processes import Process
from tests.support.waiting import eventually

# What no log of a service in order has.
FORBIDDEN_IN_LOG = ("Traceback", "permission denied", "InternalError", '"level": "CRITICAL"')

MAX_ERROR_LENGTH = 3000
# Release 0.2.0 cannot work for a role that is read-only, or has such timeouts.
FORMER_OPTIONS = "-c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0"


@dataclass
class StepResult:
    """How one step ended in one place."""

    step: str
    seconds: float
    error: str = ""


@dataclass
class FirstHour:
    deployment: Deployment
    wheels: Wheels
    outcomes: list[StepResult] = field(default_factory=list)
    service: Process | None = None

    def run(self) -> list[StepResult]:
        """Run each step, also after one that failed, unless nothing can work without that one."""
        try:
            steps = (("migrate", FirstHour.is_refused, True),) if self.deployment.refusal else STEPS
            for name, step, is_required in steps:
                started = time.monotonic()
                error = ""
                try:
                    step(self)
                except Exception as failure:
                    error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_LENGTH]
                self.outcomes.append(StepResult(name, time.monotonic() - started, error))
                if error and is_required:
                    break
        finally:
            if self.service is not None:
                self.service.kill()
        return self.outcomes

    # ── the service ─────────────────────────────────────────────────────────────────────────────────────────────────

    def migrate(self) -> None:
        assert "dataloader" in self.deployment.run("--version")
        migrate(self.deployment, self.deployment.access)
        migrate(self.deployment, self.deployment.access)  # it can be repeated

    def is_refused(self) -> None:
        with self.deployment.start("migrate") as migration:
            assert migration.wait() == 65, migration.text
        assert self.deployment.refusal in migration.text
        assert "Traceback" not in migration.text

    def serve(self) -> None:
        self.service = self.deployment.start("serve")
        self.service.wait_for_line("is ready")
        eventually(lambda: self.get("/health/ready")[0] == 200, message=lambda: str(self.get("/health/ready")))
        if self.deployment.api_has_workers:
            eventually(lambda: self.get("/status")[1]["workers"]["listener"] == "listening")

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def isolation(self) -> None:
        self.deployment.run("trigger", "noop", "--watch")
        results = {
            task: self.trigger("field." + task, one=6, other=7)
            for task in ("thread", "process", "call", "command", "interpreter", "offload")
        }
        for task, job in results.items():
            result = self.wait_for(job)["result"]
            assert task == "command" or result["answer"] == 42, (task, result)
        assert "multiplying 6 7" in self.deployment.run("logs", results["call"])
        pids = {task: self.job(results[task])["result"]["pid"] for task in ("thread", "process")}
        assert pids["thread"] != pids["process"]

    def cancel(self) -> None:
        for task in ("field.hang_in_thread", "field.hang_in_process"):
            job = self.trigger(task)
            eventually(lambda: self.hanging_statements() == 1, message=lambda: str(self.job(job)))  # noqa: B023
            self.deployment.run("cancel", job)
            self.wait_for(job, "canceled")
            eventually(lambda: self.hanging_statements() == 0, 10, "its SQL has ended")

    def limit(self) -> None:
        self.deployment.run("limits", "set", "field", "--concurrency", "1")
        jobs = [self.trigger("field.limited", lock_key=f"limited-{n}") for n in range(3)]
        times = sorted((r["started_at"], r["ended_at"]) for r in (self.wait_for(job)["result"] for job in jobs))
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(times)), times
        self.deployment.run("limits", "delete", "field")

    def schedule(self) -> None:
        self.deployment.run(
            "schedules", "create", "every second", "--task", "field.thread", "--every", "1s", "--max-attempts", "1"
        )
        succeeded = "SELECT count(*) FROM dl_firings f JOIN dl_jobs USING (job_id) WHERE status = 'succeeded'"
        eventually(lambda: self.sql(succeeded)[0][0] >= 2, 30, lambda: str(self.sql("SELECT * FROM dl_firings")))
        self.deployment.run("schedules", "delete", "every second")

    def backfill(self) -> None:
        words = ["backfill", "field.day", "--from", "2026-01-01", "--to", "2026-01-04", "--arg", "day={partition}"]
        self.deployment.run(*words, "--watch")
        slices = self.deployment.run_json("slices", "field.day")["slices"]
        assert [one["state"] for one in slices] == ["succeeded"] * 4, slices

    def graph(self) -> None:
        parents = [
            {"key": key, "queue": "etl.default", "task": "field.thread", "lock_key": key, "max_attempts": 1}
            for key in ("stock", "orders")
        ]
        report = {"key": "report", "queue": "etl.default", "task": "field.report", "lock_key": "report"}
        after = [{"job": parent["key"]} for parent in parents]
        graph = {"name": "field", "jobs": [*parents, {**report, "after": after}]}
        file = self.deployment.folder / "graph.json"
        file.write_text(json.dumps(graph), encoding="utf-8")
        made = self.deployment.run_json("graphs", "trigger", str(file))
        assert self.wait_for(made["jobs"]["report"])["result"] == {"sum": 84}

    # ── the operator ────────────────────────────────────────────────────────────────────────────────────────────────

    def retention(self) -> None:
        job = self.trigger("field.thread", lock_key="old")
        self.wait_for(job)
        self.sql(f"UPDATE dl_jobs SET finished_at = now() - interval '400 days' WHERE job_id = '{job}'")
        shown = self.deployment.run("prune", "--dry-run")
        assert "field.thread" in shown or self.sql(f"SELECT 1 FROM dl_jobs WHERE job_id = '{job}'") == [], shown
        self.deployment.run("prune")
        assert self.sql(f"SELECT count(*) FROM dl_jobs WHERE job_id = '{job}'") == [(0,)]

    def doctor(self) -> None:
        report = self.deployment.run_json("doctor", codes=(0, 1, 5))
        errors = [one["message"] for one in report["findings"] if one["severity"] in ("error", "warning")]
        assert errors == [], errors

    def drain(self) -> None:
        assert self.service is not None
        file = self.deployment.folder / "go-on"
        job = self.trigger("field.wait", file=str(file))
        eventually(lambda: self.job(job)["status"] == "running")
        drained = self.deployment.run_json("drain", "--self")
        assert drained == {"workers": 1, "running": 1}, drained
        self.service.signal(signal.SIGTERM)
        assert self.service.wait() == 0, self.service.text
        assert self.sql(f"SELECT status::text, attempt FROM dl_jobs WHERE job_id = '{job}'") == [("queued", 0)]
        for word in FORBIDDEN_IN_LOG:
            assert word not in self.service.text, next(line for line in self.service.lines if word in line)
        file.touch()
        self.finish_with_worker(job)

    def upgrade(self) -> None:
        access = self.deployment.upgrade_access
        assert access is not None
        jobs = fill_former_release(self.deployment, access, self.deployment.former or self.wheels.former())
        upgraded = self.deployment.with_access(access)
        migrate(upgraded, access)
        rows = execute(
            access.observer_dsn, SQL("SELECT job_id, status::text FROM {}.dl_jobs").format(Identifier(access.schema))
        )
        assert dict(rows) == {jobs["ended"]: "succeeded", jobs["waiting"]: "queued"}
        hour = FirstHour(upgraded, self.wheels)
        hour.finish_with_worker(jobs["waiting"])

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish_with_worker(self, job: str) -> None:
        """Have a worker that leaves when it is idle run what waits."""
        with self.deployment.start("worker", "--exit-when-idle", "2s") as worker:
            assert worker.wait() == 0, worker.text
        assert self.sql(f"SELECT status::text FROM dl_jobs WHERE job_id = '{job}'") == [("succeeded",)], worker.text

    def get(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.deployment.url + path, data, headers)  # noqa: S310 - our own service
        try:
            with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def trigger(self, task: str, *, lock_key: str = "", **args: Any) -> str:
        """Make a job that has one attempt only: a failure is an answer too."""
        job = {"queue": "etl.default", "task": task, "lock_key": lock_key or task, "args": args, "max_attempts": 1}
        status, made = self.get("/api/v1/jobs/trigger", job)
        assert status in (200, 201, 202), made
        return str(made["job_id"])

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.get(f"/api/v1/jobs/{job}")[1])

    def wait_for(self, job: str, status: str = "succeeded") -> dict[str, Any]:
        final = ("succeeded", "failed", "canceled", "lost")
        eventually(lambda: self.job(job)["status"] in final, message=lambda: str(self.job(job)), interval_sec=0.02)
        found = self.job(job)
        assert found["status"] == status, found
        return found

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Look at the tables from outside, or change a row as time would."""
        access = self.deployment.access
        return execute(
            access.observer_dsn, SQL("SET search_path = {}").format(Identifier(access.schema)), SQL(statement)
        )

    def hanging_statements(self) -> int:
        statement = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
        return int(self.sql(f"{statement} AND datname = current_database()")[0][0])


STEPS: tuple[tuple[str, Callable[[FirstHour], None], bool], ...] = (
    ("migrate", FirstHour.migrate, True),
    ("serve", FirstHour.serve, True),
    ("isolation", FirstHour.isolation, False),
    ("cancel", FirstHour.cancel, False),
    ("limit", FirstHour.limit, False),
    ("schedule", FirstHour.schedule, False),
    ("backfill", FirstHour.backfill, False),
    ("graph", FirstHour.graph, False),
    ("retention", FirstHour.retention, False),
    ("doctor", FirstHour.doctor, False),
    ("drain", FirstHour.drain, False),
    ("upgrade", FirstHour.upgrade, False),
)


def execute(dsn: str, *statements: Composable) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def migrate(deployment: Deployment, access: Access) -> None:
    """Create or upgrade the tables as their owner, and give the service its rights if it has an account of its own."""
    deployment = deployment.with_access(access)
    deployment.run("migrate", owner=True)
    if access.granted_role:
        roles = deployment.run("migrate", "--roles", owner=True)
        roles += f"GRANT dataloader_service TO {access.granted_role};"
        subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", access.owner_dsn], input=roles, text=True, check=True)


def fill_former_release(deployment: Deployment, access: Access, programs: Path) -> dict[str, str]:
    """Create the tables of the former release and jobs in them: one that has ended, and one that waits."""
    as_owner = replace(access, service=access.owner)
    former = Deployment(
        [programs / "python", programs / "dataloader"], programs / "python", deployment.folder, as_owner,
        prefix=deployment.prefix, settings={"DL_PIPELINES": "pipelines", "DL_TASKS": "{}", "PGOPTIONS": FORMER_OPTIONS},
    )  # fmt: skip
    # Release 0.2.0 could be installed by a superuser only, or with this right, which the upgrade does not need.
    right = SQL('{} SET ON PARAMETER "dl.ours" {} {}')
    execute(access.observer_dsn, right.format(SQL("GRANT"), SQL("TO"), Identifier(access.owner_role)))
    former.run("migrate", owner=True)
    execute(access.observer_dsn, right.format(SQL("REVOKE"), SQL("FROM"), Identifier(access.owner_role)))
    with former.start("serve") as serving:
        serving.wait_for_line("is ready")
        serving.wait_for_port(former.port)
        ended = former.run_json("trigger", "noop", "--watch")["job_id"]
        waiting = former.run_json("trigger", "noop", "--available-at", "in 1h")["job_id"]
        serving.signal(signal.SIGTERM)
        code = serving.wait()
        assert code == 0, f"it ended with {code}:\n{serving.text[-MAX_ERROR_LENGTH // 2 :]}"
    due = SQL("UPDATE {}.dl_jobs SET available_at = now() WHERE job_id = {}")
    execute(access.observer_dsn, due.format(Identifier(access.schema), Literal(waiting)))
    return {"ended": ended, "waiting": waiting}
