"""Environment variables that are not settings."""

from __future__ import annotations

import os
from collections.abc import Mapping


def is_colour_disabled() -> bool:
    """Return whether NO_COLOR has any text (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def inherited_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, overridden by `variables`: what a program started by a command inherits."""
    return {**os.environ, **variables}
