"""Jobs and outcomes as parameters of statements: lists as arrays, and nothing that PostgreSQL cannot store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, unquoted_array, validate_json
from dataloader.app.queue.job import SUCCEEDED, ClaimedJob, Released, RenewalRequest, Reports, RunRef, Settlement
from dataloader.pipelines.json_values import sanitize_json, sanitize_text

_MAX_ERROR_LENGTH = 8_000
_MAX_TRACEBACK_LENGTH = 64_000
_MAX_FINGERPRINT_LENGTH = 200
_MAX_PROGRESS_BYTES = 64_000
_MAX_RETRY_DELAY_SEC = 366 * 86_400.0


def renew_parameters(requests: Sequence[RenewalRequest], *, max_result_bytes: int) -> dict[str, Any]:
    return {
        "job_ids": unquoted_array(run.job_id for run in requests),
        "run_ids": unquoted_array(run.run_id for run in requests),
        "progress": array(_limited_json(run.progress, _MAX_PROGRESS_BYTES) for run in requests),
        "checkpoints": array(_limited_json(run.checkpoint, max_result_bytes) for run in requests),
        "next_secs": unquoted_array(run.next_sec for run in requests),
    }


def run_parameters(runs: Sequence[RunRef]) -> dict[str, Any]:
    return {
        "job_ids": unquoted_array(run.job_id for run in runs),
        "run_ids": unquoted_array(run.run_id for run in runs),
    }


def progress_parameters(values: Sequence[tuple[RunRef, Mapping[str, Any]]]) -> dict[str, Any]:
    progress = array(_limited_json(value, _MAX_PROGRESS_BYTES) for _, value in values)
    return run_parameters([run for run, _ in values]) | {"progress": progress}


def release_parameters(releases: Sequence[tuple[ClaimedJob, Released]], *, max_result_bytes: int) -> dict[str, Any]:
    jobs, ends = [job for job, _ in releases], [released for _, released in releases]
    return {
        "lock_keys": array(job.lock_key for job in jobs),
        "job_ids": unquoted_array(job.id_text for job in jobs),
        "run_ids": unquoted_array(job.run_text for job in jobs),
        "reasons": array(end.reason.value for end in ends),
        "progress": array(_limited_json(end.progress, _MAX_PROGRESS_BYTES) for end in ends),
        "checkpoints": array(_limited_json(end.checkpoint, max_result_bytes) for end in ends),
        "event_fields": array(_limited_json(end.event_fields, max_result_bytes) for end in ends),
        "reports": _reports_json((job.run_text, end.reports) for job, end in releases),
    }


def settle_parameters(
    settlements: Sequence[tuple[str | UUID, str | UUID, int, Settlement]], *, max_result_bytes: int
) -> dict[str, Any]:
    """The parameters of the statement `settle`, for tuples of (job, run, hash of the lock key, settlement)."""
    plain = [values for values in settlements if values[3] is SUCCEEDED]
    others = [values for values in settlements if values[3] is not SUCCEEDED] if len(plain) < len(settlements) else []
    ends = [settlement for *_, settlement in others]
    return {
        "key_hashes": unquoted_array([key_hash for _, _, key_hash, _ in settlements]),
        "plain_jobs": unquoted_array([values[0] for values in plain]),
        "plain_runs": unquoted_array([values[1] for values in plain]),
        "job_ids": unquoted_array(values[0] for values in others),
        "run_ids": unquoted_array(values[1] for values in others),
        "statuses": array(end.status.value for end in ends),
        "errors": array(_limited_text(end.error, _MAX_ERROR_LENGTH) for end in ends),
        "tracebacks": array(_limited_text(end.traceback, _MAX_TRACEBACK_LENGTH) for end in ends),
        "results": array(_limited_json(end.result, max_result_bytes) for end in ends),
        "progress": array(_limited_json(end.progress, _MAX_PROGRESS_BYTES) for end in ends),
        "checkpoints": array(_limited_json(end.checkpoint, max_result_bytes) for end in ends),
        "pauses": array(bounded_delay(end.retry_in_sec) for end in ends),
        "refunds": array(int(end.refund_attempt) for end in ends),
        "crashes": array(int(end.crashed) for end in ends),
        "event_fields": array(_limited_json(end.event_fields, max_result_bytes) for end in ends),
        "fingerprints": array(_limited_text(end.error_fingerprint, _MAX_FINGERPRINT_LENGTH) for end in ends),
        "reports": _reports_json((str(run), settlement.reports) for _, run, _, settlement in others),
    }


def _reports_json(reports: Iterable[tuple[str, Reports | None]]) -> str | None:
    """What the runs reported, for dl_record_reports; None: nothing."""
    given = [{"run_id": run, **vars(of_run)} for run, of_run in reports if of_run]
    return validate_json("reports", given) if given else None


def _limited_text(text: str | None, max_length: int) -> str | None:
    return None if text is None else sanitize_text(text, max_length)


def _limited_json(value: Any, max_bytes: int) -> str | None:
    return None if value is None else sanitize_json(value, max_bytes)


def bounded_delay(seconds: float) -> float:
    """A delay that a policy computed must not fail the settlements of the same transaction."""
    return min(max(0.0, seconds), _MAX_RETRY_DELAY_SEC)  # in this order: not a number becomes 0
