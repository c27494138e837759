"""Addresses of pages. Names in them are quoted: those of queues and tasks may hold `/`, `?`, `#`, `%` and spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any
from urllib.parse import quote, urlencode

from flask import request
from werkzeug.routing import PathConverter, Rule

_PLACEHOLDER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")


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


def quote_name(name: Any) -> str:
    """Quote a name as one segment of a path, or as a value of a query or fragment."""
    return quote(str(name), safe="")


def quote_in_template(value: Any) -> str:
    """Jinja's filter `urlencode`, which also quotes slashes: browsers shorten `a/../b` in a path to `b`."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return quote_name(value)
    return urlencode(value if isinstance(value, Mapping) else list(value))


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
