"""Folders that the server's account can reach, and processes that share a server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice
from tests.support import Process
from tests.support.private_server import copy_data_dir

# Starts the server, says its pid, and ends without a stop() at SIGTERM.
SHARER = """
import signal, sys
from pathlib import Path
from dataloader.app.postgres import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), binaries=sys.argv[2], settings={"fsync": "off"})
print("dsn", server.start(), flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("pid", server.pid, flush=True)
signal.sigwait({signal.SIGTERM})
"""


@pytest.fixture
def folder(run_folder: Path) -> Iterator[Path]:
    """A folder of this test's own that every account may enter."""
    made = Path(tempfile.mkdtemp(prefix="folder-", dir=run_folder))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def made(folder: Path, ready_made: Path) -> Path:
    """A data folder in which a cluster is made already: an initdb takes a second, a copy does not."""
    (folder / "data").mkdir()
    return copy_data_dir(ready_made, folder / "data")


@pytest.fixture
def quick(made: Path, postgres_binaries: Choice) -> Iterator[EmbeddedServer]:
    """A server on the made folder, not started."""
    server = EmbeddedServer(made, binaries=postgres_binaries, settings={"fsync": "off"})
    yield server
    server.stop()


@pytest.fixture
def share(tmp_path: Path, postgres_binaries: str) -> Iterator[Callable[[Path], Process]]:
    """Processes that start, or join, the server of a folder."""
    with ExitStack() as running:

        def started(data_dir: Path) -> Process:
            output = tmp_path / f"sharer-{len(list(tmp_path.iterdir()))}.log"
            return running.enter_context(Process.python(SHARER, str(data_dir), postgres_binaries, output=output))

        yield started
