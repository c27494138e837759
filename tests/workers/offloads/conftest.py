"""Fixtures of the offload tests: a fake engine, and the programs that it runs."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine
from tests.workers.offloads.real_engines import DaskCluster, RayHead, dask_cluster, ray_head
from workers.offloads import engine_calls, poller, remote_stop

PROGRAM = Path(__file__).parents[2] / "support" / "offload_program.py"


def program(mode: str, folder: Path, python: str = sys.executable) -> str:
    """The command line of a test's program."""
    return f"{python} {PROGRAM} {mode} {folder}"


def start_count(folder: Path) -> int:
    starts = folder / "starts"
    return len(starts.read_text().splitlines()) if starts.exists() else 0


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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A table of the engines that really run work, with polls 20 times as often as in a worker."""
    counts = _count_results(terminalreporter)
    if not FIGURES or not counts:
        return
    terminalreporter.write_line("")
    terminalreporter.write_line("| engine | contract passed | scenarios passed | start s | re-attach s | stop s |")
    terminalreporter.write_line("|---|---|---|---|---|---|")
    for engine in sorted({engine for engine, _ in counts}):
        passed = [f"{counts[engine, suite][0]} of {sum(counts[engine, suite])}" for suite in _SUITES.values()]
        figures = [f"{FIGURES[engine][name]:.2f}" if name in FIGURES.get(engine, {}) else "-" for name in _COLUMNS]
        terminalreporter.write_line(f"| {' | '.join([engine, *passed, *figures])} |")


def _count_results(terminalreporter: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """By engine and suite: how many tests passed and failed."""
    counts: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for kind in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            path, _, test = report.nodeid.partition("::")
            suite = _SUITES.get(Path(path).name)
            match = re.search(r"\[(process|ray|dask)\b", test)
            if suite is not None and match is not None:
                passed, failed = counts[match[1], suite]
                counts[match[1], suite] = (passed + (kind == "passed"), failed + (kind != "passed"))
    return counts
