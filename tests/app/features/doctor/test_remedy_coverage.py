"""Each finding that doctor can yield has a test that mends it, or a reason why none does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import ROOT

# Severity and check of what no test provokes or mends, and why.
NOT_RUN = {
    "error server_version": "needs PostgreSQL 14 or older, which has to be replaced",
    "error encoding": "needs another database; tests/app/db/test_other_encodings.py has the finding",
    "warning clock": "a clock is set by NTP, for the whole machine",
    "error clock": "the same finding, further off",
    "error notification_queue": "the queue has 8 GB; its remedy is that of `transactions`",
    "warning transaction_timeout": "a setting of PostgreSQL 17; its remedy has the form of idle_session_timeout",
    "warning alerts": "an alert ends with its cause, not by a statement",
    "info listeners": "needs dozens of worker processes on one host; its remedy is a setting of theirs",
    "error no_reaper": "its remedy is a setting of worker processes; test_examine.py has the finding",
    "error engine": "its remedy is a setting or a package of the workers; test_engines.py has it",
    "info retention": "tests/system/test_held_retention.py does it",
    "error wraparound": "the same finding as the warning, later",
}
# Calls whose severity or check is an expression, by the expression: what it may be.
VALUES = {
    "name": ("fsync", "full_page_writes"),  # in server.py
    "right.check": ("sees_others", "ends_others", "temporary_tables"),  # in server.py
    "check": (),  # in examine.py: a look that failed, whose remedy is that of another finding
}


SEVERITIES = ("error", "warning", "info")


def possible(scope: ast.AST, expression: ast.expr) -> set[str]:
    """The names of constructors, or the texts, that an expression of app/features/doctor may be."""
    match expression:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=one, orelse=other):
            return possible(scope, one) | possible(scope, other)
        case ast.Name(id="report"):
            given = [
                n.value for n in ast.walk(scope) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "report"
            ]
            return set().union(*(possible(scope, value) for value in given))
        case ast.Name(id=name) if name in SEVERITIES:
            return {name}
    return set(VALUES[ast.unparse(expression)])


def findings_of(path: Path) -> Iterator[str]:
    """Severity and check of each finding that a module may yield."""
    for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(scope, ast.FunctionDef):
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (*SEVERITIES, "report"):
                    for severity in possible(scope, node.func):
                        yield from (f"{severity} {check}" for check in possible(scope, node.args[0]))


def cases_of(path: Path) -> Iterator[str]:
    """What the tests pick among findings: each text of the module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_each_finding_has_a_case_or_a_reason():
    features = ROOT / "app/features"
    with_own_cases = ("horizon", "targets")
    checks = [path for path in features.glob("*/checks.py") if path.parent.name not in with_own_cases]
    modules = [*(features / "doctor").glob("*.py"), *checks]
    found = {finding for path in modules for finding in findings_of(path)}
    assert len(found) > 35, found
    modules_with_cases = ("test_remedies.py", "test_server_remedies.py", "test_schema_remedies.py")
    cases = {text for name in modules_with_cases for text in cases_of(Path(__file__).with_name(name))}

    assert found - cases - set(NOT_RUN) == set(), "neither a case nor a reason"
    assert set(NOT_RUN) - found == set(), "reasons of findings that there are not"
    assert set(NOT_RUN) & cases == set(), "reasons of findings that have a case"
