"""The client's methods and the types of its answers, written from the OpenAPI document: one method an operation."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_JSON = "application/json"
_REFERENCE = "#/components/schemas/"
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_FORMATS = {"date-time": "datetime", "uuid": "UUID | str"}
# What changes something, and may be asked twice all the same: the second time finds it done.
_TWICE = frozenset({"cancel", "bulk_cancel", "bulk_count", "worker_drain", "worker_undrain", "queue_rule"})
_WIDTH = 110

_HEAD = '''"""Every operation of the API as a method, its answers as types. Written by `python -m app.web client`."""
# ruff: noqa

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict, cast
from uuid import UUID

from app.client.calling import UNSET, Calling, Unset, part

'''


def client_code(document: Mapping[str, Any]) -> str:
    """The module, unformatted."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if _JSON in operation["responses"]["200"].get("content", {})
    ]
    schemas = document["components"]["schemas"]
    used = set(_needed([operation for _, _, operation in operations], schemas))
    types = "\n\n".join(_typed_dict(name, schemas[name]) for name in sorted(used) if "properties" in schemas[name])
    others = "".join(f"{name} = {_type(schemas[name])}\n" for name in sorted(used) if "properties" not in schemas[name])
    methods = "\n".join(_method(*operation, schemas) for operation in operations)
    about = '    """The API, operation by operation. Answers are JSON as it came; see docs/http-api.md."""\n'
    return f"{_HEAD}{others}\n\n{types}\n\nclass Api(Calling):\n{about}\n{methods}"


def _needed(told: Any, schemas: Mapping[str, Any]) -> Iterator[str]:
    """The schemas that something refers to, and those that these refer to; bodies themselves become parameters."""
    waiting, seen = list(_references(told)), set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name != "Problem":
            seen.add(name)
            yield name
            waiting += _references(schemas[name])


def _references(told: Any) -> Iterator[str]:
    if isinstance(told, Mapping):
        for key, value in told.items():
            if key == "$ref" and not value.startswith(_REFERENCE):
                continue  # a refusal that all operations share
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(told, list):
        for value in told:
            yield from _references(value)


def _typed_dict(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    lines = [f"class {name}(TypedDict):"]
    for field, about in schema["properties"].items():
        kind = _type(about, answer=True)
        lines.append(f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}")
    return "\n".join(lines) + "\n"


def _type(schema: Mapping[str, Any], *, answer: bool = False) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].removeprefix(_REFERENCE))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(repr(value) for value in values)}]"
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " | ".join(dict.fromkeys(_type(choice, answer=answer) for choice in schema[many]))
    if schema.get("type") == "array":
        return f"list[{_type(schema.get('items', {}), answer=answer)}]"
    if schema.get("type") == "object":
        return "dict[str, Any]"
    if not answer and schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    return _PLAIN.get(schema.get("type", ""), "Any")


def _method(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    name = operation["operationId"]
    parameters = operation.get("parameters", ())
    places, query, headers = ([one for one in parameters if one["in"] == kind] for kind in ("path", "query", "header"))
    body = _body(operation, schemas)
    words = [f"{_word(one['name'])}: {_type(one['schema'])}" for one in places]
    named = [f"{field}: {kind}" for field, kind, needed in body if needed]
    named += [f"{_word(one['name'])}: {_optional(_type(one['schema']))} = None" for one in query]
    named += [f"{field}: {kind} | Unset = UNSET" for field, kind, needed in body if not needed]
    named += [f"{_word(one['name'])}: str | None = None" for one in headers]
    signature = ", ".join(["self", *words, *(["*", *named] if named else [])])
    address = re.sub(r"\{(\w+)\}", r"{part(\1)}", path)
    told = [repr(method.upper()), f'f"{address}"' if places else f'"{path}"']
    if query:
        told.append("query={" + ", ".join(f'"{one["name"]}": {_word(one["name"])}' for one in query) + "}")
    if "requestBody" in operation:
        told.append("body={" + ", ".join(f'"{field}": {field}' for field, _, _ in body) + "}")
    if headers:
        told.append("headers={" + ", ".join(f'"{one["name"]}": {_word(one["name"])}' for one in headers) + "}")
    told.append(f"repeatable={_repeatable(name, method, body, bool(headers))}")
    answer = _type(operation["responses"]["200"]["content"][_JSON]["schema"], answer=True)
    return (
        f"    def {name}({signature}) -> {answer}:\n{_docstring(operation)}"
        f"        said = self.call({', '.join(told)})\n"
        f"        return cast({answer!r}, said)\n"
    )


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """The members of a body: name, type, and whether each is required."""
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"][_JSON]["schema"]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix(_REFERENCE)]
    required = set(schema.get("required", ()))
    return [(field, _type(about), field in required) for field, about in schema.get("properties", {}).items()]


def _repeatable(name: str, method: str, body: list[tuple[str, str, bool]], guarded: bool) -> str:
    if any(field == "idempotency_key" for field, _, _ in body):
        return "isinstance(idempotency_key, str)"
    if method == "patch" and guarded:
        return "if_match is None"
    return str(method in {"get", "patch"} or name in _TWICE)


def _docstring(operation: Mapping[str, Any]) -> str:
    summary, more = operation["summary"] + ".", operation.get("description", "")
    if not more:
        return f'        """{summary}"""\n'
    told = textwrap.fill(more, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f'        """{summary}\n\n{told}\n        """\n'.replace("\\", "\\\\")


def _word(name: str) -> str:
    word = name.lower().replace("-", "_")
    return f"{word}_" if keyword.iskeyword(word) else word


def _optional(kind: str) -> str:
    return kind if "None" in kind.split(" | ") else f"{kind} | None"
