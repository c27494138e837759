"""Numbers as sources write them: 82,500.10 · 92,5058 · 312.45K · -1.2% · null."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_SUFFIXES = {"": 1, "%": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NOTHING = frozenset({"", "-", "–", "—", "n/a", "null", "nan"})
_BLANKS = "\u0020\u00a0\u202f"
_LONGEST = 60


class BadAmount(ValueError):
    """A text that is no number."""


@dataclass(frozen=True)
class Numbers:
    """How a source writes numbers in texts."""

    decimal: str = "."
    thousands: str = ","

    def read(self, value: Any) -> Decimal | None:
        """None for what a source writes when it has none; `BadAmount` for what is no number."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise BadAmount(f"a {type(value).__name__} where a number was expected")
        if not isinstance(value, str):
            return Decimal(str(value))
        text = value.strip().replace("\u2212", "-")  # a minus of typographers
        if text.lower() in _NOTHING:
            return None
        suffix = text[-1].upper() if text[-1].upper() in _SUFFIXES else ""
        digits = text[: len(text) - len(suffix)].strip()
        if len(digits) > _LONGEST or not re.fullmatch(self._form, digits):
            raise BadAmount(f"{value[:_LONGEST]!r} is no number")
        plain = re.sub(self._between, "", digits).replace(self.decimal, ".")
        return Decimal(plain) * _SUFFIXES[suffix]

    @property
    def _between(self) -> str:
        return f"[{re.escape(self.thousands)}{_BLANKS}]"

    @property
    def _form(self) -> str:
        """Groups of three digits only: the comma of 1,5 is no mark of thousands , but a point nobody told us of."""
        return rf"[+-]?(\d+|\d{{1,3}}({self._between}\d{{3}})+)({re.escape(self.decimal)}\d+)?"
