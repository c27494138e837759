"""Generates the pages of the site that are not in this folder: the reference from the code, and the files of the root.

Sphinx calls `write_pages` first (docs/conf.py). The folder `_made` is written each time and not kept.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from dataloader.app.cli.command import cli
from docs import code_tables

DOCS = Path(__file__).resolve().parent
GENERATED = DOCS / "_made"
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")

# The pages of the site, in order. A page missing here fails the build.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Learn it": ("tutorial-file", "tutorial", "concepts", "deploy-story", "comparison"),
    "Use it": ("writing-a-pipeline", "toolkit", "migrating", "pipelines/*", "_made/README"),
    "Run it": ("deploying", "upgrading", "operations", "*"),
    "Look it up": ("cli", "_made/commands", "http-api", "_made/routes", "_made/python", "configuration"),
    "Understand it": (
        "job-lifecycle",
        "architecture",
        "_made/modules",
        "performance",
        "_made/benchmarks",
        "decisions",
        "decisions/*",
    ),
    "Change it": ("_made/CONTRIBUTING", "_made/CHANGELOG", "_made/SECURITY"),
}

MODULES = {
    "Writing pipelines": (
        "dataloader.pipelines.contract",
        "dataloader.pipelines.retry",
        "dataloader.pipelines.testing",
    ),
    "The toolkit": (
        *(
            f"dataloader.pipelines.toolkit.{name}"
            for name in ("sources", "decode", "unpack", "load", "copytext", "replace")
        ),
        *(f"dataloader.pipelines.toolkit.{name}" for name in ("connections", "target", "times", "paths", "errors")),
    ),
    "Calling the service": ("dataloader.client", "dataloader.errors"),
    "Embedding it": ("dataloader.app.queue.jobs", "dataloader.app.queue.job", "dataloader.app.errors"),
}


def write_pages() -> None:
    shutil.rmtree(GENERATED, ignore_errors=True)
    GENERATED.mkdir()
    for name in ROOT_PAGES:
        if (DOCS.parent / name).exists():
            _write_page(_site_name(name) + ".md", _rewrite_page_links((DOCS.parent / name).read_text(encoding="utf-8")))
    _write_page("modules.md", code_tables.module_page())
    _write_page("commands.md", "\n".join(_command_reference()))
    _write_page(
        "routes.md", "\n".join(_route_reference(json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))))
    )
    _write_page("python.rst", "\n".join(_python_reference()))


def _write_page(name: str, text: str) -> None:
    (GENERATED / name).write_text(text.rstrip() + "\n", encoding="utf-8")


def _site_name(path: str) -> str:
    return "benchmarks" if path.startswith("benchmarks") else path.removesuffix(".md")


def tables_of_contents() -> str:
    """The tables of contents that the first page ends with."""
    named = {page for pages in SECTIONS.values() for page in pages}
    rest = sorted(page.stem for page in DOCS.glob("*.md") if page.stem not in {*named, "index"})
    trees = []
    for caption, pages in SECTIONS.items():
        wanted = [name for page in pages for name in (rest if page == "*" else [page])]
        there = [page for page in wanted if "*" in page or any(DOCS.glob(f"{page}.*"))]
        trees.append("\n".join(["```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *there, "```", ""]))
    return "\n".join(trees)


def rewrite_root_links(text: str, depth: int) -> str:
    """Links of a page to the files above the folder, as links to their places in the site."""
    up = "../" * depth
    for name in ROOT_PAGES:
        text = _replace_links(text, re.escape(f"../{up}{name}"), f"{up}_made/{_site_name(name)}.md")
    return text


def _rewrite_page_links(text: str) -> str:
    """Links of a file above, seen from within the folder `_made`."""
    for name in ROOT_PAGES:
        text = _replace_links(text, rf"(?:\.\./)?{re.escape(name)}", f"{_site_name(name)}.md")
    text = re.sub(r"\]\((?:\.\./)?docs/([^)]*)\)", r"](../\1)", text)
    return re.sub(r"\[([^\]]*)\]\((?!\.\./|https?:|#|\w+\.md)[^)]*\)", r"\1", text)  # code, licence: not in the site


def _replace_links(text: str, old: str, new: str) -> str:
    return re.sub(rf"\]\({old}(#[^)]*)?\)", rf"]({new}\1)", text)


# ── the commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def _command_reference() -> Iterator[str]:
    yield "# All commands\n\nGenerated from the program; [Command line](../cli.md) explains them.\n"
    yield from _command_section(cli, "dataloader", None)


def _command_section(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=path if parent is None else command.name, parent=parent)
    yield f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _command_section(found, f"{path} {name}", context)


# ── the routes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _route_reference(document: dict[str, Any]) -> Iterator[str]:
    yield "# All routes\n"
    yield "Generated from the OpenAPI document; [HTTP API](../http-api.md) explains them.\n"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n\n**{operation['summary']}.** {operation.get('description', '')}\n"
            yield from _parameter_table(operation.get("parameters", []))
            yield from _body_section(operation.get("requestBody"), document)
            yield from _response_table(operation["responses"], document)


def _parameter_table(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "| parameter | in | | |\n|---|---|---|---|"
        for it in parameters:
            needed = "required" if it.get("required") else ""
            yield f"| `{it['name']}` | {it['in']} | {needed} | {_cell(it.get('description', ''))} |"
        yield ""


def _body_section(body: dict[str, Any] | None, document: dict[str, Any]) -> Iterator[str]:
    for kind, content in (body or {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        model = document["components"]["schemas"].get(name, schema)
        yield f"Body, `{kind}`:\n"
        if "properties" not in model:
            yield _cell(model.get("description", "")) + "\n"
            continue
        yield "| field | | |\n|---|---|---|"
        for field, what in model["properties"].items():
            needed = "required" if field in model.get("required", ()) else ""
            yield f"| `{field}` | {needed} | {_cell(what.get('description', ''))} |"
        yield ""


def _response_table(responses: Mapping[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield "| answer | |\n|---|---|"
    for status, answer in responses.items():
        shared = answer.get("$ref", "").rpartition("/")[2]
        response = document["components"]["responses"][shared] if shared else answer
        yield f"| {status} | {_cell(response['description'])} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# ── the Python ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _python_reference() -> Iterator[str]:
    yield _heading("Python", "=")
    for part, modules in MODULES.items():
        yield _heading(part, "-")
        for module in modules:
            yield _heading(f"``{module}``", "~")
            yield f".. automodule:: {module}\n   :members:\n   :show-inheritance:\n"


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"
