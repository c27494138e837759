"""Args of a task as a model and as a JSON Schema."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    name: str


class Rates(BaseModel):
    model_config = ConfigDict(extra="forbid")

    day: date
    currencies: list[Literal["USD", "EUR"]] = []
    rows: list[Row] = []


SCHEMA = {
    "type": "object",
    "required": ["day"],
    "additionalProperties": False,
    "properties": {
        "day": {"type": "string", "format": "date"},
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "rows": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "mode": {"enum": ["full", "delta"]},
    },
}
