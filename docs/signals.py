"""Tables of metrics and log events, read from the source text."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from dataloader.app.log import Alert
from docs.code_tables import constant_texts, shown_path, source_files

_METRIC = re.compile(r"(dataloader_[a-z0-9_]+|(requests|responses|feedback)_total|request_duration_seconds)")
_EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
_LEVELS |= {"critical": "error", "metric": "metric", "audit": "audit"}


@dataclass(frozen=True)
class _Metric:
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


@dataclass
class _Event:
    levels: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)


def metrics() -> str:
    """Each Prometheus metric with its type, its labels and its help text."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.meaning} |"
        for metric in sorted((found for path in source_files() for found in _metrics(path)), key=lambda each: each.name)
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def log_events() -> str:
    """Each log event with its levels and the modules that log it."""
    events: defaultdict[str, _Event] = defaultdict(_Event)
    for path in source_files():
        for name, level in _events(path):
            events[name].levels.add(level)
            events[name].modules.add(f"`{shown_path(path)}`")
    rows = [
        f"| `{name}` | {', '.join(sorted(event.levels))} | {', '.join(sorted(event.modules))} |"
        for name, event in sorted(events.items())
    ]
    return "\n".join(["| event | level | logged in |", "|---|---|---|", *rows, ""])


def _metrics(path: Path) -> Iterator[_Metric]:
    source = path.read_text(encoding="utf-8")
    if not _METRIC.search(source):
        return
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        values = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        if not values[1:] or not isinstance(values[0], ast.Constant) or not _METRIC.fullmatch(str(values[0].value)):
            continue
        call = _constructor(node, parents)
        constructor = ast.unparse(call.func).lower()
        kind = next((kind for kind in ("counter", "histogram") if kind in constructor), "gauge")
        name = str(values[0].value)
        suffix = "_total" if kind == "counter" and not name.endswith("_total") else ""
        yield _Metric(name + suffix, kind, tuple(_labels(call)), _meaning(values[1], tree))


def _constructor(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.Call:
    """The call that makes the metric: `node`, or the one in the loop over a tuple of names and help texts."""
    while not isinstance(node, ast.Call):
        node = parents[node]
        if isinstance(node, ast.For | ast.GeneratorExp):
            body = ast.walk(node.elt) if isinstance(node, ast.GeneratorExp) else ast.walk(ast.Module(node.body, []))
            node = next(each for each in body if isinstance(each, ast.Call))
    return node


def _labels(call: ast.Call) -> Iterator[str]:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("label", "labels")]
    for value in [*call.args[2:], *named]:
        if isinstance(value, ast.Tuple):
            yield from (text for label in value.elts for text in constant_texts(label))
        elif value in named:
            yield from constant_texts(value)


def _meaning(value: ast.expr, tree: ast.Module) -> str:
    """The help text, also if it was assigned to a variable a line before."""
    if isinstance(value, ast.Name):
        value = _assigned_before(value, tree) or value
    return "".join(constant_texts(value))


def _events(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of an event and a level, a pair for each place that logs it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            levels = list(_log_levels(node.func, tree))
            yield from ((name, level) for name in _event_names(node.args[0]) for level in levels)


def _log_levels(function: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The levels of a call: of a logger's method, of `audit_action`, or of a variable that holds such a function."""
    if isinstance(function, ast.IfExp):
        yield from _log_levels(function.body, tree)
        yield from _log_levels(function.orelse, tree)
    elif isinstance(function, ast.Attribute) and function.attr in _LEVELS:
        yield _LEVELS[function.attr]
    elif isinstance(function, ast.Name) and function.id in ("audit_action", "act"):
        yield "audit"
    elif isinstance(function, ast.Call) and isinstance(function.func, ast.Name) and function.func.id == "partial":
        yield from _log_levels(function.args[0], tree)
    elif isinstance(function, ast.Name) and (value := _assigned_before(function, tree)) is not None:
        yield from _log_levels(value, tree)


def _assigned_before(name: ast.Name, tree: ast.Module) -> ast.expr | None:
    """The value that the variable was given last above this line."""
    above = [(line, value) for line, value in _assignments(tree).get(name.id, ()) if line <= name.lineno]
    return above[-1][1] if above else None


@lru_cache(maxsize=1)
def _assignments(tree: ast.Module) -> dict[str, list[tuple[int, ast.expr]]]:
    """The values given to each variable of a module, with their lines, in order."""
    found: defaultdict[str, list[tuple[int, ast.expr]]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id].append((node.lineno, node.value))
    return {name: sorted(values, key=itemgetter(0)) for name, values in found.items()}


def _event_names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _event_names(node.body)
        yield from _event_names(node.orelse)
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] == "Alert":
        yield Alert[node.attr]
    elif isinstance(node, ast.Constant) and _EVENT.fullmatch(str(node.value)):
        yield str(node.value)
