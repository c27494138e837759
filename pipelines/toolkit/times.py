"""Times as sources write them, as one kind of `datetime`: aware, and in one zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from zoneinfo import ZoneInfo

from pipelines.toolkit.errors import BadTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX = re.compile(r"-?\d{9,13}(\.\d+)?")  # shorter runs of digits are dates: 20240131
_LONGEST = 25  # digits before the point: far past the calendar, and to write out more of them could take for ever
_MILLISECONDS_FROM = Decimal(10) ** 11  # as seconds that would be the year 5138, as milliseconds it is 1973


class Clash(StrEnum):
    """What to do with a local time that a clock change made happen twice, or not at all."""

    REFUSE = "refuse"
    EARLIER = "earlier"  # the first of the two; of a skipped hour, what clocks not yet changed would show
    LATER = "later"


class Unit(StrEnum):
    """What a bare number counts from 1970."""

    BY_SIZE = "by size"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


@dataclass(frozen=True, kw_only=True)
class TimeReader:
    """Reads the times of one source.

    ISO 8601 and Unix numbers are understood without being told; `formats` are `strptime` formats tried before them.
    A time without a zone is taken to be in `written_in`, or in `zone` where that is not given.
    """

    zone: tzinfo = field(default_factory=lambda: ZoneInfo("Europe/Moscow"))
    written_in: tzinfo | None = None
    formats: Sequence[str] = ()
    unit: Unit = Unit.BY_SIZE
    clash: Clash = Clash.REFUSE
    not_before: datetime = datetime(1900, 1, 1, tzinfo=UTC)
    not_after: datetime = datetime(2100, 1, 1, tzinfo=UTC)

    def read(self, value: object) -> datetime:
        """The time in `zone`; `BadTime`, naming the value, if it cannot be told."""
        try:
            found = self._placed(self._understood(value), value)
            if not self.not_before <= found <= self.not_after:
                raise BadTime(
                    f"{value!r} would be {found.isoformat()}; "
                    f"expected one from {self.not_before.isoformat()} to {self.not_after.isoformat()}"
                )
            return found.astimezone(self.zone)
        except OverflowError as error:
            raise BadTime(f"{value!r} lies outside the calendar") from error

    def _understood(self, value: object) -> datetime:
        if isinstance(value, datetime):
            return value
        if isinstance(value, date):
            return datetime.combine(value, time())
        if isinstance(value, str):
            return self._written(value.strip())
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return self._counted(value)
        raise BadTime(f"{value!r} is a {type(value).__name__}; expected a time as text or as a Unix number")

    def _written(self, text: str) -> datetime:
        for form in self.formats:
            try:
                return datetime.strptime(text, form)  # noqa: DTZ007 - a zone is given to it in _placed
            except ValueError:
                continue
        if _UNIX.fullmatch(text):
            return self._counted(Decimal(text))
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            tried = ", ".join(map(repr, self.formats))
            raise BadTime(
                f"{text!r} is no time in ISO 8601 nor a Unix number{f' nor of the form {tried}' if tried else ''}"
            ) from None

    def _counted(self, number: int | float | Decimal) -> datetime:
        try:
            count = Decimal(str(number))
            if not count.is_finite() or count.adjusted() > _LONGEST:
                raise BadTime(f"{number!r:.60} is no time")
            milliseconds = self.unit is Unit.MILLISECONDS or (
                self.unit is Unit.BY_SIZE and abs(count) >= _MILLISECONDS_FROM
            )
            # Through whole microseconds: a float of seconds would lose the last digits.
            return _EPOCH + timedelta(microseconds=int(count * (1_000 if milliseconds else 1_000_000)))
        except (ValueError, InvalidOperation) as error:
            raise BadTime(f"{number!r:.60} is no time") from error

    def _placed(self, found: datetime, value: object) -> datetime:
        if found.tzinfo is not None:
            return found.astimezone(UTC)
        zone = self.written_in or self.zone
        first, second = (found.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() == second.utcoffset():
            return first.astimezone(UTC)
        if self.clash is Clash.REFUSE:
            skipped = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != found
            raise BadTime(
                f"{value!r} {'never happened' if skipped else 'happened twice'} in {zone}, "
                "where the clock was changed; give it an offset, or choose Clash.EARLIER or Clash.LATER"
            )
        both = sorted((first.astimezone(UTC), second.astimezone(UTC)))
        return both[0] if self.clash is Clash.EARLIER else both[1]
