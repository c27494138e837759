"""Errors of the toolkit that a pipeline can react to.

ToolkitError
├── SourceError               an HTTP request failed; `retry_after` if the source sent it
│   ├── SourceUnreachable     no connection: name, network, TLS
│   ├── SourceBusy            429 or 503, or another sign that a later try may do better
│   ├── SourceStalled         connected, then silent
│   ├── SourceTooSlow         not done by the deadline
│   ├── SourceTruncated       the answer ended before it was whole
│   ├── SourceAnswered        a status that says no                                         permanent
│   ├── SourceTooLarge        more than was allowed                                         permanent
│   ├── SourceRefused         we will not go where it sends us                              permanent
│   └── SourceBroken          an answer that is not what it says it is                      permanent
├── DecodeError               what was fetched cannot be read                               permanent
│   ├── BadRecord             one record, named by its line
│   ├── TooManyRejects        more bad records than the load tolerates
│   ├── TruncatedArchive      the archive ends in the middle                                not permanent
│   ├── BrokenArchive         not an archive, or damaged
│   └── ExpandsTooMuch        a bomb, or a limit set too low
├── LoadError                 PostgreSQL's side
│   ├── NoSuchTarget          the table or a column of it is not there                      permanent
│   ├── UnsuitableValue       a value no column of that kind can hold, named by row, column permanent
│   ├── NotReplaceable        replacing this table would break what depends on it           permanent
│   ├── TooFewRows            not enough to replace what is there
│   └── TargetBusy            others kept the table locked for the whole wait
├── BadTime                   a time that cannot be parsed                                  permanent
└── UnsafePath                a name that would lead out of its folder                      permanent
"""

from __future__ import annotations


class ToolkitError(Exception):
    """Base class of the toolkit's errors."""

    permanent = False  # True: a retry would fail in the same way


class SourceError(ToolkitError):
    """A request to a source failed."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds, as requested by the source


class SourceUnreachable(SourceError):
    pass


class SourceBusy(SourceError):
    pass


class SourceStalled(SourceError):
    pass


class SourceTooSlow(SourceError):
    pass


class SourceTruncated(SourceError):
    pass


class SourceAnswered(SourceError):
    """The source responded with an error status."""

    permanent = True

    def __init__(self, message: str, *, status: int, body: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = body  # its beginning, for people


class SourceTooLarge(SourceError):
    permanent = True


class SourceRefused(SourceError):
    permanent = True


class SourceBroken(SourceError):
    permanent = True


class DecodeError(ToolkitError):
    permanent = True


class BadRecord(DecodeError):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class TooManyRejects(DecodeError):
    pass


class TruncatedArchive(DecodeError):
    permanent = False  # the next download may be whole


class BrokenArchive(DecodeError):
    pass


class ExpandsTooMuch(DecodeError):
    pass


class LoadError(ToolkitError):
    pass


class NoSuchTarget(LoadError):
    permanent = True


class UnsuitableValue(LoadError):
    permanent = True

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(f"row {row}, column {column!r}: {reason}")
        self.row = row  # counted from 1, in the order the rows were given
        self.column = column
        self.reason = reason


class NotReplaceable(LoadError):
    permanent = True


class TooFewRows(LoadError):
    pass


class TargetBusy(LoadError):
    pass


class BadTime(ToolkitError, ValueError):
    permanent = True


class UnsafePath(ToolkitError, ValueError):
    permanent = True
