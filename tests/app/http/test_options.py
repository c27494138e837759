from __future__ import annotations

import pytest

from dataloader.app.http.options import WebOptions


@pytest.mark.parametrize(("heartbeat", "shortest"), [(10, 20), (0.2, 1), (0.75, 2), (1.5, 3), (0.01, 1)])
def test_the_shortest_lease_is_two_heartbeats_in_whole_seconds(heartbeat, shortest):
    assert WebOptions(version="1", heartbeat_sec=heartbeat).min_lease_ttl_sec == shortest
