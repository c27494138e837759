"""Logging: set up once by the process, used everywhere.

    api.py          get(name).info("event", field=…), bound(…), metric(…), audit(…), the events of alerts
    masking.py      hides secrets in every line
    formatters.py   one record as one line: JSON for programs, text for people
    files.py        a rotated file that several processes may share
    setup.py        LogOptions, set_up and tear_down

A library or an embedding process that never calls `set_up` gets ordinary records of the standard library.
"""

from dataloader.app.log.api import (
    Alert,
    Log,
    audit,
    audit_file_enabled,
    bind,
    bound,
    bound_fields,
    file_logging_enabled,
    get,
    metric,
    unbind,
)
from dataloader.app.log.masking import MASK, mask, mask_secret_fields, redact_text, register_secret, secret_forms
from dataloader.app.log.setup import LogOptions, set_up, tear_down

__all__ = [
    "MASK",
    "Alert",
    "Log",
    "LogOptions",
    "audit",
    "audit_file_enabled",
    "bind",
    "bound",
    "bound_fields",
    "file_logging_enabled",
    "get",
    "mask",
    "mask_secret_fields",
    "metric",
    "redact_text",
    "register_secret",
    "secret_forms",
    "set_up",
    "tear_down",
    "unbind",
]
