"""The main program of a child of the process engine: runs one function, or becomes one program."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dataloader.pipelines import remote
from dataloader.pipelines.offload import FailureKind, pickle_result

_PR_SET_PDEATHSIG = 1


def main() -> None:
    source = sys.stdin.buffer
    order = source.read(int.from_bytes(source.read(8), "big"))
    folder, payload, argv, limits, variables, parent_pid = pickle.loads(order)  # noqa: S301 - our own parent wrote it
    _end_with_parent(parent_pid)
    _set_limits(limits)
    if payload is None:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, env=remote.environment(variables), check=False).returncode
        sys.exit(128 - code if code < 0 else code)
    with remote.running(variables):
        _call(Path(folder), payload)


def _call(folder: Path, payload: bytes) -> None:
    try:
        call, args, kwargs = pickle.loads(payload)  # noqa: S301
        content = pickle_result(call(*args, **kwargs))
    except BaseException as error:
        kind = FailureKind.OOM if isinstance(error, MemoryError) else FailureKind.ERROR
        raised = None
        with suppress(Exception):
            raised = pickle.dumps(error)
        text = "".join(traceback.format_exception(error))
        (folder / "error").write_bytes(pickle.dumps((kind.value, text, raised)))
        sys.exit(1)
    (folder / "result").write_bytes(content)


def _end_with_parent(parent_pid: int) -> None:
    """Kill this process group when the parent is gone: by the kernel, and by the end of the pipe."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)

    def watch() -> None:
        os.read(0, 1)  # not of the buffered stream, whose lock the interpreter wants at its exit
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _set_limits(limits: Mapping[str, int]) -> None:
    if "memory_mb" in limits:
        size = limits["memory_mb"] * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS, (size, size))
    if "cpu_sec" in limits:
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_sec"], limits["cpu_sec"] + 5))
