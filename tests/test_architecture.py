"""Which folder may import which, and what a file may contain. The tables are the rule."""

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
OURS = ("app", "workers", "pipelines", "dataloader")

_D = "dataloader"
_APP, _CORE, _FEATURES = f"{_D}.app", f"{_D}.app.queue", f"{_D}.app.features"
_CLIENT = frozenset(
    f"{_D}.{name}"
    for name in ("client", "errors", "_address", "_enqueue", "_job_fields", "_job_filter", "_transport", "_old_names")
)


def _app(*names: str) -> frozenset[str]:
    return frozenset(f"{_APP}.{name}" for name in names)


_SERVICE = _app("errors", "log", "net", "tracing", "wording")
_PIPELINES, _WORKERS = f"{_D}.pipelines", f"{_D}.workers"
_FIELDS = tuple(f"{_D}.{name}" for name in ("_job_fields", "_job_filter"))  # each field, declared once

# folder, or module → what it may import of ours, next to itself. The longest name that fits a module is its folder.
FOLDERS: dict[str, frozenset[str]] = {
    _APP: frozenset({f"{_D}._old_names"}),
    **{folder: frozenset() for folder in _app("errors", "wording")},
    f"{_APP}.config": _app("errors") | {f"{_PIPELINES}.zone_clock"},
    f"{_APP}.net": frozenset({f"{_PIPELINES}.toolkit.networks"}),
    f"{_APP}.tracing": _app("errors"),
    f"{_APP}.log": _app("errors"),
    f"{_APP}.postgres": _app("errors"),
    f"{_APP}.db": _app("errors", "wording") | {f"{_PIPELINES}.json_values", *_FIELDS},
    _CORE: _app("db", "errors", "wording") | {f"{_PIPELINES}.json_values", *_FIELDS},
    f"{_APP}.state": _app("db", "queue", "errors", "wording"),
    f"{_APP}.acts": _app("db", "queue", "http", "ui", "errors", "wording") | {_PIPELINES},
    f"{_APP}.http": _SERVICE | _app("acts", "db", "queue", "ui") | {_PIPELINES, *_FIELDS},
    f"{_APP}.ui": _SERVICE | _app("acts", "http", "db", "queue") | {_PIPELINES},
    _FEATURES: _SERVICE
    | _app("acts", "http", "ui", "db", "queue", "state", "cli", "config", "runtime")
    | {_PIPELINES, _WORKERS, f"{_D}.errors", f"{_D}.client", f"{_D}._enqueue", *_FIELDS},
    _WORKERS: _SERVICE | _app("acts.feature", "queue", "db") | {_PIPELINES, f"{_WORKERS}.offloads", f"{_D}._old_names"},
    f"{_WORKERS}.offloads": _SERVICE | _app("features.offload.rows", "queue", "db") | {_PIPELINES, _WORKERS},
    _PIPELINES: frozenset({f"{_D}._old_names"}),
    f"{_D}.testing": frozenset({f"{_PIPELINES}.testing", f"{_WORKERS}.testing"}),
    _D: _CLIENT | {f"{_PIPELINES}.contract", f"{_PIPELINES}.retry", f"{_APP}.runtime.embedding", f"{_APP}.__main__"},
    # What other projects use where they have no service: it imports nothing of one.
    **dict.fromkeys(_CLIENT, _CLIENT),
    f"{_D}._distribution": frozenset(),
}
ANYWHERE = (f"{_D}._distribution",)  # what may be imported anywhere, and imports nothing of ours
# These wire the folders together, and may import them all.
WIRING = (
    *(f"{_APP}.{name}" for name in ("__main__", "cli", "runtime", "http.__main__")),
    f"{_FEATURES}.demo", f"{_FEATURES}.doctor.__main__", f"{_D}.wsgi", f"{_D}.gunicorn_conf",
)  # fmt: skip
# The core imports no feature; the registry, in these, adds them.
USES_THE_REGISTRY = (
    f"{_APP}.http.app",
    *(f"{_WORKERS}.{name}" for name in ("context", "isolation.child_main", "maintenance", "pool", "testing")),
)
# By the name of a file in a feature's folder: what it never imports, itself or by another module.
WITHOUT_FLASK = ("rows", "duty", "checks", "sender", "declare", "feature")
WITHOUT_WORKERS = ("rows", "acts", "pages", "routes", "feature")
# A feature imports of another what reads and writes the database: its rows.py, or a module with a .sql file of its
# name. What else it imports of another is listed here.
FEATURE_IMPORTS: dict[str, set[str]] = {
    "bulk": {"jobs.commands", "jobs.list_routes"},
    "jobs": {"bulk.acts"},
    "runs": {"schedules.reader"},
    "overview": {"schedules.calendar", "schedules.reader"},
    "tasks": {
        "jobs.start_form",
        "limits.acts",
    },
    "where": {"targets.options", "targets.servers"},
    "workers": {"queues.acts"},
}

# library → the folders that may import it, next to those that wire
LIBRARIES: dict[str, tuple[str, ...]] = {
    "psycopg2": (
        *(f"{_APP}.db", _CORE, _PIPELINES, f"{_WORKERS}.connections"),
        *(f"{_FEATURES}.{name}" for name in ("doctor.facts", "targets.servers")),
    ),
    "psycopg2_pool": (f"{_APP}.db",),
    "flask": (f"{_APP}.http", f"{_APP}.ui", f"{_APP}.acts.web", _FEATURES),
    "werkzeug": (f"{_APP}.http", f"{_APP}.ui", _FEATURES),
    "jinja2": (f"{_APP}.http", f"{_APP}.ui"),
    "gunicorn": (),
    "pydantic_settings": (f"{_APP}.config",),
    "requests": (_D,),
}
MAX_LINES = 450
NEVER_IN_WIRING = frozenset({"psycopg2", "psycopg2_pool"})

