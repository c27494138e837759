"""A job's args: checked with a pydantic model or a JSON Schema, filled into templates, searched for secrets' names.

Errors name fields and repeat no value, which may be a secret, except where an author's own validator does.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from pydantic import BaseModel

ArgError = tuple[str, str]  # path, such as `rows[3].name`, and message

SECRET_KEY = "$secret"  # noqa: S105 - the key of a reference: {"$secret": "name"}
MISSING, UNKNOWN = "is required", "is no argument of this task; leave it out"
_MESSAGES = {
    "missing": MISSING,
    "extra_forbidden": UNKNOWN,
    "union_tag_invalid": "is of a kind that this task does not know",  # pydantic's repeats the value, here and below
    "uuid_parsing": "Input should be a valid UUID",
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_NAME_LENGTH, _MAX_MESSAGE_LENGTH, _MAX_LISTED_ERRORS = 64, 300, 20
_TEMPLATE_NAME = re.compile(r"[\w-]+")
_SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MAX_DEPTH = 200


class InvalidArgs(Exception):
    """The args do not fit."""

    def __init__(self, errors: Iterable[ArgError]) -> None:
        self.errors = tuple(errors)
        listed = self.errors[:_MAX_LISTED_ERRORS]
        super().__init__("; ".join(f"{path or 'args'}: {message}" for path, message in listed))


class ModelArgSchema:
    """Args as a pydantic model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    @property
    def schema(self) -> dict[str, Any]:
        from pydantic import PydanticUserError  # noqa: PLC0415 - imported already by the model's author

        try:
            return self._model.model_json_schema()
        except PydanticUserError:  # it has types that JSON Schema does not know
            return {"type": "object"}

    def allows(self, name: str) -> bool:
        """Whether it is a field, or fields that are not declared are kept."""
        schema = self.schema
        return "properties" not in schema or _allows_property(schema, name) or name in self._model.model_fields

    def parse(self, args: Mapping[str, Any]) -> Any:
        """Return the args as the model. Raises InvalidArgs with all errors."""
        from pydantic import ValidationError  # noqa: PLC0415 - imported already by the model's author

        try:
            # From JSON, because a strict model accepts "2024-01-31" as a date only there.
            return self._model.model_validate_json(json.dumps(args))
        except ValidationError as error:
            raise InvalidArgs(
                (format_path(detail["loc"]), _MESSAGES.get(detail["type"], detail["msg"]))
                for detail in error.errors(include_input=False, include_url=False, include_context=False)
            ) from None
        except Exception as error:
            message = f"could not be checked: the task's model raised {type(error).__name__}"
            raise InvalidArgs([("", message)]) from error


class JsonArgSchema:
    """Args that fit a JSON Schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        from jsonschema_rs import validator_for  # noqa: PLC0415 - only where needed

        self.schema = schema
        try:
            # Offline: references can only point into the schema itself.
            self._validator = validator_for(schema, validate_formats=True, mask="it", offline=True)
        except ValueError as error:
            raise ValueError(f"args is no JSON Schema: {str(error).splitlines()[0]}") from None

    def allows(self, name: str) -> bool:
        """Whether args may have it. References are not followed."""
        is_open = "additionalProperties" not in self.schema or "patternProperties" in self.schema
        return is_open or _allows_property(self.schema, name)

    def parse(self, args: Mapping[str, Any]) -> Any:
        """Return the args. Raises InvalidArgs with all errors."""
        errors = [arg_error for error in self._validator.iter_errors(dict(args)) for arg_error in _arg_errors(error)]
        if errors:
            raise InvalidArgs(errors)
        return args


def _allows_property(schema: Mapping[str, Any], name: str) -> bool:
    return name in schema.get("properties", ()) or schema.get("additionalProperties", False) is not False


def arg_schema_from(declared: Any) -> ModelArgSchema | JsonArgSchema:
    """Convert the option `args`. Raises TypeError or ValueError."""
    if isinstance(declared, type) and hasattr(declared, "model_validate_json"):
        return ModelArgSchema(declared)
    if isinstance(declared, Mapping):
        return JsonArgSchema(dict(declared))
    raise TypeError(f"args is a pydantic model or a JSON Schema as a dict, not {declared!r}")


def _arg_errors(error: ValidationError) -> list[ArgError]:
    kind: Any = error.kind
    if kind.name == "required":
        return [(format_path([*error.instance_path, kind.property]), MISSING)]
    if kind.name in ("additionalProperties", "unevaluatedProperties"):
        return [(format_path([*error.instance_path, name]), UNKNOWN) for name in kind.unexpected]
    return [(format_path(error.instance_path), error.message.removeprefix("it ")[:_MAX_MESSAGE_LENGTH])]


def format_path(steps: Iterable[str | int]) -> str:
    """Format a path as a caller would write it: `rows[3].name`."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_NAME.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{json.dumps(step[:_MAX_NAME_LENGTH])}]"
    return path


