"""Templates use names that the code has: Jinja shows nothing for a name that does not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from jinja2 import Environment, nodes

from dataloader.app.features.registry import FEATURES
from dataloader.app.http.links import SHAPES_KEY, has_page

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


def test_links_of_templates_and_navigation_are_to_pages_of_the_service(app_without_database: Callable[[], FlaskClient]):
    """A link to another page is shown as text, so no one would see that it is misspelled."""
    paths = [(feature.name, link.path[1:]) for feature in FEATURES for link in feature.navigation]
    for template in TEMPLATES:
        text = re.sub(r"{%.*?%}", "", re.sub(r"{{.*?}}", "x", template.read_text(encoding="utf-8"), flags=re.DOTALL))
        links = re.findall(r' (?:href|action)="/(?!static/|api/)([^"?#]*)', text)
        paths += [(template.name, path) for path in links]
    shapes = app_without_database().application.config[SHAPES_KEY]

    assert len(paths) > 200
    assert [(place, path) for place, path in paths if not has_page(path, shapes)] == []


@cache
def _parsed(path: Path) -> nodes.Template:
    return Environment(autoescape=True).parse(path.read_text(encoding="utf-8"))
