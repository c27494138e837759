"""The databases of the proof: a queue, and three targets in which every commit of a load leaves a line, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg2

from dataloader.pipelines.effects import CREATE_TABLE

TARGET_COUNT = 3
_LOCK_TIMEOUT_MS = 5000
# Nothing is unique: a part that comes twice is to be seen twice. The lines are written by triggers that fire at the
# COMMIT, under a lock of the job that the COMMIT releases, so their order is that of the commits.
_TABLES = """
CREATE TABLE proof_parts (job_id uuid NOT NULL, part int NOT NULL, run_id uuid NOT NULL);
CREATE TABLE proof_facts (job_id uuid NOT NULL, part int NOT NULL);
CREATE TABLE proof_commits (
    n        bigint  NOT NULL,
    xid      bigint  NOT NULL,
    job_id   uuid    NOT NULL,
    run_id   uuid    NOT NULL,
    kind     text    NOT NULL,  -- part | row | deleted
    part     int,
    position jsonb,
    is_done  boolean
);
CREATE INDEX ON proof_commits (job_id);
CREATE INDEX ON proof_parts (job_id);
CREATE INDEX ON proof_facts (job_id);
CREATE SEQUENCE proof_order;
CREATE FUNCTION proof_record_part() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.job_id::text, 0));
    INSERT INTO proof_commits VALUES
        (nextval('proof_order'), pg_current_xact_id()::text::bigint, NEW.job_id, NEW.run_id, 'part', NEW.part);
    RETURN NULL;
END $$;
CREATE FUNCTION proof_record_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    it    dl_effects := coalesce(NEW, OLD);
    event text       := CASE TG_OP WHEN 'DELETE' THEN 'deleted' ELSE 'row' END;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(it.job_id::text, 0));
    INSERT INTO proof_commits VALUES
        (nextval('proof_order'), pg_current_xact_id()::text::bigint, it.job_id, it.run_id, event, NULL, it.position,
         it.done_at IS NOT NULL);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER proof_commit AFTER INSERT ON proof_parts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION proof_record_part();
CREATE CONSTRAINT TRIGGER proof_commit AFTER INSERT OR UPDATE OR DELETE ON dl_effects
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION proof_record_row();
"""


@dataclass(frozen=True)
class Commit:
    """What a transaction has committed: a part, or a change of the job's row. `xid` is the transaction's."""

    n: int
    xid: int
    run_id: UUID
    kind: str
    part: int | None
    position: Any
    is_done: bool | None


@dataclass(frozen=True)
class TargetEvidence:
    """What a target has of a job."""

    commits: Sequence[Commit] = ()  # in their order
    parts: Sequence[int] = ()
    has_row: bool = False
    position: Any = None


@dataclass(frozen=True)
class JobEvidence:
    """What the queue has of a job."""

    status: str
    result: Any
    runs: Sequence[UUID]  # in the order of their claims


@dataclass
class Site:
    """All targets are on one server."""

    queue_dsn: str
    target_dsns: Sequence[str]
    _connections: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        for dsn in self.target_dsns:
            prepare_target(dsn)

    def query(self, dsn: str, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """On a connection past all proxies, which is kept."""
        for _ in range(2):
            connection = self._connections.get(dsn)
            if connection is None or connection.closed:
                connection = self._connections[dsn] = psycopg2.connect(
                    dsn, application_name="proof-checker", options=f"-c lock_timeout={_LOCK_TIMEOUT_MS}"
                )
                connection.autocommit = True
            try:
                with connection.cursor() as cursor:
                    cursor.execute(text, parameters or None)
                    return cursor.fetchall() if cursor.description else []
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                connection.close()  # its server was killed meanwhile
        raise AssertionError(f"no connection to {dsn}")

    def server_dsn(self, role: str) -> str:
        """A database of the server with this role."""
        return self.queue_dsn if role == "queue" else self.target_dsns[0]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # ── evidence ────────────────────────────────────────────────────────────────────────────────────────────────

    def jobs(self, job_ids: Collection[UUID]) -> Mapping[UUID, JobEvidence]:
        ids = [str(job_id) for job_id in job_ids]
        runs: dict[str, list[UUID]] = defaultdict(list)
        for job_id, run_id in self.query(
            self.queue_dsn,
            "SELECT job_id, payload ->> 'run_id' FROM dl_job_events"
            " WHERE job_id = ANY (%s::uuid[]) AND kind = 'picked' ORDER BY event_id",
            ids,
        ):
            runs[job_id].append(UUID(run_id))
        rows = self.query(
            self.queue_dsn, "SELECT job_id, status::text, result FROM dl_jobs WHERE job_id = ANY (%s::uuid[])", ids
        )
        return {UUID(job_id): JobEvidence(status, result, runs[job_id]) for job_id, status, result in rows}

    def effects(self, dsn: str, job_ids: Collection[UUID]) -> Mapping[UUID, TargetEvidence]:
        """All of it as of one moment."""
        ids = [str(job_id) for job_id in job_ids]
        found = self.query(
            dsn,
            "SELECT j, (SELECT json_agg(json_build_array(n, xid, run_id, kind, part, position, is_done) ORDER BY n)"
            "             FROM proof_commits WHERE job_id = j),"
            "       ARRAY(SELECT part FROM proof_parts WHERE job_id = j ORDER BY part),"
            "       e.job_id IS NOT NULL, e.position"
            "  FROM unnest(%s::uuid[]) AS j LEFT JOIN dl_effects e ON e.job_id = j",
            ids,
        )
        return {
            UUID(job_id): TargetEvidence(
                [Commit(n, xid, UUID(run), *rest) for n, xid, run, *rest in commits or ()], parts, has_row, position
            )
            for job_id, commits, parts, has_row, position in found
        }

    def lock_waiters(self, dsn: str) -> set[int]:
        """The sessions that wait for a lock in the server of this database."""
        rows = self.query(dsn, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return {pid for (pid,) in rows}


def prepare_target(dsn: str) -> None:
    """Create the tables in an empty database, that of the product too."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(CREATE_TABLE)
        cursor.execute(_TABLES)
