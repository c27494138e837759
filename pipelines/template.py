"""Templates with names of a job's arguments, such as `customer:{id}`. There are no expressions in them."""

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
    """`{name}` is replaced by that argument, `{{` and `}}` by braces."""

    text: str

    def __post_init__(self) -> None:
        for _ in self._literals_and_names():
            pass

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self._literals_and_names() if name)

    def fill(self, args: Mapping[str, Any]) -> str:
        """Raises ValueError, naming an argument that is missing."""
        return "".join(
            literal + (self._argument_text(name, args) if name else "") for literal, name in self._literals_and_names()
        )

    def _argument_text(self, name: str, args: Mapping[str, Any]) -> str:
        if name not in args:
            raise ValueError(f"the argument {name!r} is missing, which {self.text!r} needs")
        value = args[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _literals_and_names(self) -> Iterator[tuple[str, str]]:
        """Each literal with the name that follows it."""
        try:
            parts = list(string.Formatter().parse(self.text))
        except ValueError:
            raise ValueError(f"the braces of {self.text!r} do not match; write {{{{ and }}}} for braces") from None
        for literal, name, form, conversion in parts:
            if name is not None and (form or conversion or not _NAME.fullmatch(name)):
                raise ValueError(f"{self.text!r}: only the name of an argument is allowed between braces")
            yield literal, name or ""
