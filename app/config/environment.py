"""The environment that a program started by a command inherits."""

from __future__ import annotations

import os
from collections.abc import Mapping


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with these variables over it."""
    return {**os.environ, **variables}
