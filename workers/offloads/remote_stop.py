"""Stops work on another engine by its name."""

from __future__ import annotations

from dataloader.pipelines.offload import Executor, RemoteState
from dataloader.pipelines.portable import clock

LATE_SUBMISSION_SEC = 20.0
"""An engine may carry out a submission this long after its sender gave up or died."""


class RemoteStop:
    """The stop of one piece of work. While its name is unknown, its submission may still arrive."""

    def __init__(self, executor: Executor, name: str, *, asked_sec: float = 0.0) -> None:
        """Since when the work is to stop: nothing submits it after that."""
        self._executor, self._name = executor, name
        self._until = clock() + max(0.0, LATE_SUBMISSION_SEC - asked_sec) if executor.survives else clock()
        self._is_known = False

    @property
    def may_arrive(self) -> bool:
        return not self._is_known and clock() < self._until

    def has_ended(self) -> bool:
        """Ask the engine, and stop the work if its name is known: again each time, for an engine may lose a stop, too.

        Raises EngineUnavailable."""
        state = self._executor.status(self._name).state
        if state is RemoteState.UNKNOWN:
            return not self.may_arrive
        self._is_known = True
        if state.is_over:
            return True
        self._executor.stop(self._name)
        return self._executor.status(self._name).state.is_over
