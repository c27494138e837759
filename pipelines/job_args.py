"""A job's args: checked with a pydantic model or a JSON Schema, filled into templates, searched for references.

Errors name fields and repeat no value, which may be a secret, except where an author's own validator does.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from dataloader.pipelines.context import Upstream
from dataloader.pipelines.retry import Fail

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from pydantic import BaseModel

ArgError = tuple[str, str]  # path, such as `rows[3].name`, and message

SECRET_KEY = "$secret"  # noqa: S105 - the keys of references: {"$secret": "name"}, {"$result": "parent.path"}
RESULT_KEY = "$result"
REFERENCE_KEYS = (SECRET_KEY, RESULT_KEY)
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
_MAX_RESULT_NAME_LENGTH = 1000


class InvalidArgs(Exception):
    """The args do not fit."""

    def __init__(self, errors: Iterable[ArgError]) -> None:
        self.errors = tuple(errors)
        listed = self.errors[:_MAX_LISTED_ERRORS]
        super().__init__("; ".join(f"{path or 'args'}: {message}" for path, message in listed))


class ArgumentError(ValueError):
    """An argument that a text made from the args cannot do without, or cannot have."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"the argument {name!r} {message}")
        self.name, self.message = name, message


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

    def complete(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the args as the model has them, with its defaults; args that do not fit as they are."""
        try:
            completed: dict[str, Any] = self.parse(args).model_dump(mode="json", by_alias=True)
        except (InvalidArgs, ValueError, TypeError):  # it has a value that is none of JSON's
            return args
        return completed


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

    def complete(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the args with the defaults of the schema's properties."""
        properties = self.schema.get("properties", {})
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        return defaults | dict(args)


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
        """Return the text with the arguments: texts as they are, other values as JSON. Raises ArgumentError for one
        that is missing."""
        for name in self.names:
            if name not in args:
                similar = get_close_matches(name, [given for given in args if given not in self.names], 1)
                hint = f"; is {similar[0]!r} misspelt?" if similar else ""
                raise ArgumentError(name, f"is missing, which {self._text!r} needs{hint}")
        return "".join(literal + ("" if name is None else _argument_text(args[name])) for literal, name in self._parts)


def _argument_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ── references: only the worker that runs the job knows their values ────────────────────────────────────────────────


_SCALARS = frozenset({str, int, float, bool, type(None)})


class BadReference(ValueError):
    """A mapping with the key of a reference that is no valid one; the message says where."""


class Reference(NamedTuple):
    """Stands for a secret, or for what is at a path of a parent's result."""

    key: str  # $secret or $result
    name: str


def parse_reference(value: Any) -> Reference | None:
    """Return the reference, or None for another value. Raises BadReference."""
    if not (type(value) is dict or isinstance(value, Mapping)):
        return None
    key = next((key for key in REFERENCE_KEYS if key in value), None)
    if key is None:
        return None
    name = value[key]
    if len(value) != 1:
        raise BadReference(f'{{"{key}": …}} has no other keys; here it has {len(value) - 1} more')
    if key == RESULT_KEY:
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_RESULT_NAME_LENGTH:
            raise BadReference(f'{{"{key}": …}} is a parent and a path in its result, such as "extract.rows"')
    elif not isinstance(name, str) or not _SECRET_NAME.fullmatch(name):
        raise BadReference(f'the name in {{"{key}": …}} is of letters, digits, _, - and ., up to 100 of them')
    return Reference(key, name)


def secret_name(value: Any) -> str | None:
    """Return the name of a secret, or None for another value. Raises BadReference."""
    reference = parse_reference(value)
    return None if reference is None or reference.key != SECRET_KEY else reference.name


def find_references(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Reference]]:
    """Yield the path of each reference, and the reference. Raises BadReference."""
    try:
        reference = parse_reference(value)
    except BadReference as error:
        raise BadReference(f"{format_path(steps) or 'args'}: {error}") from None
    if reference is not None:
        yield format_path(steps), reference
    elif len(steps) < _MAX_DEPTH:
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for step, item in items:
            if type(item) not in _SCALARS:
                yield from find_references(item, (*steps, step))


def substitute(args: Any, values: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return args with references replaced by their values, which `values` has by key and name. What is filled in is
    not searched for references."""
    reference = parse_reference(args)
    if reference is not None and reference.name in values.get(reference.key, ()):
        return values[reference.key][reference.name]
    if isinstance(args, Mapping):
        return {key: substitute(value, values) for key, value in args.items()}
    if isinstance(args, list):
        return [substitute(value, values) for value in args]
    return args


def parent_of(name: str, parents: Iterable[str]) -> str | None:
    """Return the parent whose result a reference names: keys may contain dots, and the longest one counts."""
    return max((key for key in parents if name == key or name.startswith(f"{key}.")), key=len, default=None)


def result_at(name: str, upstream: Mapping[str, Upstream]) -> Any:
    """Return what a reference such as `extract.rows` or `extract.files.0` stands for. Raises `Fail`."""
    reference, key = f'{{"{RESULT_KEY}": "{name}"}}', parent_of(name, upstream)
    if key is None:
        raise Fail(f"{reference} names no parent of this job (it has {', '.join([*upstream][:20]) or 'none'})")
    parent = upstream[key]
    if parent.status != "succeeded":
        raise Fail(f"{reference}: {key} (job {parent.job_id}) has not succeeded; it is {parent.status}")
    value = parent.result
    for step in name[len(key) + 1 :].split(".") if name != key else ():
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise Fail(f"{reference}: the result of {key} (job {parent.job_id}) has no such path")
    if isinstance(value, Mapping) and value.keys() == {"$dropped"}:
        raise Fail(f"{reference}: the result of {key} (job {parent.job_id}) was not kept: {value['$dropped']}")
    return value


def resolve_results(args: Mapping[str, Any], upstream: Mapping[str, Upstream]) -> dict[str, Any]:
    """Return the results that args refer to, by the names in the references. Raises `Fail`."""
    try:
        references = [reference for _, reference in find_references(args)]
    except BadReference as error:
        raise Fail(f"args: {error}") from None
    return {name: result_at(name, upstream) for key, name in references if key == RESULT_KEY}


def outside_refs(errors: list[ArgError], args: Mapping[str, Any]) -> list[ArgError]:
    """Drop errors that a reference may have caused: only the worker knows the value. An invalid one is an error."""
    try:
        paths = [path for path, _ in find_references(args)]
    except BadReference as error:
        return [*errors, ("", str(error))]
    within = tuple(f"{path}{separator}" for path in paths for separator in ".[")
    return [e for e in errors if not paths or (e[0] and e[0] not in paths and not e[0].startswith(within))]


def result_errors(args: Mapping[str, Any], parents: Collection[str]) -> list[ArgError]:
    """What is wrong with references to results in the args of a job that waits for `parents`."""
    with suppress(BadReference):  # an error of a known task's args already
        return [
            (path, "refers to the result of a job that this one does not wait for; name its parents in `after`")
            for path, reference in find_references(args)
            if reference.key == RESULT_KEY and parent_of(reference.name, parents) is None
        ]
    return []


def path_of_arg(path: str) -> str:
    """The path of a value in the args within a request."""
    if not path:
        return "args"
    return f"args{path}" if path.startswith("[") else f"args.{path}"
