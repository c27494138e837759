"""Runs functions on a Dask cluster. Needs the extra `dask`.

A task is found again because it is published under the name. Dask cannot stop code that runs: it is asked to by a
Variable, which `dataloader.pipelines.remote.check` reads.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from dataloader._distribution import NAME
from dataloader.pipelines.executors import check_settings, dask_remote
from dataloader.pipelines.offload import (
    MAX_CALL_BYTES,
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    ResultTooLarge,
    ResultUnreadable,
    unpickle_result,
)

_TIMEOUT_SEC = 10.0
_ACCEPT_CHECK_SEC = 0.05
_NOT_STARTED = ("released", "waiting", "no-worker", "queued")
T = TypeVar("T")


class DaskExecutor:
    """One client a process, made when it is first used. Used by any thread, one at a time."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"function"})
    survives: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = ("distributed", "cloudpickle")  # of the extra

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_settings("dask", settings, required="address", known=("address",))
        self.address = str(settings["address"])
        self._lock = threading.Lock()
        self._client: Any = None  # under the lock

    def _use(self, request: Callable[[Any], T]) -> T:
        """Send a request. After an error the next one connects again."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = self._connect()
                return request(self._client)
            except (EngineRefused, OffloadFailed):
                raise
            except (
                Exception
            ) as error:  # distributed raises OSError, TimeoutError, CommClosedError, FutureCancelledError
                self._disconnect()
                raise EngineUnavailable(f"{type(error).__name__}: {error}") from error

    def _connect(self) -> Any:
        """Raises EngineRefused where a lost task would be run again by Dask itself, or pickles would not fit."""
        try:
            import cloudpickle  # noqa: PLC0415 - an extra
            from distributed import Client  # noqa: PLC0415
        except ImportError as error:
            raise EngineRefused(f"the engine 'dask' needs {NAME}[dask]: {error}") from error
        cloudpickle.register_pickle_by_value(dask_remote)
        client = Client(self.address, timeout=_TIMEOUT_SEC, set_as_default=False)
        try:
            versions = client.get_versions()  # first: what follows runs pickled code on the scheduler
            machines = [versions["scheduler"], *versions["workers"].values()]
            _check_pythons([machine["host"]["python"] for machine in machines if machine])
            failures = client.run_on_scheduler(dask_remote.allowed_failures)
            if failures != 0:
                raise EngineRefused(
                    f"the scheduler runs the task of a lost worker again up to {failures} times: set "
                    "distributed.scheduler.allowed-failures to 0"
                )
        except BaseException:
            client.close(timeout=1)
            raise
        return client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            threading.Thread(target=client.close, args=(1,), daemon=True).start()  # it may wait for the scheduler

    def submit(self, name: str, spec: OffloadSpec) -> None:
        payload = _pickle_call(spec)

        def request(client: Any) -> None:
            if client.run_on_scheduler(dask_remote.task_state, name)[0]:
                return
            _check_pythons(client.run_on_scheduler(dask_remote.worker_pythons))  # workers join and leave
            future = client.submit(
                _ByValue(dask_remote.call), payload, dict(spec.env), name, MAX_CALL_BYTES,
                key=name, retries=0, pure=False, resources=dict(spec.resources) or None,
            )  # fmt: skip
            client.publish_dataset(future, name=name, override=True)
            _check_accepted(client, future, name)

        self._use(request)

    def status(self, name: str) -> RemoteStatus:
        def request(client: Any) -> RemoteStatus:
            is_published, state = client.run_on_scheduler(dask_remote.task_state, name)
            if not is_published or state is None:
                return RemoteStatus(RemoteState.UNKNOWN)
            if state == "erred":
                return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST, "Dask has lost the worker that ran it")
            if state != "memory":
                return RemoteStatus(RemoteState.PENDING if state in _NOT_STARTED else RemoteState.RUNNING)
            return _status_of(self._answer(client, name))

        return self._use(request)

    @staticmethod
    def _answer(client: Any, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.get_dataset(name).result(timeout=_TIMEOUT_SEC)
        return answer

    def stop(self, name: str) -> None:
        """What has not started is taken back; running code is asked to end at its next `remote.check`."""
        from distributed import Variable  # noqa: PLC0415 - an extra; `_use` says if it is missing

        def request(client: Any) -> None:
            is_published, state = client.run_on_scheduler(dask_remote.task_state, name)
            if not is_published:
                return
            if state in _NOT_STARTED:
                client.get_dataset(name).cancel(force=True)
                client.unpublish_dataset(name)
            elif state == "processing":
                Variable(_stop_name(name), client=client).set(True)

        self._use(request)

    def result(self, name: str) -> Any:
        def request(client: Any) -> dict[str, Any]:
            if client.run_on_scheduler(dask_remote.task_state, name) != (True, "memory"):
                raise OffloadFailed(f"Dask does not have the result of {name} any more")
            return self._answer(client, name)

        answer = self._use(request)
        if answer["state"] == "too large":
            raise ResultTooLarge(f"{answer['detail']}: write it to storage, and return its address")
        if answer["state"] == "unreadable":
            raise ResultUnreadable(answer["detail"])
        return unpickle_result(answer["value"])

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        """None: Dask keeps no log of a task."""
        return [], after

    def delete(self, name: str) -> None:
        from distributed import Variable  # noqa: PLC0415 - an extra; `_use` says if it is missing

        def request(client: Any) -> None:
            if client.run_on_scheduler(dask_remote.task_state, name)[0]:
                client.unpublish_dataset(name)
            Variable(_stop_name(name), client=client).delete()

        self._use(request)


class _ByValue:
    """A function that is sent as its code. Dask pickles what it submits by reference if it can, and a scheduler without
    this package drops what it cannot import."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # noqa: PLC0415 - an extra; `_connect` says if it is missing

        return cloudpickle.loads, (cloudpickle.dumps(self._function),)


