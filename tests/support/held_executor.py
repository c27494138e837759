"""Another executor, held at moments of its work: so that a worker can be killed, or its job canceled, right there.

Work with the key `at-intent` is held before its submission, `at-submit` after it, and `at-end` when the engine shows
its end, until there is a file MOMENT.go in the folder. Each hold adds a byte to MOMENT.held.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataloader.pipelines.executors import find_factory
from dataloader.pipelines.offload import Executor, OffloadSpec, RemoteStatus


class HeldExecutor:
    """Settings: `folder`, and as `of` those of the other executor with its `kind`."""

    def __init__(self, settings: Mapping[str, Any], executor: Executor | None = None) -> None:
        if executor is None:
            inner = dict(settings["of"])
            factory = find_factory(inner.pop("kind"))
            assert factory is not None
            executor = factory(inner)
        self._executor, self._folder = executor, Path(settings["folder"])
        self.runs, self.survives, self.address = executor.runs, executor.survives, executor.address

    def _hold(self, name: str, moment: str) -> None:
        if not name.endswith(f"-{moment}"):
            return
        with (self._folder / f"{moment}.held").open("a") as file:
            file.write("x")
        while not (self._folder / f"{moment}.go").exists():
            time.sleep(0.02)

    def submit(self, name: str, spec: OffloadSpec) -> None:
        self._hold(name, "at-intent")
        self._executor.submit(name, spec)
        self._hold(name, "at-submit")

    def status(self, name: str) -> RemoteStatus:
        status = self._executor.status(name)
        if status.state.is_over:
            self._hold(name, "at-end")
        return status

    def stop(self, name: str) -> None:
        self._executor.stop(name)

    def result(self, name: str) -> Any:
        return self._executor.result(name)

    def delete(self, name: str) -> None:
        getattr(self._executor, "delete")(name)  # noqa: B009 - not in the protocol, which leaves it free

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        return self._executor.logs(name, after)
