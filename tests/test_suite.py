"""The suite itself: its verdict does not depend on the speed of the machine, and no test is tried twice."""

from __future__ import annotations

import ast
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.databases import query_value
from tests.support.processes import ROOT

RUN = (ROOT / ".ci/run").read_text(encoding="utf-8")
MAX_SUPERUSER_MARKS = 16
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


def _parsed_tests(word: str) -> Iterator[tuple[Path, ast.Module]]:
    """The files that have this word."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if word in text:
            yield path.relative_to(ROOT), ast.parse(text)


def test_each_superuser_mark_gives_its_reason():
    reasons: list[str] = []
    without: list[str] = []
    for path, module in _parsed_tests("mark.superuser"):
        calls = {id(node.func): node for node in ast.walk(module) if isinstance(node, ast.Call)}
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.superuser":
                values = [ast.literal_eval(value) for value in (calls[id(node)].args if id(node) in calls else [])]
                is_reason = len(values) == 1 and isinstance(values[0], str) and len(values[0].split()) > 1
                (reasons if is_reason else without).append(f"{path}:{node.lineno}")

    assert without == [], "say why: @pytest.mark.superuser('reason')"
    assert 0 < len(reasons) <= MAX_SUPERUSER_MARKS, "these are to stay few: " + ", ".join(reasons)


def test_tests_become_superuser_by_the_mark_alone():
    """`superuser_dsn` asks for no mark: it is for fixtures."""
    used = [
        str(path)
        for path, module in _parsed_tests("superuser_dsn")
        if path.name.startswith("test_") and path.name != "test_suite.py"
        and any(isinstance(node, ast.Name) and node.id == "superuser_dsn" for node in ast.walk(module))
    ]  # fmt: skip
    by_server = [
        f"{path}: {node.name}"
        for path, module in _parsed_tests("server_dsn")
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        and "server_dsn" in {argument.arg for argument in node.args.args}
        and "superuser" not in " ".join(ast.unparse(part) for part in (*node.decorator_list, *_marks(module)))
    ]  # fmt: skip

    assert used == []
    assert by_server == [], "server_dsn is that of a superuser: say why with the mark"


def _marks(module: ast.Module) -> Iterator[ast.AST]:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield node.value


def test_suite_has_an_account_without_rights(dsn):
    account = "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls FROM pg_roles"
    member = "SELECT count(*) FROM pg_auth_members WHERE member = current_user::regrole"

    assert query_value(dsn, f"{account} WHERE rolname = current_user") == "False"
    assert query_value(dsn, member) == "0"
    assert query_value(dsn, "SELECT count(*) FROM pg_database WHERE datdba = current_user::regrole") != "0"


def test_ci_tries_no_test_twice():
    assert re.findall(r"last-failed|--lf\b|reruns|once_more", RUN) == []


def test_ci_lists_what_it_left_out():
    left_out = subprocess.run(
        ["bash", "-c", "source .ci/run; left_out"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip

    for command in ("make chaos", "make chaos-mutants", "make hostile", "python -m benchmarks"):
        assert command in left_out, left_out
