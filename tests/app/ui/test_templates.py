"""Templates use names that the code has: Jinja shows nothing for a name that does not exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / "app").rglob("templates/**/*.html"))
_OF_JINJA = {"last", "first", "index", "index0", "caller", "items", "get"}


@pytest.fixture(scope="module")
def names_in_code() -> set[str]:
    return {
        word
        for folder in ("app", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        for word in re.findall(r"\w+", path.read_text())
    }


def test_templates_are_found():
    assert {path.name for path in TEMPLATES} >= {"layout.html", "jobs.html"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_attributes_in_template_exist_in_code(path: Path, names_in_code: set[str]):
    macros = {macro.name for other in TEMPLATES for macro in _parsed(other).find_all(nodes.Macro)}
    used = {node.attr for node in _parsed(path).find_all(nodes.Getattr)}

    assert used - names_in_code - macros - _OF_JINJA == set()


@cache
def _parsed(path: Path) -> nodes.Template:
    return Environment(autoescape=True).parse(path.read_text(encoding="utf-8"))
