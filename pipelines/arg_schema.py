"""Validates a job's args with a pydantic model or a JSON Schema.

Errors name fields and repeat no value, which may be a secret, except where an author's own validator does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

ArgError = tuple[str, str]  # path, such as `rows[3].name`, and message

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_NAME_LENGTH, _MAX_MESSAGE_LENGTH, _MAX_LISTED_ERRORS = 64, 300, 20
MISSING, UNKNOWN = "is required", "is no argument of this task; leave it out"
_MESSAGES = {
    "missing": MISSING,
    "extra_forbidden": UNKNOWN,
    "union_tag_invalid": "is of a kind that this task does not know",  # pydantic's message repeats the value, here and below
    "uuid_parsing": "Input should be a valid UUID",
}


class InvalidArgs(Exception):
    """The args do not fit."""

    def __init__(self, errors: Iterable[ArgError]) -> None:
        self.errors = tuple(errors)
        super().__init__(
            "; ".join(f"{path or 'args'}: {message}" for path, message in self.errors[:_MAX_LISTED_ERRORS])
        )


class ArgSchema(Protocol):
    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema."""

    def parse(self, args: Mapping[str, Any]) -> Any:
        """Return the args, as a model where there is one. Raises `InvalidArgs` with all errors."""


def arg_schema_from(declared: Any) -> ArgSchema:
    """Convert the option `args`. Raises TypeError or ValueError."""
    if isinstance(declared, type) and hasattr(declared, "model_validate_json"):
        return ModelArgSchema(declared)
    if isinstance(declared, Mapping):
        return JsonArgSchema(dict(declared))
    raise TypeError(f"args is a pydantic model or a JSON Schema as a dict, not {declared!r}")


@dataclass(frozen=True)
class ModelArgSchema:
    model: type[BaseModel]

    @property
    def schema(self) -> dict[str, Any]:
        from pydantic import PydanticUserError  # noqa: PLC0415 - imported already by the model's author

        try:
            return self.model.model_json_schema()
        except PydanticUserError:  # it has types that JSON Schema does not know
            return {"type": "object"}

    def parse(self, args: Mapping[str, Any]) -> Any:
        from pydantic import ValidationError  # noqa: PLC0415 - imported already by the model's author

        try:
            # From JSON, because a strict model accepts "2024-01-31" as a date only there.
            return self.model.model_validate_json(json.dumps(args))
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False, include_context=False)
            raise InvalidArgs((format_path(detail["loc"]), _message_of(detail)) for detail in details) from None
        except Exception as error:
            raise InvalidArgs(
                [("", f"could not be checked: the task's model raised {type(error).__name__}")]
            ) from error


def _message_of(detail: ErrorDetails) -> str:
    return _MESSAGES.get(detail["type"], detail["msg"])


@dataclass(frozen=True)
class JsonArgSchema:
    schema: dict[str, Any]

    def __post_init__(self) -> None:
        from jsonschema_rs import validator_for  # noqa: PLC0415 - only where needed

        try:
            # Offline: references can only point into the schema itself.
            checker = validator_for(self.schema, validate_formats=True, mask="it", offline=True)
        except ValueError as error:
            raise ValueError(f"args is no JSON Schema: {str(error).splitlines()[0]}") from None
        object.__setattr__(self, "_checker", checker)

    def parse(self, args: Mapping[str, Any]) -> Any:
        errors: Iterable[ValidationError] = self._checker.iter_errors(dict(args))  # type: ignore[attr-defined]
        arg_errors = [arg_error for error in errors for arg_error in _arg_errors(error)]
        if arg_errors:
            raise InvalidArgs(arg_errors)
        return args


def _arg_errors(error: ValidationError) -> list[ArgError]:
    kind: Any = error.kind
    if kind.name == "required":
        return [(format_path([*error.instance_path, kind.property]), _MESSAGES["missing"])]
    if kind.name in ("additionalProperties", "unevaluatedProperties"):
        return [(format_path([*error.instance_path, name]), _MESSAGES["extra_forbidden"]) for name in kind.unexpected]
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
