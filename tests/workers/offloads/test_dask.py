"""What needs no Dask to be shown of its executor."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dataloader.pipelines.executors import dask_remote
from dataloader.pipelines.executors.dask import DaskExecutor
from dataloader.pipelines.offload import EngineRefused, OffloadFailed, OffloadSpec, RemoteState, ResultUnreadable
from tests.workers.offloads import functions

OURS, OTHER = f"{dask_remote.python_version()}.0.final.0", "2.7.18.final.0"


class Cluster:
    """Stands for a client and its scheduler."""

    def __init__(self) -> None:
        self.scheduler, self.worker, self.later = OURS, OURS, [OURS]
        self.task_state: tuple[bool, str | None] = (False, None)
        self.accepts = True  # what is submitted
        self.ran: list[str] = []  # on the scheduler
        self.answer: dict[str, Any] = {}  # of a task

    def get_versions(self) -> dict[str, Any]:
        machines = [{"host": {"python": version}} for version in (self.scheduler, self.worker)]
        return {"scheduler": machines[0], "workers": {"a": machines[1], "b": None}}

    def run_on_scheduler(self, call: Callable[..., Any], *args: Any) -> Any:
        self.ran.append(call.__name__)
        return {"allowed_failures": 0, "task_state": self.task_state, "worker_pythons": self.later}[call.__name__]

    def submit(self, *args: Any, **options: Any) -> Any:
        self.ran.append("submit")
        self.task_state = (True, "processing" if self.accepts else None)
        error = ImportError("no module named acme")
        return SimpleNamespace(status="pending" if self.accepts else "error", exception=lambda timeout: error)

    def get_dataset(self, name: str) -> Any:
        return SimpleNamespace(result=lambda timeout: self.answer)

    def publish_dataset(self, future: Any, **options: Any) -> None: ...
    def unpublish_dataset(self, name: str) -> None:
        self.ran.append("unpublish")

    def close(self, timeout: float) -> None: ...


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    modules: dict[str, Any] = {name: ModuleType(name) for name in ("distributed", "cloudpickle")}
    modules["distributed"].Client = lambda *args, **options: made
    modules["cloudpickle"].register_pickle_by_value = lambda module: None
    modules["cloudpickle"].dumps = lambda value: b"pickled"
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.mark.parametrize("machine", ["scheduler", "worker"])
def test_other_python_is_refused_before_any_code_is_sent(cluster: Cluster, machine: str):
    setattr(cluster, machine, OTHER)

    with pytest.raises(EngineRefused, match="the cluster has 2.7.18"):
        DaskExecutor({"address": "tcp://x"}).status("dl-x-1")
    assert cluster.ran == []


def test_worker_that_joined_with_another_python_is_refused(cluster: Cluster):
    engine = DaskExecutor({"address": "tcp://x"})
    engine.submit("dl-x-1", OffloadSpec(call=print))
    assert "submit" in cluster.ran

    cluster.task_state, cluster.later = (False, None), [OURS, OTHER]

    with pytest.raises(EngineRefused, match="the cluster has 2.7.18"):
        engine.submit("dl-x-2", OffloadSpec(call=print))
    assert cluster.ran.count("submit") == 1


def test_call_that_the_scheduler_does_not_know_is_refused(cluster: Cluster):
    cluster.accepts = False

    with pytest.raises(EngineRefused, match="did not accept the call dl-x-1: no module named acme"):
        DaskExecutor({"address": "tcp://x"}).submit("dl-x-1", OffloadSpec(call=print))
    assert cluster.ran[-1] == "unpublish"


@pytest.mark.parametrize("state", [(False, None), (True, "released")])
def test_result_that_dask_has_lost_is_an_error(cluster: Cluster, state: Any):
    cluster.task_state = state

    with pytest.raises(OffloadFailed, match="does not have the result of dl-x-1"):
        DaskExecutor({"address": "tcp://x"}).result("dl-x-1")


@pytest.mark.parametrize("mode", ["handle", "handle_of_worker"])
def test_result_that_cannot_be_sent_fails_for_good(cluster: Cluster, mode: str):
    payload = pickle.dumps((getattr(functions, mode), ("folder",), {}))
    cluster.answer = dask_remote.call(payload, {}, "dl-x-1", 1_000)
    cluster.task_state = (True, "memory")
    engine = DaskExecutor({"address": "tcp://x"})

    assert engine.status("dl-x-1").state is RemoteState.SUCCEEDED
    with pytest.raises(ResultUnreadable, match="the result of the function cannot be"):
        engine.result("dl-x-1")
