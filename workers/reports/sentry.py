"""Sends failed jobs to Sentry, in processes in which a task package has called `sentry_sdk.init`.

A job is reported once, when it has failed for good: where the exception is, in the thread or the isolated process that
ran the task. A failure without an exception, such as a killed process, is reported by its log line's writer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dataloader.app import log
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines.json_values import sanitize_text

_log = log.get(__name__)
_TAGS = ("task", "queue", "job", "attempt")
_FLUSH_TIMEOUT_SEC = 2.0
_MAX_TEXT_LENGTH = 8_000
# Of the lines about failures, which Sentry would take for further events.
_LOGGERS = ("dataloader.workers.reports.attempt_log", __name__)


def report_error(error: BaseException, job: ClaimedJob, *, before_exit: bool = False) -> bool:
    """Report a job that fails with this exception; return False where Sentry is not set up."""
    sdk = _find_sdk()
    if sdk is None:
        return False
    tags = {"task": job.task, "queue": job.queue, "job": job.id_text, "attempt": job.attempt}
    try:
        event, hint = sdk.utils.event_from_exception(
            error, client_options=sdk.get_client().options, mechanism={"type": "dataloader", "handled": False}
        )
        _send(sdk, {**event, "exception": log.mask(_cut_texts(event["exception"]))}, tags, hint)
        if before_exit:
            sdk.flush(timeout=_FLUSH_TIMEOUT_SEC)
    except Exception:  # in the SDK or in a hook of its user: the attempt ends as it does without Sentry
        _log.exception("sentry.report_failed")
    return True


def report_failure(fields: Mapping[str, Any]) -> None:
    """Report a job that failed without an exception, with the fields of its log line."""
    sdk = _find_sdk()
    if sdk is None:
        return
    try:
        message = log.mask(f"{fields['task']}: {fields['error'] or fields['reason']}")
        fingerprint = ["dataloader", fields["task"], fields["reason"]]
        _send(sdk, {"message": message, "fingerprint": fingerprint}, fields, {})
    except Exception:
        _log.exception("sentry.report_failed")


def _find_sdk() -> Any:
    """Return the module `sentry_sdk` if it is set up, else None."""
    sdk = sys.modules.get("sentry_sdk")
    if sdk is None or not sdk.is_initialized():
        return None
    for name in _LOGGERS:
        sdk.integrations.logging.ignore_logger(name)
    return sdk


def _send(sdk: Any, event: dict[str, Any], fields: Mapping[str, Any], hint: dict[str, Any]) -> None:
    with sdk.new_scope() as scope:
        for name in _TAGS:
            scope.set_tag(name, str(fields[name]))
        sdk.capture_event({"level": "error", "transaction": fields["task"], **event}, hint=hint)


def _cut_texts(value: Any) -> Any:
    """Return the data with both ends of each long text: masking takes time by its length."""
    if isinstance(value, str):
        return sanitize_text(value, _MAX_TEXT_LENGTH)
    if isinstance(value, dict):
        return {key: _cut_texts(item) for key, item in value.items()}
    return [_cut_texts(item) for item in value] if isinstance(value, list | tuple) else value
