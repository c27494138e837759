"""Four hosts under load: each is cut off, the database is cut off from all, all are restarted. The checker judges."""

from __future__ import annotations

import pytest

from dataloader.app.postgres.binaries import Choice
from tests.cluster.cluster import LEASE_SEC, running_cluster
from tests.cluster.network import require_tools
from tests.cluster.scenarios import count_ended, cut_off_database, cut_off_host, restart_hosts
from tests.support import eventually

MAX_GAP_SEC = 20.0  # between two claims during a rolling restart, on a busy machine too; the benchmark shows what it is

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(900)]


def test_hosts_survive_partitions_and_restarts(postgres_binaries: Choice, record_property):
    require_tools()
    with running_cluster(4, binaries=postgres_binaries) as cluster:
        first, second, *_ = cluster.hosts
        eventually(lambda: count_ended(cluster) > 50)

        outcomes = [
            cut_off_host(cluster, first, seconds=LEASE_SEC / 3),
            cut_off_host(cluster, second),
            cut_off_database(cluster, seconds=1.5 * LEASE_SEC),
            restart_hosts(cluster, MAX_GAP_SEC),
        ]
        cluster.drain()

        for outcome in outcomes:
            record_property(outcome.scenario, outcome.figures)
            print(f"{outcome.scenario}: {outcome.figures}")  # noqa: T201 - the figures, for pytest -s
        assert cluster.crashed() == []
        assert [str(violation) for violation in cluster.violations()] == []
