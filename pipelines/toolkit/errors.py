"""Errors of the toolkit that a pipeline can react to. Those that are `permanent` would fail in the same way again."""

from __future__ import annotations


class ToolkitError(Exception):
    """Base class of the toolkit's errors."""

    permanent = False


class SourceError(ToolkitError):
    """A request to a source failed."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, as requested by the source


class SourceUnreachable(SourceError):
    """No connection: name, network or TLS."""


class SourceBusy(SourceError):
    """Status 408, 425, 429, 500, 502, 503 or 504: a later request may succeed."""


class SourceStalled(SourceError):
    """Connected, then silent."""


class SourceTooSlow(SourceError):
    """The request did not finish by its deadline."""


class SourceTruncated(SourceError):
    """The response ended before it was complete."""


class SourceAnswered(SourceError):
    """The source responded with another error status."""

    permanent = True

    def __init__(self, message: str, *, status: int, body: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = body  # its beginning, for people


class SourceTooLarge(SourceError):
    """The response has more bytes than allowed."""

    permanent = True


class SourceRefused(SourceError):
    """The address, or one that it redirects to, is not allowed."""

    permanent = True


class SourceBroken(SourceError):
    """The response is not in the announced format."""

    permanent = True


class DecodeError(ToolkitError):
    """Fetched data cannot be parsed."""

    permanent = True


class BadRecord(DecodeError):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class TooManyRejects(DecodeError):
    """More bad records than the load allows."""


class TruncatedArchive(DecodeError):
    """The archive ends in the middle; the next download may be complete."""

    permanent = False


class BrokenArchive(DecodeError):
    """The file is damaged, or not an archive."""


class ExpandsTooMuch(DecodeError):
    """A decompression bomb, or a limit that is too low."""


class LoadError(ToolkitError):
    """The rows cannot be loaded into PostgreSQL."""


class NoSuchTarget(LoadError):
    """The table, or one of its columns, does not exist."""

    permanent = True


class UnsuitableValue(LoadError):
    """A value that its column cannot hold."""

    permanent = True

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(f"row {row}, column {column!r}: {reason}")
        self.row = row  # counted from 1, in the order the rows were given
        self.column = column
        self.reason = reason


class NotReplaceable(LoadError):
    """Replacing the table would break what depends on it."""

    permanent = True


class TooFewRows(LoadError):
    """Fewer rows than required to replace the table's content."""


class TargetBusy(LoadError):
    """Other sessions kept the table locked for the whole wait."""


class BadTime(ToolkitError, ValueError):
    """A time that cannot be parsed."""

    permanent = True


class UnsafePath(ToolkitError, ValueError):
    """A name that would lead out of its folder."""

    permanent = True
