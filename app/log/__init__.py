"""Logging: set up once by the process, spoken to everywhere.

    speaking.py   get(name).info("event", field=…), bound(…), metric(…), audit(…), the events that alerts rely on
    masking.py    what must not be seen in any line
    lines.py      one record as one line: JSON for programs, text for people
    files.py      a file that is put aside in time, shared by processes, and never in a job's way
    setup.py      LogOptions and set_up: handlers on, handlers off

A library or an embedding process that never calls `set_up` gets ordinary records of the standard library.
"""

from app.log.masking import conceal, hide, mask, scrub
from app.log.setup import LogOptions, gathered, set_up, tear_down
from app.log.speaking import (
    Alert,
    Log,
    audit,
    bind,
    bound,
    bound_fields,
    get,
    is_audited,
    lines_are_kept,
    metric,
    unbind,
)

__all__ = [
    "Alert",
    "Log",
    "LogOptions",
    "audit",
    "bind",
    "bound",
    "bound_fields",
    "conceal",
    "gathered",
    "get",
    "hide",
    "is_audited",
    "lines_are_kept",
    "mask",
    "metric",
    "scrub",
    "set_up",
    "tear_down",
    "unbind",
]
