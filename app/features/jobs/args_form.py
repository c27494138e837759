"""The inputs of a form for the args of a task, made from their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.ui.base import parse_json, parse_json_object

ARG_PREFIX = "arg_"  # of the names of form fields that hold args
_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}
_FORMATS = {"date": "date", "date-time": "datetime-local", "time": "time"}
_LONG_TEXT = 200  # characters of maxLength, above which a text has several lines
_YES_NO = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class ArgInput:
    """An input of the form. `value` is its text: of a check box `true` or empty, of a list one item a line."""

    name: str
    label: str
    kind: str  # text, textarea, number, checkbox, choice, date, datetime-local, time, lines, json
    is_required: bool = False
    is_nullable: bool = False
    value: str = ""
    default: Any = None
    choices: Mapping[str, Any] = field(default_factory=dict)  # text of the option: value
    attributes: Mapping[str, Any] = field(default_factory=dict)  # min, max, step, maxlength, pattern
    item_type: str = "string"  # of lines
    hint: str = ""
    help: str = ""

    @property
    def arg(self) -> str:
        return self.name.removeprefix(ARG_PREFIX)

    @property
    def options(self) -> list[tuple[str, str]]:
        """The options of a choice, with an empty one where the arg may be left out."""
        return [*([] if self.is_required else [("", "")]), *((text, text) for text in self.choices)]

    @property
    def is_wide(self) -> bool:
        return self.kind in ("json", "textarea", "lines")


class ArgsForm:
    """The inputs for the args of a task. Without a schema of properties there is one input for a JSON object."""

    def __init__(self, schema: Mapping[str, Any] | None, zone: str) -> None:
        self._schema, self._zone = schema or {}, ZoneInfo(zone)
        properties = self._schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}

    def can_show(self, args: Mapping[str, Any]) -> bool:
        """Whether each of these args has an input."""
        return bool(self._properties) and set(args) <= set(self._properties)

    def inputs(self, args: Mapping[str, Any] | None = None) -> list[ArgInput]:
        """The inputs with these values, by default those of the schema."""
        return [self._input(name, args) for name in self._properties]

    def parse(self, values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        """The args of a form, with the errors of texts that are no value."""
        if not self._properties or "args" in values:
            return parse_json_object("args", values.get("args") or "{}", MAX_JSON_DEPTH)
        args: dict[str, Any] = {}
        errors: list[FieldError] = []
        for made in self.inputs():
            try:
                value = self._parse(made, values.get(made.name, ""))
            except ValueError as error:
                errors.append(FieldError(f"args.{made.arg}", str(error)))
            else:
                args |= {} if value is _LEFT_OUT else {made.arg: value}
        return args, errors

    def _input(self, name: str, args: Mapping[str, Any] | None) -> ArgInput:
        described = _resolve(self._properties[name], self._schema)
        alternatives = [_resolve(choice, self._schema) for choice in described.get("anyOf", [described])]
        values = [choice for choice in alternatives if choice.get("type") != "null"]
        value_schema = values[0] if len(values) == 1 else {}
        is_nullable = len(values) < len(alternatives)
        made = ArgInput(
            name=ARG_PREFIX + name,
            label=name,
            is_required=name in self._schema.get("required", ()),
            is_nullable=is_nullable,
            default=described.get("default"),
            help=described.get("description", ""),
            **_kind(value_schema, self._schema, is_nullable=is_nullable),
        )
        value = (args or {}).get(name, described.get("default"))  # what a job left out has its default
        text = self._text(made, value)
        return replace(made, value=text) if text is not None else replace(made, kind="json", value=_dump(value))

    def _text(self, made: ArgInput, value: Any) -> str | None:
        """The text of a value; None: the input cannot hold it."""
        if value is None or (made.kind == "checkbox" and value is False):
            return ""
        match made.kind:
            case "choice":
                return next((text for text, choice in made.choices.items() if choice == value), None)
            case "checkbox":
                return "true" if value is True else None
            case "lines":
                items = value if isinstance(value, list) else [value]
                is_plain = isinstance(value, list) and all(_is_line(item) for item in items)
                return "\n".join(item if isinstance(item, str) else _dump(item) for item in items) if is_plain else None
            case "json":
                return _dump(value)
            case "number":
                return _dump(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
            case "datetime-local":
                return self._local(value)
            case _:
                return value if isinstance(value, str) else None

    def _local(self, value: Any) -> str | None:
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return None
        return (moment.astimezone(self._zone) if moment.tzinfo else moment).replace(tzinfo=None).isoformat()

    def _parse(self, made: ArgInput, text: str) -> Any:
        if made.kind == "checkbox":
            return text == "true"
        if not text.strip():
            return _empty(made)
        if _is_reference(text):
            return _json(text)
        match made.kind:
            case "choice":
                if text not in made.choices:
                    raise ValueError(f"is none of: {', '.join(made.choices)}")
                return made.choices[text]
            case "lines" if not text.lstrip().startswith("["):
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                return lines if made.item_type == "string" else [_json(line) for line in lines]
            case "json" | "number" | "lines":
                return _json(text)
            case "datetime-local":
                return self._zoned(text)
            case _:
                return text.replace("\r\n", "\n")

    def _zoned(self, text: str) -> str:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return text  # the schema of the args says what is wrong
        return (moment if moment.tzinfo else moment.replace(tzinfo=self._zone)).isoformat()


_LEFT_OUT = object()


def input_of(field: str) -> str:
    """The input of a field of a request: `arg_day` of `args.day`."""
    return ARG_PREFIX + field.removeprefix("args.") if field.startswith("args.") else field


def _kind(schema: Mapping[str, Any], root: Mapping[str, Any], *, is_nullable: bool) -> dict[str, Any]:
    """The kind of the input of a value, with its choices and bounds."""
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if options:
        return {"kind": "choice", "choices": {v if isinstance(v, str) else _dump(v): v for v in options}}
    kind = _KINDS.get(schema.get("type", ""), "json")
    if kind == "checkbox":
        return {"kind": "choice", "choices": _YES_NO} if is_nullable else {"kind": kind}
    if kind == "number":
        return {"kind": kind, "attributes": _bounds(schema)}
    if kind == "text":
        text_kind = _FORMATS.get(schema.get("format", ""), "text")
        if schema.get("maxLength", 0) > _LONG_TEXT:
            text_kind = "textarea"
        return {"kind": text_kind, "attributes": {"maxlength": schema["maxLength"]} if "maxLength" in schema else {}}
    if schema.get("type") == "array":
        items = _resolve(schema.get("items", {}), root)
        item_type = items.get("type", "string" if "enum" in items else "")
        if item_type in ("string", "integer", "number"):
            among = f"; each one of: {', '.join(map(str, items['enum']))}" if "enum" in items else ""
            return {"kind": "lines", "item_type": item_type, "hint": f"one item a line{among}"}
    return {"kind": "json", "hint": "as JSON"}


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    is_whole = schema.get("type") == "integer"
    bounds: dict[str, Any] = {"step": 1 if is_whole else "any"}
    for attribute, names in (("min", ("minimum", "exclusiveMinimum")), ("max", ("maximum", "exclusiveMaximum"))):
        value = next((schema[name] for name in names if name in schema), None)
        if value is not None:
            inside = {"min": 1, "max": -1}[attribute] if is_whole and names[1] in schema else 0
            bounds[attribute] = value + inside
    return bounds


def _empty(made: ArgInput) -> Any:
    """What an empty input means: the default of the schema, or nothing where that has a text."""
    if made.default in (None, "", [], {}) and not made.is_required:
        return _LEFT_OUT
    if made.kind == "lines":
        return []
    if made.is_nullable:
        return None
    return "" if made.kind in ("text", "textarea") else _LEFT_OUT


def _is_reference(text: str) -> bool:
    """Whether the text is a reference such as `{"$secret": "name"}`, which any input takes."""
    return text.lstrip().startswith('{"$') and text.rstrip().endswith("}")


def _is_line(item: Any) -> bool:
    """Whether an item of a list can be a line of a text, which loses spaces around it."""
    return item.strip() == item != "" and item.isprintable() if isinstance(item, str) else isinstance(item, int | float)


def _json(text: str) -> Any:
    value, errors = parse_json("", text, MAX_JSON_DEPTH)
    if errors:
        raise ValueError(errors[0].message)
    return value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) and value else None)


def _resolve(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(described.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name) if name else None
    if definition is None:
        return described
    return {**definition, **{key: value for key, value in described.items() if key != "$ref"}}
