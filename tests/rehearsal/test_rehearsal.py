"""An upgrade from this release to the next, and back, while jobs run; `make rehearsal` does it in full."""

from __future__ import annotations

import pytest

from tests.rehearsal.rehearsal import rehearse
from tests.rehearsal.releases import Release, build_releases

# Leases of three seconds and waits of at most one: other tests at the same time are too much for them.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    return dict(build_releases(tmp_path_factory.mktemp("releases")))


@pytest.mark.timeout(300)  # three wheels, then twenty seconds of jobs
def test_nothing_is_lost_and_no_attempt_used_up_when_an_upgrade_is_rolled_back(releases):
    lines: list[str] = []

    result = rehearse("rolled-back", releases, seed=1, seconds=20, past_jobs=5_000, has_faults=False, log=lines.append)

    assert result.report.passed, result.report.text()
    assert result.problems == [], "\n".join(lines)
    assert [name for name, _ in result.migrations] == ["next", "this"]
    assert result.report.runs["claimed"] > 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ["migrate-first", "workers-first", "mixed"])
def test_upgrade_under_faults(releases, order):
    lines: list[str] = []

    result = rehearse(order, releases, seed=1, seconds=60, past_jobs=100_000, has_faults=True, log=lines.append)

    assert result.report.passed, result.report.text()
    assert result.problems == [], "\n".join(lines)
