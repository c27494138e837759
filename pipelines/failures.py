"""Texts and causes of the errors that tasks raise. Portable."""

from __future__ import annotations

import traceback

from dataloader.pipelines.context import Stop

_CANCELLATION_SQLSTATES = ("57014", "57P01")  # a statement was canceled, a session terminated
_COMMAND_LINE_PARSERS = ("argparse", "optparse", "click")
_USAGE_ERROR = 2  # their exit code


def caused_by_stop(error: BaseException) -> bool:
    """Whether the error results from our stop: a Stop wrapped by the pipeline's clean-up or by an exception group, or
    a statement that was canceled."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        sqlstate = getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)  # of psycopg2, psycopg 3
        if isinstance(cause, Stop) or sqlstate in _CANCELLATION_SQLSTATES:
            return True
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            pending += [cause.__context__, cause.__cause__, *members_of_group(cause)]
    return False


def members_of_group(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of an exception group, which Python has since 3.11; of other errors, nothing."""
    members = getattr(error, "exceptions", None)
    return tuple(e for e in members if isinstance(e, BaseException)) if isinstance(members, tuple) else ()


def describe_error(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # its own __str__ may fail
        text = "(it could not be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def usage_hint(error: BaseException, *, has_command_line: bool) -> str:
    """A hint for a callable that parsed a command line that is not its own; else an empty string."""
    if not isinstance(error, SystemExit) or error.code != _USAGE_ERROR or has_command_line:
        return ""
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.partition(".")[0] in _COMMAND_LINE_PARSERS for module in modules):
        return ""
    return (
        "; it has parsed a command line, and as a task it has none of its own: give it one by the option"
        ' argv, such as ["--date", "{date}"]'
    )
