"""Numbers as sources write them: 82,500.10 · 92,5058 · 312.45K · -1.2% · null."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_SUFFIXES = {"": 1, "%": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NULL_TEXTS = frozenset({"", "-", "–", "—", "n/a", "null", "nan"})
_SPACES = "\u0020\u00a0\u202f"
_MAX_LENGTH = 60


class BadAmount(ValueError):
    """A text that is no number."""


@dataclass(frozen=True)
class NumberFormat:
    """How a source writes numbers in texts."""

    decimal: str = "."
    thousands: str = ","

    def parse(self, value: Any) -> Decimal | None:
        """Return the number, or None for a text that means no value. Raises `BadAmount`."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise BadAmount(f"a {type(value).__name__} where a number was expected")
        if not isinstance(value, str):
            return Decimal(str(value))
        text = value.strip().replace("\u2212", "-")  # a minus of typographers
        if text.lower() in _NULL_TEXTS:
            return None
        suffix = text[-1].upper() if text[-1].upper() in _SUFFIXES else ""
        digits = text[: len(text) - len(suffix)].strip()
        if len(digits) > _MAX_LENGTH or not re.fullmatch(self._pattern, digits):
            raise BadAmount(f"{value[:_MAX_LENGTH]!r} is no number")
        plain = re.sub(self._thousands_separators, "", digits).replace(self.decimal, ".")
        return Decimal(plain) * _SUFFIXES[suffix]

    @property
    def _thousands_separators(self) -> str:
        return f"[{re.escape(self.thousands)}{_SPACES}]"

    @property
    def _pattern(self) -> str:
        """Thousands come in groups of three digits, so the comma of 1,5 is not read as a thousands separator."""
        return rf"[+-]?(\d+|\d{{1,3}}({self._thousands_separators}\d{{3}})+)({re.escape(self.decimal)}\d+)?"
