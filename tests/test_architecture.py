"""The rooms and their doors: who may import whom, and what may stand where. The table is the rule."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("app", "dataloader", "workers", "pipelines")

_CLIENT = frozenset(f"dataloader.{name}" for name in ("client", "errors", "_address", "_enqueue", "_transport"))
_SERVICE = (
    "dataloader.app.errors",
    "dataloader.app.log",
    "dataloader.app.net",
    "dataloader.app.tracing",
    "dataloader.app.wording",
)

# room → what it may import of ours, beside itself. The longest name that fits a module is its room.
ROOMS: dict[str, frozenset[str]] = {
    "app": frozenset(),
    "dataloader.app.errors": frozenset(),
    "dataloader.app.config": frozenset({"dataloader.app.errors", "dataloader.pipelines.zone_clock"}),
    "dataloader.app.net": frozenset({"dataloader.pipelines.toolkit.networks"}),
    "dataloader.app.wording": frozenset(),
    "dataloader.app.tracing": frozenset({"dataloader.app.errors"}),
    "dataloader.app.log": frozenset({"dataloader.app.errors"}),
    "dataloader.app.postgres": frozenset({"dataloader.app.errors"}),
    "dataloader.app.db": frozenset(
        {"dataloader.app.errors", "dataloader.app.wording", "dataloader.pipelines.json_values"}
    ),
    "dataloader.app.queue": frozenset(
        {"dataloader.app.db", "dataloader.pipelines.json_values", "dataloader.app.errors", "dataloader.app.wording"}
    ),
    "dataloader.app.admin": frozenset(
        {"dataloader.app.queue", "dataloader.app.db", "dataloader.app.errors", "dataloader.app.wording"}
    ),
    "dataloader.app.features.doctor": frozenset(
        {
            "dataloader.app.admin",
            "dataloader.app.queue",
            "dataloader.app.db",
            "dataloader.app.errors",
            "dataloader.app.wording",
        }
    ),
    "dataloader.app.acts": frozenset(
        {"dataloader.app.admin", "dataloader.app.db", "dataloader.app.errors", "dataloader.app.wording", "pipelines"}
    ),
    "dataloader.app.features": frozenset(
        {
            *_SERVICE,
            "dataloader.app.acts",
            "dataloader.app.admin",
            "dataloader.app.queue",
            "dataloader.app.db",
            "dataloader.app.http",
            "pipelines",
        }
    ),
    "dataloader.app.http": frozenset(
        {
            *_SERVICE,
            "dataloader.app.acts",
            "dataloader.app.features",
            "dataloader.app.features.doctor",
            "dataloader.app.admin",
            "dataloader.app.queue",
            "dataloader.app.db",
            "pipelines",
        }
    ),
    "workers": frozenset({*_SERVICE, "dataloader.app.admin", "dataloader.app.queue", "dataloader.app.db", "pipelines"}),
    "pipelines": frozenset(),
    "dataloader": frozenset({"dataloader.pipelines.contract", "dataloader.app.runtime.embedding"}),
    # What other projects use beside packages named as ours: it imports nothing of them.
    **dict.fromkeys(_CLIENT, _CLIENT),
}
# These wire the rooms together, and may import them all.
WIRING = (
    *(
        "dataloader.app.__main__",
        "dataloader.app.cli",
        "dataloader.app.runtime",
        "dataloader.app.runtime.commands",
        "dataloader.app.http.__main__",
        "dataloader.app.features.doctor.__main__",
    ),
    *("wsgi", "gunicorn.conf"),
)

# library → the rooms that may import it, beside those that wire
LIBRARIES: dict[str, tuple[str, ...]] = {
    "psycopg2": ("dataloader.app.db", "dataloader.app.queue", "dataloader.app.features.doctor.facts", "pipelines"),
    "psycopg2_pool": ("dataloader.app.db",),
    "flask": ("dataloader.app.http", "dataloader.app.features"),
    "werkzeug": ("dataloader.app.http",),
    "jinja2": ("dataloader.app.http",),
    "gunicorn": (),
    "pydantic_settings": ("dataloader.app.config",),
    "requests": ("dataloader", "pipelines"),
}
MAX_LINES = 450
NEVER_IN_WIRING = frozenset({"psycopg2", "psycopg2_pool"})

_SQL = re.compile(
    r"\b(SELECT\s.+\bFROM\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|CREATE\s+(TABLE|INDEX|FUNCTION)\s"
    r"|ALTER\s+TABLE\s|TRUNCATE\s+\w|LOCK\s+TABLE\s|pg_notify\()",
    re.DOTALL,
)
SPEAKS_SQL = (
    "dataloader.app.db",
    "dataloader.app.queue",
    "dataloader.app.admin",
    "dataloader.app.features.doctor",
    "pipelines",
)
SPEAKS_OF_ITS_CONNECTION = ("dataloader.workers.listener",)  # the echo that proves a LISTEN

READS_THE_ENVIRONMENT = (
    "dataloader.app.config",
    "dataloader.workers.isolation.run",
    "dataloader.workers.isolation.watchdog",
    "dataloader.pipelines.remote",
)
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "putenv"})

_BEGINS_SOMETHING = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "touch", "unlink",
    "Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "start",
    "Popen", "check_call", "check_output", "system", "connect", "create_connection", "socket", "pipe", "pipe2",
    "urlopen", "Session", "EmbeddedServer", "Pool", "WorkerPool",
})  # fmt: skip


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {
    name_of(path): path
    for top in (*OURS, "wsgi.py", "gunicorn.conf.py")
    for path in ([ROOT / top] if top.endswith(".py") else sorted((ROOT / top).rglob("*.py")))
}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def within(module: str, rooms: tuple[str, ...] | frozenset[str]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def room_of(module: str) -> str:
    return max((room for room in ROOMS if within(module, (room,))), key=len)


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """What a module imports, wherever in it: the module, or the module and the name that is taken from it."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are written in full"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in SOURCES else node.module), node.lineno


