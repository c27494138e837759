"""Forms that are checked by the model of the API, so that page and API refuse the same values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from dataloader.app import wording
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.schemas import field_errors
from dataloader.app.ui.base import FormModel, FormText, InvalidForm

_Model = TypeVar("_Model", bound=BaseModel)
_UNIT_SEC = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class NamingForm(FormModel):
    """A form with the name of a queue or task, which may be misspelt."""

    create: FormText = Field("", description="yes: accept the name of a queue or task that is not known.")

    def require_known(
        self, names: NameCheck, *, queue: str | None = None, task: str | None = None, field: str = ""
    ) -> None:
        """Refuse unknown names, unless `create` is yes.

        `field` is the field that has the name, if it is not `queue` or `task`. Raises InvalidForm.
        """
        found = {} if self.create == "yes" else names.unknown(queue=queue, task=task)
        if found:
            raise InvalidForm.from_errors(FieldError(field or kind, message) for kind, message in found.items())


def validate_form(model: type[_Model], values: Mapping[str, Any], *, names: Mapping[str, str] | None = None) -> _Model:
    """Make the model of the values that are not None. Raises InvalidForm.

    `names` has the fields of the form whose names differ from those of the model, by the model's names.
    """
    try:
        return model.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        known = names or {}
        raise InvalidForm.from_errors(
            FieldError(known.get(found.field, found.field), found.message) for found in field_errors(error)
        ) from None


def validate_fields(
    model: type[_Model], form: BaseModel, *, numbers: Iterable[str] = (), durations: Iterable[str] = (), **others: Any
) -> _Model:
    """Make the model of a form's fields: numbers, durations, and values that are parsed already. Raises InvalidForm."""
    values: dict[str, Any] = {name: parse_number(getattr(form, name)) for name in numbers}
    for name in durations:
        seconds = parse_duration(name, getattr(form, name))
        values[name] = int(seconds) if seconds is not None and seconds.is_integer() else seconds
    return validate_form(model, values | others)


def parse_number(raw: str) -> float | str | None:
    """A number, None for an empty field, or the text itself, which a model refuses with its own message."""
    text = raw.strip()
    if not text:
        return None
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}", text):
        return float(text)
    return text


def parse_duration(field: str, raw: str) -> float | None:
    """Seconds of a text such as `90`, `30m`, `8h` or `1h 30m`; None for an empty field. Raises InvalidForm."""
    text = raw.strip()
    if not text:
        return None
    try:
        return wording.parse_duration(text)
    except ValueError as error:
        raise InvalidForm.at_field(field, str(error)) from None


def format_duration(seconds: float | None) -> str:
    """A duration as `parse_duration` takes it."""
    if seconds is None:
        return ""
    if seconds != int(seconds):
        return f"{seconds:g}"
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _UNIT_SEC[unit] == 0:
            return f"{seconds // _UNIT_SEC[unit]:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds else "0"
