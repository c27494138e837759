"""What is done to the hosts of a cluster under load, and what must hold. Each returns its figures, or raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from dataloader.workers.pool import EXIT_THREAD_CRASHED
from tests.chaos.job_requests import OTHER_QUEUE
from tests.chaos.services import HEARTBEAT_SEC
from tests.cluster.cluster import LEASE_SEC, Cluster, Host
from tests.cluster.network import DATABASE
from tests.support.waiting import eventually

SHORT_CUT_SEC, LONG_CUT_SEC = 5.0, 3.0 * LEASE_SEC
_TAKEN_RUNS = """
SELECT r.job_id::text, split_part(p.payload ->> 'worker', ':', 1),
       extract(epoch FROM p.ts)::float8, extract(epoch FROM r.ts)::float8
  FROM dl_job_events r
       JOIN dl_job_events p ON p.job_id = r.job_id AND p.kind = 'picked'
                           AND p.payload ->> 'run_id' = r.payload ->> 'run_id'
 WHERE r.payload ->> 'reason' = ANY (%s) AND r.ts >= to_timestamp(%s)
"""
_TAKEN = ("lease_expired", "process_died")
_PROBE_INTERVAL_SEC = 0.05
_PROBE = """
INSERT INTO dl_jobs (queue, task, lock_key, args, lease_ttl_sec)
SELECT %s, 'chaos.short', 'probe ' || gen_random_uuid(), jsonb_build_object('queue', %s), 3
"""


@dataclass(frozen=True)
class ScenarioResult:
    """What was seen."""

    scenario: str
    figures: str


def cut_off_host(cluster: Cluster, host: Host, seconds: float = LONG_CUT_SEC) -> ScenarioResult:
    """Its jobs run elsewhere after their lease, and it works again when it is back."""
    eventually(lambda: len(running_jobs(cluster, host)) > 1, 120, f"{host.name} has jobs")
    with cluster.cut_off(host.name):
        running, began = running_jobs(cluster, host), database_time(cluster)
        time.sleep(seconds)
    healed = database_time(cluster)
    taken = {
        job: at
        for _, reason, _, job, at in cluster.events("ts >= to_timestamp(%s)", began)
        if reason in _TAKEN and job in running
    }
    if seconds > 2 * LEASE_SEC:
        still = cluster.server.query(
            "SELECT job_id FROM dl_jobs WHERE job_id = ANY (%s::uuid[]) AND status = 'running' AND worker LIKE %s"
            " AND started_at < to_timestamp(%s)",
            running, f"{host.name}:%", began,
        )  # fmt: skip
        assert not still, f"jobs of a host that was cut off still belong to it: {still}"
    eventually(lambda: host.name in cluster.live_workers(), 120, f"{host.name} is back")
    wait_for_claims_by(cluster, host, since=healed)
    latest = max((at - began for at in taken.values()), default=0.0)
    figures = (
        f"{len(running)} running at the cut, {len(taken)} of them taken by others, the last after {latest:.1f} s,"
        f" and {len(running) - len(taken)} kept by the host"
    )
    return ScenarioResult(f"{host.name} cut off for {seconds:.0f} s", figures)


def cut_off_database(cluster: Cluster, seconds: float = LONG_CUT_SEC) -> ScenarioResult:
    """All stop, none of their jobs is taken in the first heartbeat after, and the work continues."""
    with cluster.cut_off(DATABASE):
        time.sleep(seconds)
    healed = database_time(cluster)
    ended = count_ended(cluster)
    eventually(lambda: count_ended(cluster) > ended, 120, "jobs end again")
    gap_sec = database_time(cluster) - healed
    eventually(lambda: database_time(cluster) > healed + HEARTBEAT_SEC)
    early = [
        event
        for event in cluster.events("ts BETWEEN to_timestamp(%s) AND to_timestamp(%s)", healed, healed + HEARTBEAT_SEC)
        if event[1] == "lease_expired"
    ]
    assert not early, f"jobs were taken before their owners could renew: {early}"
    cluster.wait_for_all_hosts()
    return ScenarioResult(f"database cut off from all for {seconds:.0f} s", f"first end {gap_sec:.1f} s after")


def restart_hosts(cluster: Cluster, max_gap_sec: float) -> ScenarioResult:
    """One after the other, under load: no attempt of theirs is used up, and some host always claims."""
    began, stopped_at = database_time(cluster), {}
    with probing(cluster):
        for host in cluster.hosts:
            stopped_at[host.name] = database_time(cluster)
            code = cluster.stop_host(host)
            assert code != EXIT_THREAD_CRASHED, f"{host.name} crashed"
            cluster.start_host(host)
            wait_for_claims_by(cluster, host, since=database_time(cluster))
            host.exit_codes.clear()
    lost = [
        job_id
        for job_id, host_name, picked_at, taken_at in cluster.server.query(_TAKEN_RUNS, list(_TAKEN), began)
        if picked_at < stopped_at[host_name] < taken_at and picked_at >= began
    ]
    assert not lost, f"attempts were used up by a restart: {describe_jobs(cluster, lost)}"
    events = cluster.events("ts >= to_timestamp(%s)", began)
    claims = [at for kind, _, _, _, at in events if kind == "picked"]
    gap_sec = max(after - before for before, after in pairwise(claims))
    assert gap_sec <= max_gap_sec, f"nothing was claimed for {gap_sec:.1f} s"
    released = sum(event[1] == "shutdown" for event in events)
    return ScenarioResult(
        "rolling restart", f"longest gap between two claims {gap_sec:.2f} s, {released} jobs released"
    )


@contextmanager
def probing(cluster: Cluster) -> Iterator[None]:
    """Add a short job every 50 ms to a queue whose threads the load leaves idle. Without it the hosts that are left
    claim nothing for as long as jobs of seconds run in all of their threads, which says nothing about a restart."""
    is_over = threading.Event()

    def add_jobs() -> None:
        with closing(cluster.server.connect()) as connection, connection.cursor() as cursor:
            while not is_over.wait(_PROBE_INTERVAL_SEC):
                cursor.execute(_PROBE, (OTHER_QUEUE, OTHER_QUEUE))

    thread = threading.Thread(target=add_jobs, name="probe", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10.0)


def describe_jobs(cluster: Cluster, job_ids: list[str]) -> str:
    """Tasks and events of jobs, for a failure."""
    rows = cluster.server.query(
        "SELECT j.task, e.kind, e.payload, e.ts FROM dl_jobs j JOIN dl_job_events e USING (job_id)"
        " WHERE job_id = ANY (%s::uuid[]) ORDER BY job_id, event_id",
        job_ids,
    )
    return "\n".join(map(str, rows))


def running_jobs(cluster: Cluster, host: Host) -> list[str]:
    rows = cluster.server.query(
        "SELECT job_id::text FROM dl_jobs WHERE status = 'running' AND worker LIKE %s", f"{host.name}:%"
    )
    return [job_id for (job_id,) in rows]


def wait_for_claims_by(cluster: Cluster, host: Host, *, since: float) -> None:
    def has_claimed() -> bool:
        return bool(
            cluster.server.query(
                "SELECT 1 FROM dl_jobs WHERE worker LIKE %s AND heartbeat_at >= to_timestamp(%s) LIMIT 1",
                f"{host.name}:%",
                since,
            )
        )

    eventually(has_claimed, 120, f"{host.name} claims again", interval_sec=0.05)


def count_ended(cluster: Cluster) -> int:
    ((count,),) = cluster.server.query("SELECT count(*) FROM dl_jobs WHERE finished_at IS NOT NULL")
    return int(count)


def database_time(cluster: Cluster) -> float:
    ((now,),) = cluster.server.query("SELECT extract(epoch FROM clock_timestamp())::float8")
    return float(now)
