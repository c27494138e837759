"""What an attempt reported: progress, checks, datasets and its checkpoint, and which of them are saved. Portable."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from dataloader.pipelines.json_values import JsonNull, sanitize_json
from dataloader.pipelines.reports import MAX_LINKS, MAX_REPORTS, Check, DatasetUse

_DATASET_KEY = ("kind", "dataset", "partition")


class ReportedState:
    """Progress and checkpoint as the pipeline reported them, and which of them are saved.

    Both are replaced whole and never changed in place: a value that is not the saved object has to be saved.
    """

    progress: dict[str, Any] | None = None  # written under the lock, read by the heartbeat
    checks: tuple[Mapping[str, Any], ...] = ()  # of this attempt; written under the lock, as the next one
    datasets: tuple[Mapping[str, Any], ...] = ()
    moved = (0, 0)  # rows and bytes that the toolkit has copied; written under the lock
    checkpoint: Any = None  # where the next attempt resumes; the pipeline's thread alone, as the next two
    in_transaction = False
    _transaction_checkpoint: Any = None  # reported in the open transaction, and saved by its commit
    _has_plain_checkpoint = False  # one was reported outside a transaction
    _unsaved_checkpoint: Any = None  # read by the heartbeat
    _saved_progress: dict[str, Any] | None = None  # the heartbeat's, as the next two
    _written_progress: dict[str, Any] | None = None  # in the job's row
    _is_over = False  # progress stays as `_last_progress`; both are written under the lock
    _last_progress: dict[str, Any] | None = None
    _saved_checkpoint: Any = None

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a pipeline may report from several threads

    def replace_progress(self, progress: dict[str, Any]) -> None:
        self.progress = progress

    def merge_progress(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self.replace_progress({**(self.progress or {}), **fields})

    def add_link(self, name: str, url: str) -> None:
        with self._lock:
            links = (self.progress or {}).get("links")
            links = {**(links if isinstance(links, dict) else {}), name: url}
            if len(links) > MAX_LINKS:
                raise ValueError(f"a job has at most {MAX_LINKS} links")
            self.replace_progress({**(self.progress or {}), "links": links})

    def add_check(self, check: Check) -> None:
        with self._lock:
            if len(self.checks) >= MAX_REPORTS:
                raise ValueError(f"an attempt has at most {MAX_REPORTS:,} checks")
            self.checks = (*self.checks, asdict(check))

    def add_dataset(self, use: DatasetUse) -> None:
        """Replaces what was reported of the same dataset and partition."""
        new = asdict(use)
        with self._lock:
            others = [old for old in self.datasets if any(old[key] != new[key] for key in _DATASET_KEY)]
            if len(others) >= MAX_REPORTS:
                raise ValueError(f"an attempt reports at most {MAX_REPORTS:,} datasets")
            self.datasets = (*others, new)

    def add_counts(self, numbers: Mapping[str, int | float]) -> None:
        with self._lock:
            counts = dict((self.progress or {}).get("counts") or {})
            for name, number in numbers.items():
                counts[name] = counts.get(name, 0) + number
            self.replace_progress({**(self.progress or {}), "counts": counts})

    def count_moved(self, rows: int, size: int) -> None:
        with self._lock:
            self.moved = (self.moved[0] + rows, self.moved[1] + size)

    def record_checkpoint(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint
        value = JsonNull.NULL if checkpoint is None else checkpoint
        if self.in_transaction:
            self._transaction_checkpoint = value
        else:
            self._has_plain_checkpoint = True
            self._unsaved_checkpoint = value

    def restore(self, progress_text: str, checkpoint: Any) -> None:
        """Continue from an earlier attempt. Its progress is kept only with a checkpoint: an attempt that starts over
        would count the same rows twice. Progress that cannot be read does not end the job."""
        progress = None
        if checkpoint is not None:
            with suppress(ValueError, RecursionError):
                progress = json.loads(progress_text)
        self.progress = progress if isinstance(progress, dict) and progress else None
        self._saved_progress = self._written_progress = self.progress
        self.checkpoint = checkpoint

    @property
    def has_transaction_checkpoint(self) -> bool:
        """Whether a checkpoint was recorded in the open transaction."""
        return self._transaction_checkpoint is not None

    @contextmanager
    def transaction(
        self, is_commit_unknown: Callable[[], bool] = lambda: False, *, is_saved: bool = True, is_kept: bool = True
    ) -> Iterator[None]:
        """Checkpoints reported within are saved by the transaction's commit and forgotten by its rollback. `is_saved`:
        the commit writes them to the job's row. `is_kept`: the row is to have them at all."""
        before, datasets = self.checkpoint, self.datasets
        self.in_transaction = True
        try:
            yield
        except BaseException:
            if self._transaction_checkpoint is not None and is_commit_unknown():
                self._saved_checkpoint = self._unsaved_checkpoint  # an older one must not replace what may be committed
            self.checkpoint, self._transaction_checkpoint = before, None
            self.datasets = datasets  # what it wrote is rolled back; checks stay
            raise
        finally:
            self.in_transaction = False
        if self._transaction_checkpoint is not None and is_kept:
            self._unsaved_checkpoint = self._transaction_checkpoint
            # With a plain one, an older one may be on its way to the row: save this once more.
            if is_saved and not self._has_plain_checkpoint:
                self._saved_checkpoint = self._transaction_checkpoint
        self._transaction_checkpoint = None

    def checkpoint_to_commit(self) -> Any:
        return self.unsaved()[1] if self._transaction_checkpoint is None else self._transaction_checkpoint

    def end(self) -> None:
        """Leave progress as it is: what a thread that cannot be stopped reports from now on is not saved, since the
        outcome of its attempt has what was reported until now."""
        with self._lock:
            if not self._is_over:
                self._last_progress, self._is_over = self.progress, True

    def _progress_to_save(self) -> dict[str, Any] | None:
        with self._lock:
            return self._last_progress if self._is_over else self.progress

    def unsaved(self) -> tuple[dict[str, Any] | None, Any]:
        """Progress and checkpoint, each None if it is saved."""
        progress = self._progress_to_save()
        return (
            None if progress is self._saved_progress else progress,
            None if self._unsaved_checkpoint is self._saved_checkpoint else self._unsaved_checkpoint,
        )

    def unwritten(self) -> tuple[dict[str, Any] | None, Any]:
        """Progress and checkpoint, each None if the job's row has it."""
        progress = self._progress_to_save()
        return None if progress is self._written_progress else progress, self.unsaved()[1]

    @property
    def is_written(self) -> bool:
        """Whether nothing was reported that the job's row has not."""
        is_saved = self.progress is self._written_progress and self._unsaved_checkpoint is self._saved_checkpoint
        return is_saved and not self.checks and not self.datasets

    def mark_saved(self, saved: tuple[Mapping[str, Any] | None, Any]) -> None:
        """Record that these objects, which `unsaved` returned, were written."""
        progress, checkpoint = saved
        if progress is not None:
            self._saved_progress = progress  # type: ignore[assignment]  # the same object
        if checkpoint is not None:
            self._saved_checkpoint = checkpoint

    def mark_written(self, written: tuple[Mapping[str, Any] | None, Any]) -> None:
        """Record that the job's row has these objects, which `unwritten` returned."""
        self.mark_saved(written)
        if written[0] is not None:
            self._written_progress = written[0]  # type: ignore[assignment]  # the same object


def copy_as_json(value: Any, max_bytes: int, name: str = "this checkpoint") -> Any:
    """A copy as the next attempt reads it, which the pipeline cannot change any more."""
    if value is None or isinstance(value, (bool, int)):
        return value
    copy = json.loads(sanitize_json(value, max_bytes))
    if isinstance(copy, dict) and copy.keys() == {"$dropped"} and not (type(value) is dict and copy == value):
        raise ValueError(f"{name} cannot be kept: {copy['$dropped']}")
    return copy
