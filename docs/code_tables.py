"""Tables of modules, threads, connections and statements, read from the source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from app.db.statements import parse_statements

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "workers", "pipelines", "dataloader")


def module_page() -> str:
    """A page with the first line of each module's docstring, a section per package."""
    sections = []
    for package in (path.parent for path in source_files() if path.name == "__init__.py"):
        files = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        if files:
            rows = ((f"`{path.name}`", _first_line(path)) for path in files)
            sections.append(f"## `{shown_path(package)}/`\n\n{_table('module', 'what it does', rows)}")
    return "\n".join(["# Modules\n", *sections])


def threads() -> str:
    """Each named thread that the product starts, with its module."""
    found = {row for path in source_files() for row in _thread_names(path)}
    return _table("thread", "started in", sorted(found))


def connections() -> str:
    """Each `application_name` of a connection to the queue's server, with its module."""
    found = {row for path in source_files() for row in _connection_names(path)}
    return _table("`application_name`", "opened in", sorted(found))


def statements() -> str:
    """The names of the statements, a row per .sql file."""
    rows = (
        (f"`{shown_path(path)}`", ", ".join(f"`{name}`" for name in names))
        for path in sorted((ROOT / "app").rglob("*.sql"))
        if (names := parse_statements(path.read_text(encoding="utf-8"), "public"))
    )
    return _table("file", "statements", rows)


def source_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def shown_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _thread_names(path: Path) -> Iterator[tuple[str, str]]:
    for call in _calls(path):
        function = ast.unparse(call.func).rpartition(".")[2]
        if function in ("Thread", "ThreadPoolExecutor", "BackgroundThread", "RefreshingValue"):
            names = [key.value for key in call.keywords if key.arg in ("name", "thread_name_prefix")]
            names += call.args[:1] if function == "BackgroundThread" else []
        else:
            names = [name for name in call.args[:1] if next(constant_texts(name), "").startswith("worker-<")]
        yield from ((f"`{text}`", f"`{shown_path(path)}`") for name in names for text in constant_texts(name))


def _connection_names(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = [key.value for node in ast.walk(tree) if isinstance(node, ast.Call) for key in node.keywords]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        values += [value for value in (*function.args.defaults, *function.args.kw_defaults) if value is not None]
        values += [node.value for node in function.body if isinstance(node, ast.Return) and node.value is not None]
    for value in values:
        yield from (
            (f"`{text}`", f"`{shown_path(path)}`") for text in constant_texts(value) if _is_connection_name(text)
        )


def _is_connection_name(text: str) -> bool:
    return text.startswith(("dataloader-", "dataloader:")) and " " not in text and not text.endswith("-client")


def _calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def constant_texts(node: ast.expr) -> Iterator[str]:
    """The text of a constant or an f-string; its placeholders by the last name in them, as in `worker-<queue>`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in node.values)


def _placeholder(part: ast.expr) -> str:
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in ast.walk(part)]
    return f"<{next((name for name in names if name not in ('', 'str', 'self')), '')}>"


def _table(left: str, right: str, rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return "\n".join([f"| {left} | {right} |", "|---|---|", *(f"| {one} | {other} |" for one, other in rows), ""])
