"""Writes operations.json and commands.json of app/cli, which commands load instead of Flask, pydantic and each other.

They are made from openapi.json and from the commands: `python -m docs.commands`. A test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from dataloader.app.cli.command import GROUPS, INDEX_FILE
from dataloader.app.cli.operations import OPERATIONS_FILE
from dataloader.app.features.registry import FEATURES

_DOCUMENT = Path(__file__).resolve().parent / "openapi.json"
_FEATURES = "dataloader.app.features"
_CLI = "dataloader.app.cli"
_INT4_MAX = 2**31 - 1  # no limit that a person would want to read
_LIMITS = {"minimum": "min", "maximum": "max"}


def operations_text() -> str:
    """The operations below /api/v1 with the fields that a request can have."""
    document = json.loads(_DOCUMENT.read_text(encoding="utf-8"))
    operations: dict[str, dict[str, Any]] = {
        operation["operationId"]: {
            "method": method.upper(),
            "path": path,
            "summary": re.sub(r"^(Get|Read)\b", "Show", operation["summary"]),
            "fields": dict(_fields(operation, document)),
        }
        for path, methods in document["paths"].items()
        if path.startswith("/api/v1/")
        for method, operation in methods.items()
    }
    job = operations["trigger_job"]["fields"]
    for operation in operations.values():
        for name, field in operation["fields"].items():
            if name in job and field["help"].partition("[default")[0] == "":  # a field of the jobs that are made
                text = job[name]["help"].partition("  [default")[0] if field["help"] else job[name]["help"]
                field["help"] = f"{text}  {field['help']}".strip()
    return _text({name: operations[name] for name in sorted(operations)})


def index_text() -> str:
    """The commands by the titles of the help: name, module, and the line about it."""
    index: dict[str, dict[str, list[str]]] = {}
    of_features = [f"{_FEATURES}.{feature.name}.commands" for feature in FEATURES if feature.has_commands]
    own = [f"{_CLI}.{name}" for name in ("service", "skeleton", "command")]
    for title in GROUPS:
        modules = (
            own + of_features if title == GROUPS[0] else of_features + own
        )  # those of the service's processes first
        index[title] = {
            command.name: [module, short_help(command)]
            for module in modules
            for command in import_module(module).COMMANDS.get(title, ())
        }
    return _text(index)


def short_help(command: click.Command) -> str:
    """The line about a command in a list: the beginning of its help up to the first stop."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    whole = first if isinstance(command, click.Group) else re.split(r"[:;.](?: |$)", first)[0] + "."
    return command.short_help or whole


def _fields(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for reference in operation.get("parameters", []):
        parameter = _resolve(reference, document)
        if parameter["in"] != "header":
            field = {"in": parameter["in"], **_field(parameter["name"], parameter, document)}
            if parameter["in"] == "path" and "pattern" in parameter["schema"]:
                field["pattern"] = parameter["schema"]["pattern"]
            yield parameter["name"], field
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for name, schema in _resolve(content.get("schema", {}), document).get("properties", {}).items():
        yield name, {"in": "body", **_field(name, {"schema": schema}, document)}


def _field(name: str, parameter: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolve(parameter["schema"], document)
    nullable, *_ = [_resolve(s, document) for s in schema.get("anyOf", []) if s != {"type": "null"}] or [schema]
    schema = {**nullable, **{key: value for key, value in schema.items() if key != "anyOf"}}
    field: dict[str, Any] = {"type": schema.get("type", "string")}
    if field["type"] == "array":
        item = _field(name, {"schema": schema["items"]}, document)
        field = {**item, "multiple": True}
    if schema.get("format") == "date-time":
        field["type"] = "time"
    if name.endswith("_sec") and field["type"] in ("integer", "number"):
        field |= {"type": "duration", "whole": field["type"] == "integer"}
    if "enum" in schema:
        field["choices"] = schema["enum"]
    field |= {short: schema[key] for key, short in _LIMITS.items() if schema.get(key, _INT4_MAX) < _INT4_MAX}
    default = schema.get("default")
    description = parameter.get("description") or schema.get("description") or ""
    return field | {"help": _help(description, None if isinstance(default, dict | list | bool) else default)}


def _help(description: str, default: Any) -> str:
    """A description of the API as the help of an option: `null` and times are of JSON."""
    description = description.replace(" (RFC 3339 with a zone)", "")
    text, _, without = re.sub(r"^null: ", "; null: ", description).partition("; null: ")
    shown = without.rstrip(".") or ("" if default in (None, "") else str(default))
    text = text.strip() + ("." if without and text else "")
    return f"{text}  [default: {shown}]".strip() if shown else text


def _resolve(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        target: Any = document
        for part in schema["$ref"].split("/")[1:]:
            target = target[part]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPERATIONS_FILE.write_text(operations_text(), encoding="utf-8")
    INDEX_FILE.write_text(index_text(), encoding="utf-8")
