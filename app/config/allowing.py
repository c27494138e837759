"""DL_SECRETS_ALLOW: which secrets the args of which tasks may refer to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_EXAMPLE = 'such as {"crm": ["load.crm", "report.*"], "*": []}'


def of_secrets(told: Any) -> Mapping[str, tuple[str, ...]]:
    """Secret → tasks or patterns of them. "*" stands for the secrets that are not named."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except (ValueError, RecursionError):
            raise ValueError(f"a JSON object would do, {_EXAMPLE}") from None
    if not isinstance(told, Mapping):
        raise ValueError(f"a JSON object would do, {_EXAMPLE}")
    return {_secret(name): _tasks(name, patterns) for name, patterns in told.items()}


def _secret(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f'{name!r} is no secret\'s name: letters, digits, _, - and ., or "*" for those not named')
    return name


def _tasks(name: str, told: Any) -> tuple[str, ...]:
    if not isinstance(told, list | tuple) or not all(isinstance(task, str) and task.strip() for task in told):
        raise ValueError(f"{name!r} has {told!r}; a list of tasks would do, {_EXAMPLE}")
    return tuple(told)
