"""The form of a schedule: all its fields as texts, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from pydantic import Field, create_model

from dataloader.app.features.schedules.acts import NewSchedule
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.ui.base import FormModel, FormText
from dataloader.app.ui.forms import parse_texts, text_fields
from dataloader.pipelines.schedule_definition import ScheduleDefinition
from dataloader.pipelines.schedule_fields import SCHEDULE_FIELDS, Kind, ScheduleField

MAIN_FIELDS = [field for field in SCHEDULE_FIELDS.values() if field.label and field.is_main]
ADVANCED_FIELDS = [field for field in SCHEDULE_FIELDS.values() if field.label and not field.is_main]
_SHOWN = ["task", *(field.name for field in (*MAIN_FIELDS, *ADVANCED_FIELDS))]
_WIDE_KINDS = (Kind.DATASETS, Kind.DAYS, Kind.ARGS, Kind.LIMITS, Kind.RETRY)
_INPUT_TYPES = {Kind.NUMBER: "number", Kind.SECONDS: "number", Kind.MOMENT: "datetime-local"}


class PreviewFields(FormModel):
    """A schedule, as a form has it; also the address of a preview that is not saved."""

    preview_from: FormText = Field("", description="Preview times after this one.")

    if TYPE_CHECKING:  # of the fields of a schedule, those that the pages read by name
        name: str = ""
        expression: str = ""
        after: str = ""
        is_paused: str = ""

    def to_values(self, zone: str) -> dict[str, Any]:
        """The fields that hold a value, as the API takes them. Times without an offset are in the zone. Raises
        InvalidForm."""
        values = parse_texts(ScheduleDefinition, {name: getattr(self, name) for name in _SHOWN}, zone)
        values.pop("expression" if values.get("kind") == "dataset" else "after", None)
        return values

    def changes(self, current: ScheduleDefinition, zone: str) -> dict[str, Any]:
        """What the form changes of a schedule; a field that was emptied has its default. Raises InvalidForm."""
        values, shown = self.to_values(zone), texts_of(current, zone)
        return {
            name: values.get(name, _default(name))
            for name, text in shown.items()
            if name in self.model_fields_set and _normalized(getattr(self, name)) != _normalized(text)
        }


if TYPE_CHECKING:
    ScheduleFields = PreviewFields
else:
    _TEXTS = {name: text for name, text in text_fields(NewSchedule).items() if name in (*_SHOWN, "name", "is_paused")}
    ScheduleFields = create_model("ScheduleFields", __base__=PreviewFields, **_TEXTS)


def input_of(field: ScheduleField) -> dict[str, Any]:
    """What the template needs of the input of a field."""
    default = "" if field.kind in _WIDE_KINDS or field.default is None else field.default
    attributes: dict[str, Any] = {"min": field.minimum} if field.kind in (Kind.NUMBER, Kind.SECONDS) else {}
    if field.kind is Kind.ZONE:
        attributes["list"] = "zones"
    return {
        "type": _INPUT_TYPES.get(field.kind, "text"),
        "default": default,
        "is_wide": field.kind in _WIDE_KINDS,
        "rows": 3 if field.kind is Kind.ARGS else 2,
        "example": '{"day": "{interval_start:%Y-%m-%d}"}' if field.kind is Kind.ARGS else "",
        "attributes": attributes,
    }


def texts_of(definition: ScheduleDefinition, zone: str) -> dict[str, str]:
    """What the form shows of a schedule, with its times in this zone and without the secrets in its args."""
    return {name: _text(mask_secret_fields(getattr(definition, name)), zone) for name in _SHOWN}


def _default(name: str) -> Any:
    return ScheduleDefinition.model_fields[name].get_default(call_default_factory=True)


def _text(value: Any, zone: str) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, indent=2)
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _normalized(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
