"""The operations of the HTTP API as commands use them: address, fields with help and limits, from operations.json.

The request models of the API are the source of the file (`generate.py`); to import them takes a second and more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from dataloader.app.cli.parsing import DEFAULT_LIMIT, DURATION, ID, JOB_ID, OBJECT, SECONDS, TIME, Option

OPERATIONS_FILE = Path(__file__).parent / "operations.json"
# How an option differs from its field: its names, or settings of `Option`.
Overrides = Mapping[str, str | Mapping[str, Any]]


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    summary: str
    fields: Mapping[str, Mapping[str, Any]]

    def request(self, values: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
        """The path, the query and the body of a request. A value that is None is left out."""
        places: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for name, value in values.items():
            if value is not None and value != ():
                places[self.fields[name]["in"]][name] = value
        for name, value in places["path"].items():
            if not _can_name(str(value), self.fields[name].get("pattern", "")):
                raise click.UsageError(f"{name.upper()} is {value!r}, which is no name")
        path = self.path.format(**{name: quote(str(value), safe="") for name, value in places["path"].items()})
        return path, places["query"], places["body"] if self.has_body else None

    @property
    def has_body(self) -> bool:
        return any(field["in"] == "body" for field in self.fields.values())


def _can_name(text: str, pattern: str) -> bool:
    """Whether a text can be a part of the path. Others lead to another address, or to none."""
    return text not in ("", ".", "..") and text.isprintable() and re.search(pattern, text) is not None


@cache
def _operations() -> Mapping[str, Mapping[str, Any]]:
    operations: Mapping[str, Mapping[str, Any]] = json.loads(OPERATIONS_FILE.read_bytes())
    return operations


def operation(name: str) -> Operation:
    return Operation(**_operations()[name])


def parameters(
    name: str,
    *,
    only: str | None = None,
    omit: str = "",
    arguments: Sequence[str] = (),
    options: Overrides | None = None,
    skip: Collection[str] = (),
) -> Iterator[click.Parameter]:
    """Arguments for the path and for `arguments`, options for the other fields.

    `only` and `omit` are the options' fields, separated by spaces; `skip` has fields that the caller declares itself.
    """
    changed = options or {}
    for field, spec in operation(name).fields.items():
        chosen = field in changed or (only is None and field not in omit.split()) or field in (only or "").split()
        if field in skip or (spec["in"] != "path" and field not in arguments and not chosen):
            continue
        if spec["in"] == "path" or field in arguments:
            settings = changed.get(field, {})
            assert not isinstance(settings, str)  # noqa: S101 - arguments have no other names
            yield click.Argument([field], type=_type(field, spec), **settings)
        else:
            yield _option(field, spec, changed.get(field, {}))


def _option(field: str, spec: Mapping[str, Any], changed: str | Mapping[str, Any]) -> Option:
    settings = {"names": changed} if isinstance(changed, str) else dict(changed)
    names = settings.pop("names", "--" + field.removesuffix("_sec").replace("_", "-")).split()
    how: dict[str, Any] = {"help": spec["help"]}
    if spec["type"] == "boolean":
        how |= {"is_flag": True, "default": None}
    elif field == "limit":
        top = spec["max"]
        how = {"type": click.IntRange(1, top), "default": min(DEFAULT_LIMIT, top), "show_default": True,
               "help": "List at most this many."}  # fmt: skip
    else:
        how |= {"type": _type(field, spec), "multiple": spec.get("multiple", False)}
    return Option([*names, field], **{**how, **settings})


def _type(field: str, spec: Mapping[str, Any]) -> click.ParamType[Any] | None:
    """The kind of a value, and the limits of a whole number; the service refuses what else does not fit."""
    if "choices" in spec:
        return click.Choice(spec["choices"], case_sensitive=False)
    match spec["type"]:
        case "integer":
            return click.IntRange(spec.get("min"), spec.get("max"))
        case "number":
            return click.FLOAT
        case "duration":
            return DURATION if spec.get("min", 0) >= 1 and spec["whole"] else SECONDS
        case "time":
            return TIME
        case "object":
            return OBJECT
    if field == "job_id":
        return JOB_ID
    return ID if spec["in"] == "path" and field.endswith("_id") else None
