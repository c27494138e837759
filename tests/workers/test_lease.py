"""How long an attempt trusts its lease."""

from __future__ import annotations

import pytest

from dataloader.workers.attempt import Lease


@pytest.mark.parametrize(("ttl", "trusted_for"), [(60, 58), (10, 8), (5, 4), (1, 0.8)])
def test_a_lease_is_trusted_until_a_margin_before_its_end(ttl: float, trusted_for: float):
    lease = Lease(ttl, renewed_at=100.0)

    assert lease.is_trusted(100 + trusted_for - 0.001)
    assert not lease.is_trusted(100 + trusted_for)


def test_lease_is_trusted_from_when_the_renewal_was_sent():
    lease = Lease(10, renewed_at=100.0)
    lease.row_ends_at = 200.0
    lease.renewed_at = 105.0

    assert lease.trusted_until == 113.0


def test_lease_ends_when_the_row_says_so():
    lease = Lease(10, renewed_at=100.0)
    lease.renewed_at = 109.0

    assert lease.trusted_until == 108.0
