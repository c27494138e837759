"""How Sphinx makes a site of these pages: `make docs`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import site  # noqa: E402 - found from the folder above, wherever Sphinx was started

project = "dataloader"
author = "the dataloader authors"
copyright = "the dataloader authors, MIT licence"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["examples"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # names in signatures that have no entry of their own; links are checked

myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"dataloader {release}"
html_copy_source = False
html_extra_path = ["openapi.json"]


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = site.inward(source[0], docname.count("/"))
    if docname == "index":
        source[0] = source[0].replace("(pipelines/)", "(pipelines/load.cbr.rates.md)") + "\n" + site.contents()


def _plain(app: Sphinx, what: str, name: str, it: object, options: object, lines: list[str]) -> None:
    """Our docstrings are plain text: what is indented is shown as it stands, what is in backticks is code."""
    told: list[str] = []
    for line in lines:
        indented, before = line.startswith("  "), told[-1] if told else ""
        if indented and not before.startswith("  ") and before != "":
            told += ["", "::", ""]
        elif indented and before == "":
            last = next((line for line in reversed(told) if line), "")
            told += [] if last.startswith("  ") or last == "::" else ["::", ""]
        elif not indented and before.startswith("  ") and line:
            told.append("")
        told.append(line if indented else re.sub(r"`([^`]+)`", r"``\1``", line.replace("*", r"\*").replace("|", r"\|")))
    lines[:] = told


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _plain)
    app.connect("source-read", _read)
    app.add_lexer("mermaid", TextLexer)  # drawn where the pages are read on a forge; here it is legible text
    site.write()
