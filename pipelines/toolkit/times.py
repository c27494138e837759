"""Parses the times of sources into aware datetimes of one zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from dataloader.pipelines.toolkit.deprecation import renamed_attributes, renamed_fields
from dataloader.pipelines.toolkit.errors import BadTime

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, Clash="OffsetConflict")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_TIME = re.compile(r"-?\d{9,13}(\.\d+)?")  # shorter runs of digits are dates: 20240131
_MAX_LENGTH = 25  # digits before the point: beyond the calendar; converting more of them could take very long
_MILLISECONDS_FROM = Decimal(10) ** 11  # as seconds that would be the year 5138, as milliseconds it is 1973


class OffsetConflict(StrEnum):
    """How to read a local time that a clock change repeats or skips."""

    REFUSE = "refuse"
    EARLIER = "earlier"  # the first of the two; of a skipped hour, what clocks not yet changed would show
    LATER = "later"


class Unit(StrEnum):
    """The unit of a number that counts from 1970."""

    BY_SIZE = "by size"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


@renamed_fields(clash="offset_conflict")
@dataclass(frozen=True, kw_only=True)
class TimeReader:
    """Reads the times of one source.

    ISO 8601 and Unix numbers are always accepted; `formats` are `strptime` formats tried before them.
    A time without a zone is taken to be in `written_in`, or in `zone` where that is not given.
    """

    zone: tzinfo = field(default_factory=lambda: ZoneInfo("Europe/Moscow"))
    written_in: tzinfo | None = None
    formats: Sequence[str] = ()
    unit: Unit = Unit.BY_SIZE
    offset_conflict: OffsetConflict = OffsetConflict.REFUSE
    not_before: datetime = datetime(1900, 1, 1, tzinfo=UTC)
    not_after: datetime = datetime(2100, 1, 1, tzinfo=UTC)

    def read(self, value: object) -> datetime:
        """Return the time in `zone`. Raises `BadTime`, which names the value."""
        try:
            instant = self._in_source_zone(self._parse(value), value)
            if not self.not_before <= instant <= self.not_after:
                raise BadTime(
                    f"{value!r} would be {instant.isoformat()}; "
                    f"expected one from {self.not_before.isoformat()} to {self.not_after.isoformat()}"
                )
            return instant.astimezone(self.zone)
        except OverflowError as error:
            raise BadTime(f"{value!r} lies outside the calendar") from error

    def _parse(self, value: object) -> datetime:
        if isinstance(value, datetime):
            return value
        if isinstance(value, date):
            return datetime.combine(value, time())
        if isinstance(value, str):
            return self._parse_text(value.strip())
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return self._from_number(value)
        raise BadTime(f"{value!r} is a {type(value).__name__}; expected a time as text or as a Unix number")

    def _parse_text(self, text: str) -> datetime:
        for form in self.formats:
            try:
                return datetime.strptime(text, form)  # noqa: DTZ007 - _in_source_zone adds the zone
            except ValueError:
                continue
        if _UNIX_TIME.fullmatch(text):
            return self._from_number(Decimal(text))
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            tried = ", ".join(map(repr, self.formats))
            raise BadTime(
                f"{text!r} is no time in ISO 8601 nor a Unix number{f' nor of the form {tried}' if tried else ''}"
            ) from None

    def _from_number(self, number: int | float | Decimal) -> datetime:
        try:
            count = Decimal(str(number))
            if not count.is_finite() or count.adjusted() > _MAX_LENGTH:
                raise BadTime(f"{number!r:.60} is no time")
            milliseconds = self.unit is Unit.MILLISECONDS or (
                self.unit is Unit.BY_SIZE and abs(count) >= _MILLISECONDS_FROM
            )
            # Through whole microseconds: a float of seconds would lose the last digits.
            return _EPOCH + timedelta(microseconds=int(count * (1_000 if milliseconds else 1_000_000)))
        except (ValueError, InvalidOperation) as error:
            raise BadTime(f"{number!r:.60} is no time") from error

    def _in_source_zone(self, naive: datetime, value: object) -> datetime:
        if naive.tzinfo is not None:
            return naive.astimezone(UTC)
        zone = self.written_in or self.zone
        first, second = (naive.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() == second.utcoffset():
            return first.astimezone(UTC)
        if self.offset_conflict is OffsetConflict.REFUSE:
            skipped = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != naive
            raise BadTime(
                f"{value!r} {'never happened' if skipped else 'happened twice'} in {zone}, "
                "where the clock was changed; give it an offset, or an OffsetConflict"
            )
        both = sorted((first.astimezone(UTC), second.astimezone(UTC)))
        return both[0] if self.offset_conflict is OffsetConflict.EARLIER else both[1]
