"""The process of the demo's service: `python -m dataloader.app.features.demo.service FOLDER PORT`.

It ends when its standard input ends, which the process of the command holds open: so also when that is killed. Then it
ends the server, and deletes the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import closing
from types import FrameType


def main(folder: str, port: str) -> None:
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: ending.set())
    threading.Thread(target=_end_with_input, name="demo-input", daemon=True).start()
    from dataloader.app.cli import main as run_command  # noqa: PLC0415 - seconds, in which the input may end
    from dataloader.app.config import load_settings  # noqa: PLC0415
    from dataloader.app.runtime.database import Database  # noqa: PLC0415

    own_pid = os.getpid()
    try:
        with closing(Database(load_settings(dotenv=None))) as database:
            database.dsn()  # not interrupted: a server that starts when its starter ends would be left behind
            signal.signal(signal.SIGTERM, _exit)  # until the service has its own handler
            if not ending.is_set():
                run_command(["serve", "--host", "127.0.0.1", "--port", port])
    finally:
        if os.getpid() == own_pid:  # a process that it has forked leaves by here, too
            shutil.rmtree(folder, ignore_errors=True)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