def _check_accepted(client: Any, future: Any, name: str) -> None:
    """Raise EngineRefused where the scheduler does not know the key: it says only to its own log why."""
    deadline = time.monotonic() + _TIMEOUT_SEC
    while client.run_on_scheduler(dask_remote.task_state, name)[1] is None:
        if future.status in ("error", "cancelled", "lost") or time.monotonic() >= deadline:
            error = future.exception(timeout=1) if future.status == "error" else "its log has the reason"
            client.unpublish_dataset(name)
            raise EngineRefused(f"the scheduler did not accept the call {name}: {error}")
        time.sleep(_ACCEPT_CHECK_SEC)


def _check_pythons(versions: Sequence[str]) -> None:
    """Raises EngineRefused where pickled code would not fit."""
    ours = dask_remote.python_version()
    if wrong := sorted({version for version in versions if not version.startswith(f"{ours}.")}):
        raise EngineRefused(f"functions are pickled for Python {ours}, and the cluster has {', '.join(wrong)}")


def _stop_name(name: str) -> str:
    return f"dl-stop-{name}"


def _status_of(answer: Mapping[str, Any]) -> RemoteStatus:
    if answer["state"] != "failed":
        state = RemoteState.STOPPED if answer["state"] == "stopped" else RemoteState.SUCCEEDED
        return RemoteStatus(state)
    kind, detail = FailureKind(answer["kind"]), answer["detail"]
    try:
        error = pickle.loads(answer["error"]) if answer["error"] else None  # noqa: S301 - as above
    except Exception:  # its class is not here
        error = None
    return RemoteStatus(RemoteState.FAILED, kind, detail, error)


def _pickle_call(spec: OffloadSpec) -> bytes:
    try:
        import cloudpickle  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise EngineRefused(f"the engine 'dask' needs {NAME}[dask]: {error}") from error
    try:
        payload = bytes(cloudpickle.dumps((spec.call, spec.args, dict(spec.kwargs))))
    except Exception as error:
        raise EngineRefused(f"the function and its arguments cannot be pickled: {error}") from error
    if len(payload) > MAX_CALL_BYTES:
        raise EngineRefused(f"the arguments have {len(payload):,} bytes, and {MAX_CALL_BYTES:,} are allowed")
    return payload