_SQL = re.compile(
    r"\b(SELECT\s.+\bFROM\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|CREATE\s+(TABLE|INDEX|FUNCTION)\s"
    r"|ALTER\s+TABLE\s|TRUNCATE\s+\w|LOCK\s+TABLE\s|pg_notify\()",
    re.DOTALL,
)
SPEAKS_SQL = (
    *(f"{_APP}.db", _CORE, _PIPELINES, f"{_WORKERS}.connections"),
    f"{_FEATURES}.doctor",
    f"{_FEATURES}.targets.server_rows",  # of other databases than the queue's
    f"{_FEATURES}.demo.company",  # tasks
)
SPEAKS_OF_ITS_CONNECTION = ("dataloader.workers.listener",)  # the echo that proves a LISTEN

READS_THE_ENVIRONMENT = (
    "dataloader.app.config",
    "dataloader.workers.isolation.fork_server_main",
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
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    renamed = {"gunicorn.conf": "gunicorn_conf"}.get(name, name)
    return renamed if renamed == _D or renamed.startswith(f"{_D}.") else f"{_D}.{renamed}"


SOURCES = {
    name_of(path): path
    for top in (*OURS, "wsgi.py", "gunicorn.conf.py")
    for path in ([ROOT / top] if top.endswith(".py") else sorted((ROOT / top).rglob("*.py")))
    if not path.is_symlink()
}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def within(module: str, folders: tuple[str, ...] | frozenset[str]) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def folder_of(module: str) -> str:
    return max((folder for folder in FOLDERS if within(module, (folder,))), key=len)


@cache
def imports_of(module: str) -> list[tuple[str, int]]:
    return list(_imports_of(module))


def _imports_of(module: str) -> Iterator[tuple[str, int]]:
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
    expected = ("app.queue.jobs", "workers.pool", "pipelines.contract", "client", "wsgi", "gunicorn_conf")

    assert {f"{_D}.{name}" for name in expected} <= set(SOURCES)


def test_a_folder_imports_only_what_the_table_allows():
    wrong = [
        f"{module}:{line} imports {imported}; {folder} may import {sorted(FOLDERS[folder]) or 'nothing of ours'}"
        for module in SOURCES
        if not within(module, WIRING)
        for folder in [folder_of(module)]
        for imported, line in imports_of(module)
        if within(imported, (_D,))
        and not (imported in SOURCES and folder_of(imported) == folder)
        and not within(imported, (*FOLDERS[folder], *ANYWHERE))
        and not (within(module, USES_THE_REGISTRY) and imported == f"{_FEATURES}.registry")
    ]

    assert wrong == []


def _feature_of(module: str) -> str:
    return module.removeprefix(f"{_FEATURES}.").partition(".")[0] if within(module, (_FEATURES,)) else ""


def test_a_feature_imports_the_rows_of_another_at_most():
    found: dict[str, set[str]] = {}
    for module in SOURCES:
        feature = _feature_of(module)
        for imported, _ in imports_of(module) if feature and module != f"{_FEATURES}.registry" else ():
            other = _feature_of(imported)
            if other not in ("", feature) and not SOURCES[imported].with_suffix(".sql").exists():
                found.setdefault(feature, set()).add(imported.removeprefix(f"{_FEATURES}."))

    assert found == FEATURE_IMPORTS


@cache
def _loads(module: str) -> frozenset[str]:
    """The modules that an import of this one loads by its own lines; not what its functions import."""
    nodes = [node for node in tree_of(module).body if isinstance(node, ast.ImportFrom | ast.Import)]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            named |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(named)


def _reached_from(module: str) -> set[str]:
    reached, pending = set(), [module]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += _loads(name) if name in SOURCES else ()
    return reached


def test_files_of_features_load_no_layer_that_their_name_excludes():
    wrong = []
    for module in SOURCES:
        name = module.rpartition(".")[2]
        if not _feature_of(module):
            continue
        reached = _reached_from(module)
        if name in WITHOUT_FLASK:
            wrong += [f"{module} loads {r}" for r in reached if within(r, ("flask",))]
        if name in WITHOUT_WORKERS:
            wrong += [f"{module} loads {r}" for r in reached if within(r, (_WORKERS,))]

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


def test_http_and_workers_do_not_know_each_other():
    meetings = [
        (module, imported)
        for module in SOURCES
        for imported, _ in imports_of(module)
        if (within(module, (f"{_APP}.http", f"{_APP}.ui")) and within(imported, (_WORKERS,)))
        or (within(module, (_WORKERS,)) and within(imported, (f"{_APP}.http", f"{_APP}.ui")))
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


def test_the_environment_is_read_in_one_folder():
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
        if module not in (f"{_D}.wsgi", f"{_D}.gunicorn_conf")
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


@pytest.mark.parametrize(
    ("module", "must_not_load"),
    [
        ("dataloader.app", {"dataloader.app.config", "dataloader.app.queue", "flask", "psycopg2", "pydantic"}),
        ("dataloader.workers.pool", {"flask", "dataloader.app.http", "pydantic_settings", "gunicorn"}),
        ("dataloader.app.queue.jobs", {"flask", "dataloader.workers", "dataloader.pipelines.contract", "pydantic"}),
        ("dataloader.pipelines.contract", {"dataloader.app", "dataloader.workers", "flask", "psycopg2"}),
        ("dataloader.app.cli", {"flask", "pydantic", "psycopg2", "dataloader.workers", "requests"}),
        ("dataloader", {"dataloader.app", "dataloader.workers", "dataloader.pipelines", "requests"}),
        ("dataloader.client", {"dataloader.app", "dataloader.workers", "dataloader.pipelines"}),
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