# ── templates ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Template:
    """A text such as `customer:{id}`: `{name}` is replaced by that argument, `{{` and `}}` by braces. There are no
    expressions."""

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError:
            raise ValueError(f"the braces of {text!r} do not match; write {{{{ and }}}} for braces") from None
        for _, name, form, conversion in parts:
            if name is not None and (form or conversion or not _TEMPLATE_NAME.fullmatch(name)):
                raise ValueError(f"{text!r}: only the name of an argument is allowed between braces")
        self._parts = [(literal, name) for literal, name, _, _ in parts]
        self.names = tuple(name for _, name in self._parts if name)

    def fill(self, args: Mapping[str, Any]) -> str:
        """Return the text with the arguments: texts as they are, other values as JSON. Raises ValueError, naming an
        argument that is missing."""
        for name in self.names:
            if name not in args:
                raise ValueError(f"the argument {name!r} is missing, which {self._text!r} needs")
        return "".join(literal + ("" if name is None else _argument_text(args[name])) for literal, name in self._parts)


def _argument_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ── references to secrets, {"$secret": "name"}: only the worker that runs the job reads the secret ──────────────────


class BadReference(ValueError):
    """A mapping with `$secret` that is no valid reference; the message says where."""


def secret_name(value: Any) -> str | None:
    """Return the name in a reference, or None for another value. Raises BadReference."""
    if not isinstance(value, Mapping) or SECRET_KEY not in value:
        return None
    name = value[SECRET_KEY]
    if len(value) != 1:
        raise BadReference(f'{{"{SECRET_KEY}": …}} has no other keys; here it has {len(value) - 1} more')
    if not isinstance(name, str) or not _SECRET_NAME.fullmatch(name):
        raise BadReference(f'the name in {{"{SECRET_KEY}": …}} is of letters, digits, _, - and ., up to 100 of them')
    return name


def find_references(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the path and the secret's name of each reference. Raises BadReference."""
    try:
        name = secret_name(value)
    except BadReference as error:
        raise BadReference(f"{format_path(steps) or 'args'}: {error}") from None
    if name is not None:
        yield format_path(steps), name
    elif len(steps) < _MAX_DEPTH:
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for step, item in items:
            yield from find_references(item, (*steps, step))


def substitute(args: Any, get_secret: Callable[[str], str]) -> Any:
    """Return args with each reference replaced by the value of its secret."""
    name = secret_name(args)
    if name is not None:
        return get_secret(name)
    if isinstance(args, Mapping):
        return {key: substitute(value, get_secret) for key, value in args.items()}
    if isinstance(args, list):
        return [substitute(value, get_secret) for value in args]
    return args


def outside_refs(errors: list[ArgError], args: Mapping[str, Any]) -> list[ArgError]:
    """Drop errors that a reference may have caused: only the worker knows the value. An invalid one is an error."""
    try:
        paths = [path for path, _ in find_references(args)]
    except BadReference as error:
        return [*errors, ("", str(error))]
    within = tuple(f"{path}{separator}" for path in paths for separator in ".[")
    return [e for e in errors if not paths or (e[0] and e[0] not in paths and not e[0].startswith(within))]
