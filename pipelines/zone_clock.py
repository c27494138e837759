"""Days, hours and clock changes of a time zone. Moments are in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
# Files that are no zones of the IANA database: another machine has other times in them, or none.
_LOCAL_NAMES, _LOCAL_FOLDERS = ("localtime", "Factory", "posixrules"), ("posix/", "right/")


def find_zone(name: str) -> ZoneInfo:
    """Return the zone of the IANA database with this name. Raises ValueError."""
    if name in _LOCAL_NAMES or name.startswith(_LOCAL_FOLDERS):
        raise ValueError(f"{name!r} is not the same on each machine")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:
        raise ValueError(f"there is no time zone {name[:100]!r}") from error


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def epoch_hours(moment: datetime) -> float:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) / HOUR


def day_start(day: date, zone: ZoneInfo) -> datetime:
    """Return the first moment of a day, in UTC. If midnight occurs twice, it is the first one."""
    midnight = datetime.combine(day, time(), zone)
    start, other = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    # A midnight that the clock skips: the change lies between both readings of it.
    return offset_change(other, start, zone) if other < start else start


def offset_change(begin: datetime, end: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment at which the offset at `begin` changes. Both are whole seconds, and their offsets differ."""
    offset = offset_at(begin, zone)
    unchanged, changed = 0, int((end - begin) / SECOND)
    while changed - unchanged > 1:
        middle = (unchanged + changed) // 2
        if offset_at(begin + middle * SECOND, zone) == offset:
            unchanged = middle
        else:
            changed = middle
    return begin + changed * SECOND


def offset_changes(begin: datetime, end: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the moments between both at which the offset changes. No zone changes it twice in three days."""
    offset = offset_at(begin, zone)
    while begin < end:
        following = min(begin + 3 * DAY, end)
        following_offset = offset_at(following, zone)
        if following_offset != offset and (change := offset_change(begin, following, zone)) < end:
            yield change
        begin, offset = following, following_offset


def skipped_day_count(begin: datetime, end: datetime, zone: ZoneInfo) -> int:
    """How many days a zone skipped between both, when it moved over the date line. No zone moved twice a year."""
    count, begin, end = 0, begin + SECOND, end - SECOND  # so that no year below begins at a change
    while begin < end:
        following = min(begin + 365 * DAY, end)
        if offset_at(following, zone) - offset_at(begin, zone) > DAY / 2:
            changes = offset_changes(begin, following, zone)
            count += sum(offset_at(c, zone) - offset_at(c - SECOND, zone) > DAY / 2 for c in changes)
        begin = following
    return count
