"""A database that is in order and one that is broken on purpose, for doctor to examine.

`python -m tests.support.doctor_fixture` has the command examine both for real, on a server of its own, and
puts the result into docs/doctor.md. It takes more than five minutes: a transaction has to grow that old.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from psycopg2.extensions import make_dsn

from dataloader.app.db.schema import migrate
from dataloader.app.features.doctor.queue import LONG_TRANSACTION_SEC
from dataloader.app.postgres import EmbeddedServer
from tests.support.databases import execute_sql, superuser_dsn
from tests.support.pgbouncer import running_pgbouncer
from tests.support.processes import ROOT, Process, clean_environment

PAGE = ROOT / "docs/doctor.md"
ROLE = "dataloader_api"


@dataclass(frozen=True)
class Defect:
    """A change of the database, and the finding that reports it."""

    description: str
    check: str
    severity: str
    sql: str = ""  # else the clinic does it in another way


DEFECTS = (
    Defect("an index was dropped", "schema", "error", "DROP INDEX dl_jobs_blocked_idx"),
    Defect(
        "`CREATE INDEX CONCURRENTLY` broke off and left an invalid one",
        "schema",
        "error",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dl_jobs_created_idx'::regclass",
    ),
    Defect("a default was changed", "schema", "error", "ALTER TABLE dl_jobs ALTER COLUMN priority SET DEFAULT 5"),
    Defect("a trigger was switched off", "schema", "error", "ALTER TABLE dl_jobs DISABLE TRIGGER dl_jobs_before_upd"),
    Defect("a team has added an index", "schema", "info", "CREATE INDEX of_the_report ON dl_jobs (producer)"),
    Defect("a right was taken from the service's role", "rights", "error", f"REVOKE UPDATE ON dl_jobs FROM {ROLE}"),
    Defect("and another, which costs one feature", "rights", "warning", f"REVOKE DELETE ON dl_bulk FROM {ROLE}"),
    Defect(
        "a job waits for a task that no worker has",
        "tasks_without_worker",
        "error",
        "INSERT INTO dl_jobs (job_id, queue, task, args, lock_key, status, available_at)"
        " VALUES (gen_random_uuid(), 'etl', 'load.retired', '{}', 'a', 'queued', now())",
    ),
    Defect(
        "and one in a queue without a worker",
        "queues_without_worker",
        "error",
        "INSERT INTO dl_jobs (job_id, queue, task, args, lock_key, status, available_at)"
        " VALUES (gen_random_uuid(), 'elt', 'noop', '{}', 'b', 'queued', now())",
    ),
    Defect(
        "a webhook was switched off",
        "webhooks_disabled",
        "warning",
        "INSERT INTO dl_webhooks (url, secret, disabled_at) VALUES ('https://hooks.example.org', 's', now())",
    ),
    Defect("a report has forgotten its transaction", "transactions", "warning"),
    Defect("PgBouncer in transaction mode in between, without `DL_WORKER_DSN`", "pooler", "error"),
)


@contextmanager
def broken_database(dsn: str, folder: Path) -> Iterator[str]:
    """All of it done to the tables of `dsn`; gives the way by which the service would go."""
    execute_sql(superuser_dsn(dsn), f"CREATE ROLE {ROLE} LOGIN IN ROLE pg_monitor, pg_signal_backend")
    with closing(psycopg2.connect(dsn)) as owner, owner, owner.cursor() as cursor:
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}")
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
        cursor.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {ROLE}")
        for harm in DEFECTS:
            if harm.sql and "pg_index" not in harm.sql:
                cursor.execute(harm.sql)
    execute_sql(superuser_dsn(dsn), *(harm.sql for harm in DEFECTS if "pg_index" in harm.sql))
    try:
        with (
            closing(psycopg2.connect(make_dsn(dsn, application_name="nightly-report"))) as forgotten,
            running_pgbouncer(make_dsn(dsn, user=ROLE), folder) as way,
        ):
            forgotten.cursor().execute("SELECT count(*) FROM dl_jobs")
            yield way
    finally:
        execute_sql(superuser_dsn(dsn), f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def defect_table() -> str:
    """Return the table of the changes for the page."""
    rows = [f"| {harm.description} | `{harm.check}` | {harm.severity} |" for harm in DEFECTS]
    return "\n".join(["| what was done | finding | |", "|---|---|---|", *rows])


def replace_sections(text: str, **parts: str) -> str:
    """Return the page with these parts replaced, each between `<!-- name -->` and `<!-- /name -->`."""
    for name, part in parts.items():
        head, tail = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        text = text[: text.index(head) + len(head)] + part + text[text.index(tail) :]
    return text


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dl-clinic-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root the server has another account, which must get there
        with EmbeddedServer(folder / "server") as server:
            migrate(server.dsn)
            env = {
                "DL_DB_DSN": server.dsn,
                "DL_PIPELINES": "dataloader.pipelines.noop",
                "WORKERS_JSON": '[{"queue": "etl", "concurrency": 2}]',
            }
            with Process.dataloader("worker", output=folder / "worker.log", env=env) as worker:
                worker.wait_for_line("listener.connected")
                healthy = _findings_text(server.dsn)
                with broken_database(server.dsn, folder) as way:
                    print(f"a transaction grows old: {LONG_TRANSACTION_SEC:.0f} s", file=sys.stderr)  # noqa: T201
                    threading.Event().wait(LONG_TRANSACTION_SEC + 5)
                    harmed = _findings_text(way)
    parts = {"healthy": f"```\n{healthy}```", "broken": f"```\n{harmed}```", "harms": defect_table()}
    PAGE.write_text(replace_sections(PAGE.read_text(encoding="utf-8"), **parts), encoding="utf-8")


def _findings_text(connections: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor", "--all"],
        cwd=ROOT,
        env={**clean_environment(), "DL_DB_DSN": connections},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    return f"$ dataloader doctor --all; echo $?\n{done.stdout}{done.returncode}\n"


if __name__ == "__main__":
    main()
