"""What routes and pages are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from dataloader.app.acts.feature import Feature, NavLink
from dataloader.app.acts.web import ActRunner
from dataloader.app.db.pool import Pool
from dataloader.app.db.statements import Executor
from dataloader.app.http.jobs.job_maker import JobMaker
from dataloader.app.http.jobs.watcher import JobWatcher
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Site:
    """The service as its routes and pages see it."""

    queue: JobQueue
    pipelines: Pipelines
    options: WebOptions
    features: Sequence[Feature]
    jobs: JobMaker
    watcher: JobWatcher
    runner: ActRunner
    closing: threading.Event  # ends waiting requests and streams
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    pool: Pool | None = None
    probe: Callable[[], Mapping[str, Any]] | None = None
    _shared: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    @property
    def executor(self) -> Executor:
        return self.queue.executor

    @property
    def navigation(self) -> list[NavLink]:
        return [link for feature in self.features for link in feature.navigation]

    def shared(self, make: Callable[[Site], T]) -> T:
        """Return what `make` returns of this site: it is called once."""
        if make not in self._shared:
            self._shared[make] = make(self)
        result: T = self._shared[make]
        return result
