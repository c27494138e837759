"""Reads that several features share for one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from dataloader.app.db.statements import Executor

T = TypeVar("T")


class SharedReads:
    """Reads of the database, each executed once however many features use it. A read is a function of an executor, and
    of a module: a method would be another one each time. It belongs to one page, and so to one thread."""

    def __init__(
        self,
        executor: Executor,
        values: Mapping[Callable[[Executor], Any], Any] = MappingProxyType({}),
        *,
        at: datetime | None = None,
    ) -> None:
        """`values`: what reads return without the executor, for tests."""
        self._executor, self._values = executor, dict(values)
        self.at = at or datetime.now(UTC)

    def get(self, read: Callable[[Executor], T]) -> T:
        if read not in self._values:
            self._values[read] = read(self._executor)
        value: T = self._values[read]
        return value
