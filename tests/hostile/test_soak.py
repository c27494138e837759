"""A soak of a few seconds: a short version of `python -m benchmarks.soak`."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.soak import MAX_SLOPE_MB_PER_HOUR, ClientResults, Report, Sample, soak

pytestmark = pytest.mark.superuser("the soak makes a database of its own")

MB = 1024 * 1024


def test_short_soak_responds_correctly_within_budget(server_dsn: str, long_run: bool):
    report = soak(server_dsn, seconds=300 if long_run else 5, clients=64, threads=50)

    slow_growth = (
        [fault for fault in report.faults() if not fault.startswith("memory")] if not long_run else report.faults()
    )
    assert slow_growth == [], str(report)
    assert report.results.status_counts["200"] > 100
    assert report.max_connections <= report.budget


def report(**changed: object) -> Report:
    seen = ClientResults([0.1] * 200, Counter({"200": 200}))
    result = {"seconds": 100.0, "results": seen, "finished_jobs": 5, "unfinished": (), "budget": 20}
    return Report(**result | {"samples": [Sample(n, 100 * MB, 20) for n in range(100)]} | changed)  # type: ignore[arg-type]


def test_a_soak_without_faults_says_so_in_a_table():
    assert report().faults() == []
    assert "| p99, ms" in str(report())


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        ({"samples": [Sample(n, 100 * MB + n * MB, 20) for n in range(100)]}, "memory grew by 3600 MB per hour"),
        ({"samples": [Sample(n, 100 * MB, 21) for n in range(100)]}, "21 connections, more than the budget of 20"),
        ({"unfinished": ("a job",)}, "1 jobs did not end: a job"),
        ({"finished_jobs": 0}, "no job succeeded"),
    ],
)
def test_unexpected_measurement_is_a_fault(changed: dict[str, object], result: str):
    assert any(result in fault for fault in report(**changed).faults())


def test_response_is_classified_right_busy_or_fault():
    seen = ClientResults()
    for status, again in ((200, None), (503, "1"), (429, "2"), (503, None), (500, None)):
        seen.add_response(0.1, status, again, "GET x")

    assert seen.faults == ["503 without Retry-After to GET x", "500 to GET x"]
    assert MAX_SLOPE_MB_PER_HOUR > 0
