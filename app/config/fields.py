"""How a setting is declared: its variable, default, meaning and accepted values; and the types of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue, SecretStr

from app.config import tasks, values
from app.config.values import QueueWorkers, Rotation


def setting(variable: str, default: Any, meaning: str, accepts: str, *, hidden: bool = False, **limits: Any) -> Any:
    about: dict[str, JsonValue] = {"accepts": accepts, "hidden": hidden}
    return Field(default, validation_alias=variable, description=meaning, json_schema_extra=about, **limits)


def number_setting(variable: str, default: float, meaning: str, low: float, high: float) -> Any:
    accepts = f"a{' whole' if isinstance(default, int) else ''} number from {low:.10g} to {high:.10g}"
    return setting(variable, default, meaning, accepts, ge=low, le=high, allow_inf_nan=False)


def flag_setting(variable: str, default: bool, meaning: str) -> Any:
    return setting(variable, default, meaning, "true or false")


def days_setting(variable: str, default: float, meaning: str) -> Any:
    return number_setting(variable, default, meaning, 0.01, 36_500)


Text = Annotated[str, Field(min_length=1, max_length=values.MAX_NAME_LENGTH, pattern=r"^[^\x00-\x1f\x7f]+$")]
Zone = Annotated[str, BeforeValidator(values.parse_time_zone)]
Identifier = Annotated[str, BeforeValidator(values.parse_identifier)]
FileName = Annotated[str, BeforeValidator(values.parse_file_name)]
Packages = Annotated[tuple[str, ...], BeforeValidator(values.parse_packages)]
Workers = Annotated[tuple[QueueWorkers, ...], BeforeValidator(values.parse_queue_workers)]
Networks = Annotated[tuple[str, ...], BeforeValidator(values.parse_networks)]
AllowedHostList = Annotated[tuple[str, ...], BeforeValidator(values.parse_allowed_hosts)]
WordList = Annotated[tuple[str, ...], BeforeValidator(values.parse_words)]
LogRotation = Annotated[Rotation, BeforeValidator(values.parse_rotation)]
Endpoints = Annotated[Mapping[str, str], BeforeValidator(values.parse_endpoints)]
Targets = Annotated[Mapping[str, SecretStr], BeforeValidator(values.parse_targets)]
Tokens = Annotated[Mapping[str, SecretStr], BeforeValidator(values.parse_tokens)]
TaskRetention = Annotated[Mapping[str, Mapping[str, float]], BeforeValidator(values.parse_task_retention)]
Tasks = Annotated[Mapping[str, Any], BeforeValidator(tasks.parse_tasks)]
SecretTasks = Annotated[Mapping[str, tuple[str, ...]], BeforeValidator(values.parse_secret_tasks)]
