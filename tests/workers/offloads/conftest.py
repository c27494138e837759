"""Fixtures of the offload tests: a fake engine, and the programs that it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import FakeEngine
from tests.workers.offloads.real_engines import dask_cluster, ray_head

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


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    with ray_head() as address:
        yield address


@pytest.fixture(scope="session")
def dask_address() -> Iterator[str]:
    with dask_cluster() as address:
        yield address
