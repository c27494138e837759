"""Templates use names that the code has: Jinja shows nothing for a name that does not exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

WEB = Path(__file__).parents[3] / "app" / "web"
TEMPLATES = sorted((WEB / "templates").rglob("*.html"))
_OF_JINJA = {"last", "first", "index", "caller", "items", "get"}


@pytest.fixture(scope="module")
def names_in_code() -> set[str]:
    folders = (WEB.parent, WEB.parents[1] / "pipelines")
    return {
        word for folder in folders for path in folder.rglob("*.py") for word in re.findall(r"\w+", path.read_text())
    }


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_attributes_in_template_exist_in_code(path: Path, names_in_code: set[str]):
    macros = {macro.name for other in TEMPLATES for macro in _parsed(other).find_all(nodes.Macro)}
    used = {node.attr for node in _parsed(path).find_all(nodes.Getattr)}

    assert used - names_in_code - macros - _OF_JINJA == set()


@cache
def _parsed(path: Path) -> nodes.Template:
    return Environment(autoescape=True).parse(path.read_text(encoding="utf-8"))
