"""What a task requires of the worker processes that run it: labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MAX_LABELS = 20
# As in dataloader.app.config.values, which reads the labels of a worker.
_LABEL_NAME, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_.-]{0,62}"), re.compile(r"(?!true$|false$)[A-Za-z0-9_.:/-]{1,63}")


def check_requirements(requires: Any) -> None:
    """Raises TypeError or ValueError."""
    if not isinstance(requires, Mapping):
        raise TypeError(f'requires maps labels to values, such as {{"gpu": True, "spot": False}}, not {requires!r}')
    if len(requires) > _MAX_LABELS:
        raise ValueError(f"a task requires at most {_MAX_LABELS} labels, not {len(requires)}")
    for name, value in requires.items():
        if not isinstance(name, str) or not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"a label has 1 to 63 of a-z, 0-9, _ . and -, and begins with a letter: not {name!r}")
        if not isinstance(value, bool) and not (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)):
            raise ValueError(f"label {name!r} is True, False or a text of 1 to 63 characters, not {value!r}")
