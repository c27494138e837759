"""Texts with a job's arguments in them, such as `customer:{id}`: names only, nothing that is computed."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Template:
    """`{name}` stands for that argument, `{{` and `}}` for braces."""

    text: str

    def __post_init__(self) -> None:
        for _ in self._parts():
            pass

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self._parts() if name)

    def fill(self, args: Mapping[str, Any]) -> str:
        """Raises ValueError that names the argument that is missing."""
        return "".join(literal + (self._value(name, args) if name else "") for literal, name in self._parts())

    def _value(self, name: str, args: Mapping[str, Any]) -> str:
        if name not in args:
            raise ValueError(f"the argument {name!r} is missing, which {self.text!r} needs")
        value = args[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Each literal with the name that comes after it."""
        try:
            found = list(string.Formatter().parse(self.text))
        except ValueError:
            raise ValueError(f"the braces of {self.text!r} do not match; write {{{{ and }}}} for braces") from None
        for literal, name, form, conversion in found:
            if name is not None and (form or conversion or not _NAME.fullmatch(name)):
                raise ValueError(
                    f"{self.text!r}: between braces there may be the name of an argument, and nothing else"
                )
            yield literal, name or ""
