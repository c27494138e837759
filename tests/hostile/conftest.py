"""Tests of hostile input: short in the suite; `DL_HOSTILE=long`, as `make hostile` has it, runs them at full length."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def long_run() -> bool:
    return os.environ.get("DL_HOSTILE") == "long"
