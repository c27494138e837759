"""Runs functions and programs in child processes of this process, with limits of their own. They end with it."""

from __future__ import annotations

import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dataloader.pipelines.executors import check_settings
from dataloader.pipelines.executors.process_log import read_lines
from dataloader.pipelines.offload import (
    MAX_CALL_BYTES,
    EngineRefused,
    FailureKind,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    ResultTooLarge,
    result_of_text,
    unpickle_result,
)

_TAIL_BYTES = 4_000_000  # in which a program's result is
_RESOURCES = {"memory_mb", "cpu_sec"}


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    is_function: bool
    is_stopped: bool = False

    def file(self, name: str) -> Path:
        return Path(self.folder.name) / name


class ProcessExecutor:
    """Children by name, of this process alone: another one does not know them."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"program", "function"})
    survives: ClassVar[bool] = False
    address = "this machine"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_settings("process", settings)
        self._lock = threading.Lock()
        self._children: dict[str, _Child] = {}  # under the lock

    def submit(self, name: str, spec: OffloadSpec) -> None:
        if unknown := sorted(set(spec.resources) - _RESOURCES):
            raise EngineRefused(
                f"the process engine has no resource {', '.join(unknown)}; it has memory_mb and cpu_sec"
            )
        with self._lock:
            if name not in self._children:
                self._children[name] = self._start(spec)

    def _start(self, spec: OffloadSpec) -> _Child:
        folder = tempfile.TemporaryDirectory(prefix="dl-offload-")
        try:
            payload = _pickle_call(spec)
            argv = [] if spec.entrypoint is None else shlex.split(spec.entrypoint)
            paths = [path or str(Path.cwd()) for path in sys.path]
            limits = {key: int(value) for key, value in spec.resources.items()}
            code = (
                f"import sys; sys.path[:] = {paths!r}; from dataloader.pipelines.executors import process_main; "
                "process_main.main()"
            )
            order = pickle.dumps((folder.name, payload, argv, limits, dict(spec.env), os.getpid()))
            with Path(folder.name, "log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            assert process.stdin is not None  # noqa: S101 - a pipe
            with suppress(BrokenPipeError):  # it died at once: `status` shows how
                process.stdin.write(len(order).to_bytes(8, "big") + order)
                process.stdin.flush()  # it stays open: its end is the end of the child
        except BaseException:
            folder.cleanup()
            raise
        return _Child(process, folder, is_function=spec.call is not None)

    def status(self, name: str) -> RemoteStatus:
        child = self._children.get(name)
        if child is None:
            return RemoteStatus(RemoteState.UNKNOWN)
        code = child.process.poll()
        if code is None:
            return RemoteStatus(RemoteState.RUNNING)
        if child.is_stopped:
            return RemoteStatus(RemoteState.STOPPED)
        if code == 0:
            return RemoteStatus(RemoteState.SUCCEEDED)
        error = child.file("error")
        if os.path.exists(error):
            kind, detail, raised = pickle.loads(error.read_bytes())  # noqa: S301 - our own child wrote it
            with suppress(Exception):
                return RemoteStatus(RemoteState.FAILED, FailureKind(kind), detail, raised and pickle.loads(raised))  # noqa: S301
            return RemoteStatus(RemoteState.FAILED, FailureKind(kind), detail)
        is_killed = code == -signal.SIGKILL
        detail = f"the process was killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST if is_killed else FailureKind.ERROR, detail)

    def stop(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and child.process.poll() is None:
            child.is_stopped = True
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(5.0)

    def result(self, name: str) -> Any:
        child = self._children[name]
        if not child.is_function:
            with child.file("log").open("rb") as file:
                file.seek(max(0, child.file("log").stat().st_size - _TAIL_BYTES))
                return result_of_text(file.read().decode("utf-8", "replace"))
        with child.file("result").open("rb") as file:
            content = file.read(MAX_CALL_BYTES + 1)
        if len(content) > MAX_CALL_BYTES:
            raise ResultTooLarge(f"the result is larger than {MAX_CALL_BYTES:,} bytes; write it to storage")
        return unpickle_result(content)

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        child = self._children.get(name)
        if child is None:
            return [], after
        is_over = child.process.poll() is not None  # before the log is read: it is whole then
        return read_lines(child.file("log"), after, is_over=is_over)

    def delete(self, name: str) -> None:
        """Forget a child that has ended, with its files."""
        with self._lock:
            child = self._children.pop(name, None)
        if child is not None:
            if child.process.stdin is not None:
                with suppress(OSError):
                    child.process.stdin.close()
            child.process.wait()
            child.folder.cleanup()


def _pickle_call(spec: OffloadSpec) -> bytes | None:
    """By reference: the child has the same code."""
    if spec.call is None:
        return None
    try:
        payload = pickle.dumps((spec.call, spec.args, dict(spec.kwargs)))
    except Exception as error:
        raise EngineRefused(f"the function and its arguments cannot be pickled: {error}") from error
    if len(payload) > MAX_CALL_BYTES:
        raise EngineRefused(f"the arguments have {len(payload):,} bytes, and {MAX_CALL_BYTES:,} are allowed")
    return payload