def at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What is executed when a module is imported: all but the bodies of functions, and `if __name__ == "__main__"`."""
    for node in body:
        if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
            continue
        yield from executed(node)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and child in (
            node.body if isinstance(node.body, list) else [node.body]
        ):
            continue
        yield from executed(child)


def docstrings(tree: ast.Module) -> set[ast.AST]:
    return {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }


def test_there_is_something_to_look_at():
    assert {
        "dataloader.app.queue.jobs",
        "dataloader.workers.pool",
        "dataloader.pipelines.contract",
        "wsgi",
        "gunicorn.conf",
    } <= set(SOURCES)


def test_a_room_imports_only_what_the_table_allows():
    wrong = [
        f"{module}:{line} imports {imported}; {room} may import {sorted(ROOMS[room]) or 'nothing of ours'}"
        for module in SOURCES
        if not within(module, WIRING)
        for room in [room_of(module)]
        for imported, line in imports_of(module)
        if within(imported, OURS)
        and not within(imported, (room,) if room != "app" else ())
        and not within(imported, ROOMS[room])
    ]

    assert wrong == []


def test_a_library_is_imported_only_where_it_belongs():
    wrong = [
        f"{module}:{line} imports {imported}"
        for module in SOURCES
        for imported, line in imports_of(module)
        for library in [imported.partition(".")[0]]
        if library in LIBRARIES
        and not within(module, LIBRARIES[library])
        and not (within(module, WIRING) and library not in NEVER_IN_WIRING)
    ]

    assert wrong == []


def test_web_and_workers_do_not_know_each_other():
    meetings = [
        (module, imported)
        for module in SOURCES
        for imported, _ in imports_of(module)
        if (within(module, ("dataloader.app.http",)) and within(imported, ("workers",)))
        or (within(module, ("workers",)) and within(imported, ("dataloader.app.http",)))
    ]

    assert meetings == []


def test_modules_import_each_other_in_no_circle():
    """Imports inside functions and under TYPE_CHECKING count too."""
    graph = {
        module: {imported for imported, _ in imports_of(module) if imported in SOURCES and imported != module}
        for module in SOURCES
    }

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_the_environment_is_read_in_one_room():
    """Settings come from app/config. A process of a job's own inherits what its parent has."""
    reads = [
        f"{module}:{node.lineno}"
        for module in SOURCES
        if not within(module, READS_THE_ENVIRONMENT)
        for node in ast.walk(tree_of(module))
        if (isinstance(node, ast.Attribute) and node.attr in _ENVIRONMENT and ast.unparse(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & _ENVIRONMENT)
    ]

    assert reads == []


def test_sql_is_in_sql_files_only():
    found = [
        f"{module}:{node.lineno}: {node.value!r}"
        for module in SOURCES
        if not within(module, SPEAKS_SQL + SPEAKS_OF_ITS_CONNECTION)
        for skipped in [docstrings(tree_of(module))]
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped
        if _SQL.search(node.value)
    ]

    assert found == []


def test_nothing_begins_at_import():
    begun = [
        f"{module}:{node.lineno}: {ast.unparse(node.func)}"
        for module in SOURCES
        if module not in ("wsgi", "gunicorn.conf")
        for node in at_import(tree_of(module).body)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _BEGINS_SOMETHING
    ]

    assert begun == []


def test_a_look_at_the_host_survives_a_refusal():
    """Path.exists and its like raise PermissionError below a folder that may not be entered; os.path's return False."""
    looks = [
        f"{module}:{node.lineno}"
        for module in SOURCES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("exists", "is_dir", "is_file") and ast.unparse(node.func.value) not in ("os.path", "info")
    ]

    assert looks == [], "use os.path"


def test_no_file_is_too_long():
    paths = [*SOURCES.values(), *(ROOT / "tests").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    too_long = {name: length for name, length in lengths.items() if length > MAX_LINES}

    assert too_long == {}, "split it by subject"


def test_the_package_holds_a_docstring_and_nothing_else():
    (only,) = tree_of("app").body

    assert only in [node for node in tree_of("app").body if isinstance(node, ast.Expr)]
    assert ast.get_docstring(tree_of("app"))


@pytest.mark.parametrize(
    ("module", "must_not_load"),
    [
        ("app", {"dataloader.app.config", "dataloader.app.queue", "flask", "psycopg2", "pydantic"}),
        (
            "dataloader.workers.pool",
            {"flask", "dataloader.app.http", "dataloader.app.config", "pydantic_settings", "gunicorn"},
        ),
        ("dataloader.app.queue.jobs", {"flask", "workers", "pipelines", "pydantic"}),
        ("dataloader.pipelines.contract", {"app", "workers", "flask", "psycopg2"}),
        ("dataloader.app.cli", {"flask", "pydantic", "psycopg2", "workers", "requests"}),
        ("dataloader", {"app", "workers", "pipelines", "requests"}),
        ("dataloader.client", {"app", "workers", "pipelines"}),
    ],
)
def test_import_loads_and_starts_no_more_than_needed(module: str, must_not_load: set[str]):
    code = f"import json, sys, threading, {module}\nprint(json.dumps([sorted(sys.modules), threading.active_count()]))"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    modules, threads = json.loads(output)

    assert must_not_load & set(modules) == set()
    assert threads == 1


# ── the rules themselves can fail ───────────────────────────────────────────────────────────────────────────────


def test_the_rules_see_what_they_forbid():
    calls = [
        ast.unparse(node)
        for node in at_import(ast.parse("class A:\n  x = open('a')\ndef f(y=connect()):\n  open('b')").body)
        if isinstance(node, ast.Call)
    ]

    assert calls == ["open('a')", "connect()"]
    assert _SQL.search("WITH x AS (SELECT a\n FROM t) DELETE")
    assert _SQL.search("UPDATE dl_jobs SET x = 1")
    assert not _SQL.search("select a file from the list")
