"""Fixtures of the offload tests: a fake engine, and the programs that it runs."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dataloader.workers.offloads import engine_calls, poller, remote_stop
from tests.support.fake_engine import FakeEngine
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads.offload_fixture import OffloadFixture
from tests.workers.offloads.real_engines import DaskCluster, RayHead, dask_cluster, ray_head


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    made = FakeEngine(tmp_path).up()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (poller, engine_calls):
        monkeypatch.setattr(module, "MIN_POLL_SEC", 0.05)
        monkeypatch.setattr(module, "MAX_POLL_SEC", 0.3)
    monkeypatch.setattr(poller, "_REQUEST_INTERVAL_SEC", 0.01)
    monkeypatch.setattr(poller, "_CLAIM_INTERVAL_SEC", 0.1)
    monkeypatch.setattr(remote_stop, "LATE_SUBMISSION_SEC", 1.0)


@pytest.fixture
def offloads(fast_polls: None, worker_pools: WorkerPoolFixture, engine: FakeEngine, tmp_path: Path) -> OffloadFixture:
    return OffloadFixture(worker_pools, engine, tmp_path)


@pytest.fixture(scope="session")
def ray() -> Iterator[RayHead]:
    with ray_head() as head:
        yield head


@pytest.fixture(scope="session")
def dask() -> Iterator[DaskCluster]:
    with dask_cluster() as cluster:
        yield cluster


# ── what `make engines` shows at its end ────────────────────────────────────────────────────────────────────────────

FIGURES: dict[str, dict[str, float]] = {}  # seconds, by engine; of scenarios that measure
_COLUMNS = ("start", "re-attach", "stop")
_SUITES = {"test_executors.py": "contract", "test_job_scenarios.py": "scenarios"}
_RESULTS = ("passed", "failed", "error", "skipped")
_HEAD = (
    "engine", "version", *(f"{suite} passed" for suite in _SUITES.values()), "not for it",
    *(f"{name} s" for name in _COLUMNS),
)  # fmt: skip


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A row of each engine that really ran work, with polls 20 times as often as in a worker; also into the file that
    DL_TEST_ENGINE_TABLE names, for `make engines`."""
    counts = _count_results(terminalreporter)
    rows = [_row(engine, counts) for engine in sorted({engine for engine, _ in counts})]
    ran = [row for row in rows if row is not None]
    if not FIGURES or not ran:
        return
    head = [table_line(_HEAD), table_line(["---"] * len(_HEAD))]
    for line in (*head, *ran):
        terminalreporter.write_line(line)
    if (path := os.environ.get("DL_TEST_ENGINE_TABLE")) is not None:
        table = Path(path)
        lines = ran if table.exists() else [*head, *ran]
        with table.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(engine: str, counts: Mapping[tuple[str, str], Counter[str]]) -> str | None:
    """None: only skipped."""
    suites = [counts[engine, suite] for suite in _SUITES.values()]
    totals = [suite.total() - suite["skipped"] for suite in suites]
    if not any(totals):
        return None
    passed = [f"{suite['passed']} of {total}" for suite, total in zip(suites, totals, strict=True)]
    figures = [f"{FIGURES[engine][name]:.2f}" if name in FIGURES.get(engine, {}) else "-" for name in _COLUMNS]
    version = os.environ.get("DL_TEST_ENGINE_VERSION", "-")
    return table_line([engine, version, *passed, str(sum(suite["skipped"] for suite in suites)), *figures])


def _count_results(terminalreporter: Any) -> dict[tuple[str, str], Counter[str]]:
    """By engine and suite: how many tests had which result."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in _RESULTS:
        for report in terminalreporter.stats.get(result, []):
            path, _, test = report.nodeid.partition("::")
            suite = _SUITES.get(Path(path).name)
            match = re.search(r"\[(process|ray|dask)\b", test)
            if suite is not None and match is not None:
                counts[match[1], suite][result] += 1
    return counts
