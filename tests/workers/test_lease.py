from __future__ import annotations

import pytest

from workers.lease import Lease


@pytest.mark.parametrize(("ttl", "trusted_for"), [(60, 58), (10, 8), (5, 4), (1, 0.8)])
def test_a_lease_is_trusted_until_a_margin_before_its_end(ttl: float, trusted_for: float):
    lease = Lease(ttl, renewed=100.0)

    assert lease.trusted(100 + trusted_for - 0.001)
    assert not lease.trusted(100 + trusted_for)


def test_a_renewal_is_counted_from_when_it_was_sent():
    lease = Lease(10, renewed=100.0)
    lease.renewed = 105.0

    assert lease.until == 113.0
