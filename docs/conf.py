"""Sphinx configuration: `make docs` builds the site."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import site  # noqa: E402 - needs the path above

project = "dataloader"
author = "the dataloader authors"
copyright = "the dataloader authors, MIT licence"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["examples"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # type names in signatures have no targets; links in pages are checked

myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"dataloader {release}"
html_copy_source = False
html_extra_path = ["openapi.json"]


def _expand_source(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = site.rewrite_root_links(source[0], docname.count("/"))
    if docname == "index":
        source[0] = (
            source[0].replace("(pipelines/)", "(pipelines/load.cbr.rates.md)") + "\n" + site.tables_of_contents()
        )


def _process_docstring(
    app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]
) -> None:
    """Render plain-text docstrings: indented lines as literal blocks, backticks as code."""
    rendered: list[str] = []
    for line in lines:
        is_indented, previous = line.startswith("  "), rendered[-1] if rendered else ""
        if is_indented and not previous.startswith("  ") and previous != "":
            rendered += ["", "::", ""]
        elif is_indented and previous == "":
            last = next((line for line in reversed(rendered) if line), "")
            rendered += [] if last.startswith("  ") or last == "::" else ["::", ""]
        elif not is_indented and previous.startswith("  ") and line:
            rendered.append("")
        escaped = line.replace("*", r"\*").replace("|", r"\|")
        rendered.append(line if is_indented else re.sub(r"`([^`]+)`", r"``\1``", escaped))
    lines[:] = rendered


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("source-read", _expand_source)
    app.add_lexer("mermaid", TextLexer)  # forges draw it; here it is shown as text
    site.write_pages()
