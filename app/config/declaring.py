"""Declares settings: the variable, default, meaning and accepted values of a field."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue
from pydantic.fields import FieldInfo


def setting(variable: str, default: Any, meaning: str, accepts: str, *, hidden: bool = False, **limits: Any) -> Any:
    about: dict[str, JsonValue] = {"accepts": accepts, "hidden": hidden}
    return Field(default, validation_alias=variable, description=meaning, json_schema_extra=about, **limits)


def number_setting(variable: str, default: float, meaning: str, low: float, high: float) -> Any:
    accepts = f"a{' whole' if isinstance(default, int) else ''} number from {low:.10g} to {high:.10g}"
    return setting(variable, default, meaning, accepts, ge=low, le=high, allow_inf_nan=False)


def flag_setting(variable: str, default: bool, meaning: str) -> Any:
    return setting(variable, default, meaning, "true or false")


def accepted_values(field: FieldInfo) -> str:
    about = field.json_schema_extra
    return str(about["accepts"]) if isinstance(about, dict) else ""


def is_secret(field: FieldInfo) -> bool:
    about = field.json_schema_extra
    return "SecretStr" in str(field.annotation) or (isinstance(about, dict) and about["hidden"] is True)
