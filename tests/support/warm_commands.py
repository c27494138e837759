"""Commands as processes of their own, forked from one that has imported the service: a start of Python for each would
take a second and more. Run as a module it is that process, and forks for each line of standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support.processes import ROOT, clean_environment

_TIMEOUT_SEC = 100


class WarmCommands:
    """Runs commands one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *args: str, cwd: Path, env: Mapping[str, str]) -> tuple[str, str, int]:
        """Run a command to its end: its output, its errors, and its exit code."""
        out, err = cwd / "stdout", cwd / "stderr"
        request = {"args": args, "cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(_TIMEOUT_SEC, self._process.kill)
        timer.start()
        try:
            code = int(self._process.stdout.readline())
        finally:
            timer.cancel()
        return out.read_text(), err.read_text(), code


@contextmanager
def warm_commands() -> Iterator[WarmCommands]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm_commands"],
        cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield WarmCommands(process)
        assert process.stdin is not None
        process.stdin.close()


def _serve(requests: IO[str]) -> None:
    import dataloader.app.cli.service
    import dataloader.app.cli.terminal
    import dataloader.app.runtime.foreground  # noqa: F401 - what a run imports

    for line in requests:
        child = os.fork()
        if child == 0:
            _run(**json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(args: Sequence[str], cwd: str, env: Mapping[str, str], out: str, err: str) -> None:
    from dataloader.app.cli import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path.insert(0, cwd)
    for number, path in ((0, os.devnull), (1, out), (2, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    code = 1
    try:
        main(args)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.stdin)
