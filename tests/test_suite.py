"""The suite itself: its verdict does not depend on the speed of the machine, and no test is tried twice."""

from __future__ import annotations

import re
import subprocess
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import ROOT

RUN = (ROOT / ".ci/run").read_text(encoding="utf-8")
_SLOW_SEC = 0.25  # an example: beyond hypothesis' own deadline, and with all of them beyond its limit for slow input


def test_slow_examples_fail_no_property():
    pause = threading.Event()

    @settings(max_examples=6, database=None)
    @given(st.integers().map(lambda number: (pause.wait(_SLOW_SEC), number)))
    def takes_its_time(value):
        pause.wait(_SLOW_SEC)

    takes_its_time()


def test_no_test_sets_a_deadline_of_its_own():
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path.name != "test_suite.py" and re.search(r"\bdeadline=(None|\d)", path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_ci_tries_no_test_twice():
    assert re.findall(r"last-failed|--lf\b|reruns|once_more", RUN) == []


def test_ci_lists_what_it_left_out():
    left_out = subprocess.run(
        ["bash", "-c", "source .ci/run; left_out"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip

    for command in ("make chaos", "make chaos-mutants", "make hostile", "python -m benchmarks"):
        assert command in left_out, left_out
