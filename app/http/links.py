"""Addresses of pages. Names in them are quoted: those of queues and tasks may hold `/`, `?`, `#`, `%` and spaces.

Templates link to pages of all features. What is rendered has no link to those of a feature that is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any
from urllib.parse import quote, urlencode

from flask import current_app, render_template, request
from werkzeug.routing import Map, PathConverter, Rule

from dataloader.app.acts.feature import Feature

SHAPES_KEY = "dataloader.shapes"  # of the paths that the service has, in the app's config
_PLACEHOLDER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")
_ADDRESS = re.compile(r' (href|action)="/(?!(?:[^"?#]*/)?static/)([^"?#]*)[^"]*"')
_WITHOUT_PAGE = {"href": "", "action": " hidden"}  # the link is shown as text, the form not at all


class NameConverter(PathConverter):
    """A name of one or several segments of a path; unlike Flask's own it may begin with a slash."""

    regex = r"[\s\S]+?"
    part_isolating = False


class LazyRule(Rule):
    """A route whose functions for building addresses are compiled at their first use.

    Werkzeug compiles two per route, which took most of the time of making an app. Pages use them only for the addresses
    of static files.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _build_with_unknown if append_unknown else _build

    def compile_builder(self, append_unknown: bool) -> Callable[..., tuple[str, str]]:
        """The function that Werkzeug makes, as a method of this route."""
        return MethodType(super()._compile_builder(append_unknown), self)


def _build(rule: LazyRule, /, **values: Any) -> tuple[str, str]:
    rule._build = rule.compile_builder(append_unknown=False)
    return rule._build(**values)


def _build_with_unknown(rule: LazyRule, /, **values: Any) -> tuple[str, str]:
    rule._build_unknown = rule.compile_builder(append_unknown=True)
    return rule._build_unknown(**values)


def _shape_of(path: str) -> tuple[str, int, str]:
    """The first segment of a path, how many follow it, and the last one: names are quoted, so each is one segment."""
    first, last = path.partition("/")[0], path.rpartition("/")[2]
    return first, path.count("/"), last


def shapes_of(routes: Map) -> frozenset[tuple[str, int, str]]:
    """The shapes by which the pages of features differ. The last segment is "" where it is a name."""
    return frozenset(_shape_of(_PLACEHOLDER.sub("", rule.rule[1:])) for rule in routes.iter_rules())


def has_page(path: str, shapes: frozenset[tuple[str, int, str]]) -> bool:
    first, following, last = _shape_of(path)
    return (first, following, last) in shapes or (first, following, "") in shapes


def render_html(template: str, **values: Any) -> str:
    """Render a template, without links and forms to pages that this service does not have."""
    shapes: frozenset[tuple[str, int, str]] = current_app.config[SHAPES_KEY]

    text = render_template(template, **values)
    return _ADDRESS.sub(lambda found: found[0] if has_page(found[2], shapes) else _WITHOUT_PAGE[found[1]], text)


def quote_name(name: Any) -> str:
    """Quote a name as one segment of a path, or as a value of a query or fragment."""
    return quote(str(name), safe="")


def quote_in_template(value: Any) -> str:
    """Jinja's filter `urlencode`, which also quotes slashes: browsers shorten `a/../b` in a path to `b`."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return quote_name(value)
    return urlencode(value if isinstance(value, Mapping) else list(value))


def page_of(features: Iterable[Feature], kind: str, name: str) -> str | None:
    """The path of the page of a subject. None: no feature of the service has one."""
    paths = (feature.subjects[kind] for feature in features if kind in feature.subjects)
    return next((path.format(quote_name(name)) for path in paths), None)


def page_path(path: str, names: Mapping[str, Any]) -> str:
    """Put names into a path such as `/queues/{name}`."""
    return path.format(**{field: quote_name(name) for field, name in names.items()})


def current_path() -> str:
    """The path of this request with its names quoted; `request.path` has them decoded."""
    rule, names = request.url_rule, request.view_args or {}
    return (
        quote(request.path) if rule is None else _PLACEHOLDER.sub(lambda field: quote_name(names[field[1]]), rule.rule)
    )


def current_url() -> str:
    """The path and the query of this request."""
    query = request.query_string.decode("ascii", "replace")
    return f"{current_path()}?{query}" if query else current_path()
