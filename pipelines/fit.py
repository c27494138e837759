"""Whether a job's args are what its task takes: by a pydantic model, or by a JSON Schema.

No fault repeats a value, which may be a secret. Names of fields are told, and what an author's own validator says.
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

FieldFault = tuple[str, str]  # where, such as `rows[3].name`; and what is wrong there

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_NAME, _LONGEST_MESSAGE, _MOST_TOLD = 64, 300, 20
MISSING, UNKNOWN = "is required", "is no argument of this task; leave it out"
_MESSAGES = {
    "missing": MISSING,
    "extra_forbidden": UNKNOWN,
    "union_tag_invalid": "is of a kind that this task does not know",  # the library repeats the tag
    "uuid_parsing": "Input should be a valid UUID",  # and here what it stumbled over
}


class Unfit(Exception):
    """The args do not fit."""

    def __init__(self, faults: Iterable[FieldFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{where or 'args'}: {what}" for where, what in self.faults[:_MOST_TOLD]))


class Fit(Protocol):
    @property
    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""

    def read(self, args: Mapping[str, Any]) -> Any:
        """The args as the task wants them; raises `Unfit` with all faults."""


def fit_of(told: Any) -> Fit:
    """From what an author gave as `args`. Raises TypeError or ValueError."""
    if isinstance(told, type) and hasattr(told, "model_validate_json"):
        return ModelFit(told)
    if isinstance(told, Mapping):
        return SchemaFit(dict(told))
    raise TypeError(f"args is a pydantic model or a JSON Schema as a dict, not {told!r}")


@dataclass(frozen=True)
class ModelFit:
    model: type[BaseModel]

    @property
    def schema(self) -> dict[str, Any]:
        from pydantic import PydanticUserError  # noqa: PLC0415 - loaded already, by who made the model

        try:
            return self.model.model_json_schema()
        except PydanticUserError:  # it holds what JSON Schema has no word for
            return {"type": "object"}

    def read(self, args: Mapping[str, Any]) -> Any:
        from pydantic import ValidationError  # noqa: PLC0415 - loaded already, by who made the model

        try:
            # As JSON, or "2024-01-31" would be no date for a strict model.
            return self.model.model_validate_json(json.dumps(args))
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False, include_context=False)
            raise Unfit((path(detail["loc"]), _message(detail)) for detail in details) from None
        except Exception as error:
            raise Unfit([("", f"could not be checked: the task's model raised {type(error).__name__}")]) from error


def _message(detail: ErrorDetails) -> str:
    return _MESSAGES.get(detail["type"], detail["msg"])


@dataclass(frozen=True)
class SchemaFit:
    schema: dict[str, Any]

    def __post_init__(self) -> None:
        from jsonschema_rs import validator_for  # noqa: PLC0415 - only where needed

        try:
            # Offline: references lead nowhere but into the schema itself.
            checker = validator_for(self.schema, validate_formats=True, mask="it", offline=True)
        except ValueError as error:
            raise ValueError(f"args is no JSON Schema: {str(error).splitlines()[0]}") from None
        object.__setattr__(self, "_checker", checker)

    def read(self, args: Mapping[str, Any]) -> Any:
        errors: Iterable[ValidationError] = self._checker.iter_errors(dict(args))  # type: ignore[attr-defined]
        faults = [fault for error in errors for fault in _told(error)]
        if faults:
            raise Unfit(faults)
        return args


def _told(error: ValidationError) -> list[FieldFault]:
    kind: Any = error.kind
    if kind.name == "required":
        return [(path([*error.instance_path, kind.property]), _MESSAGES["missing"])]
    if kind.name in ("additionalProperties", "unevaluatedProperties"):
        return [(path([*error.instance_path, name]), _MESSAGES["extra_forbidden"]) for name in kind.unexpected]
    return [(path(error.instance_path), error.message.removeprefix("it ")[:_LONGEST_MESSAGE])]


def path(steps: Iterable[str | int]) -> str:
    """As a caller would write it: `rows[3].name`."""
    whole = ""
    for step in steps:
        if isinstance(step, int):
            whole += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            whole += f".{step}" if whole else step
        else:
            whole += f"[{json.dumps(step[:_LONGEST_NAME])}]"
    return whole
