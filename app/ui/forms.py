"""Forms that are checked by the model of the API, so that page and API refuse the same values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, overload

from annotated_types import Ge, Le
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from dataloader.app import wording
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.schemas import field_errors
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, parse_fields, parse_json_object, parse_time

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


def text_fields(model: type[BaseModel]) -> dict[str, Any]:
    """The texts of a form for each field of a model, as `create_model` takes them; empty by default."""
    return {
        name: (
            FormText if _types(info.annotation).isdisjoint({dict, list}) else str,
            Field("", description=info.description),
        )
        for name, info in model.model_fields.items()
    }


@overload
def parse_form(model: None, form: BaseModel, preset: Mapping[str, Any], zone: str) -> None: ...
@overload
def parse_form(model: type[_Model], form: BaseModel, preset: Mapping[str, Any], zone: str) -> _Model: ...
def parse_form(model: type[_Model] | None, form: BaseModel, preset: Mapping[str, Any], zone: str) -> _Model | None:
    """Make the model of a form's texts and of values that are preset. Raises InvalidForm."""
    if model is None:
        return None
    texts = {name: getattr(form, name, "") for name in model.model_fields if name not in preset}
    return validate_form(model, {**parse_texts(model, texts, zone), **preset})


def parse_texts(model: type[BaseModel], texts: Mapping[str, str], zone: str) -> dict[str, Any]:
    """Parse texts as the types of a model's fields; empty ones are left out.

    A field `…_sec` is a duration, a list has one item a line or between commas, a time without an offset is in the
    zone. Raises InvalidForm with the errors of all fields.
    """
    fields = {name: text.strip() for name, text in texts.items() if text.strip()}
    return parse_fields({
        name: partial(_parse_text, name, model.model_fields[name], text, zone)
        for name, text in fields.items()
    })  # fmt: skip


def _parse_text(name: str, field: FieldInfo, text: str, zone: str) -> Any:
    types = _types(field.annotation)
    if dict in types:
        value, errors = parse_json_object(name, text, MAX_JSON_DEPTH)
        if errors:
            raise InvalidForm.from_errors(errors)
        return value
    if list in types:
        return [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]
    if datetime in types:
        moment = parse_time(name, text, zone)
        return moment and moment.isoformat()
    if bool in types:
        return text == "yes"
    if not {int, float} & set(types):
        return text
    number = parse_duration(name, text) if name.endswith("_sec") else parse_number(text)
    if isinstance(number, str):
        kind = "number" if float in types else "whole number"
        raise InvalidForm.at_field(name, f"{text!r} is not a {kind}{_describe_range(field)}")
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _describe_range(field: FieldInfo) -> str:
    """Such as " from 0 to 100"; empty without both limits."""
    limits = {type(limit): limit for limit in (*field.metadata, *_limits(field.annotation))}
    if Ge in limits and Le in limits:
        return f" from {limits[Ge].ge} to {limits[Le].le}"
    return ""


def _limits(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        yield from (argument.metadata if isinstance(argument, FieldInfo) else [argument])
        yield from _limits(argument)


def _types(annotation: Any) -> set[Any]:
    """The types of a field, without limits and alternatives."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types(arguments[0])
    if origin in (Union, UnionType):
        return set().union(*map(_types, arguments))
    return {origin or annotation}


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
