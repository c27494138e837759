"""Functions for engines, in a package that imports nothing; `dataloader.pipelines.remote` where it is imported."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any


def note_start(folder: str) -> None:
    with (Path(folder) / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")


def quick(folder: str) -> dict[str, int]:
    note_start(folder)
    print("begun", flush=True)  # noqa: T201
    return {"rows": 3}


def gate(folder: str) -> dict[str, int]:
    """Runs until there is a gate. Stops where it is asked to."""
    from dataloader.pipelines import remote

    note_start(folder)
    end = time.monotonic() + 120
    while not (Path(folder) / "gate").exists() and time.monotonic() < end:
        remote.check()
        with (Path(folder) / "beats").open("a") as file:
            file.write(".")
        time.sleep(0.02)
    return {"rows": 3}


def fails(folder: str) -> None:
    note_start(folder)
    raise KeyError("it broke")


def big(folder: str) -> bytes:
    return bytes(16_000_001)


def handle(folder: str) -> Any:
    return threading.Lock()  # which cannot be sent


def handle_of_worker(folder: str) -> Any:
    return OnlyThere()


class OnlyThere:
    """It cannot be read where a result arrives."""

    def __reduce__(self) -> Any:
        return _fail_elsewhere, (os.getpid(),)


def _fail_elsewhere(pid: int) -> Any:
    raise ImportError("no module named acme")


def variables(folder: str) -> dict[str, Any]:
    from dataloader.pipelines import remote

    return {**vars(remote.current())}


def memory(folder: str) -> int:
    return len(bytearray(1_000_000_000))


def dies(folder: str) -> None:
    note_start(folder)
    os.kill(os.getpid(), 9)
