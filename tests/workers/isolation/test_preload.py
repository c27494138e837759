"""Modules that the fork server imports for its processes."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from dataloader.workers.isolation.fork_server_main import EXIT_HAS_THREADS
from tests.support.claimed_jobs import CapturedLines
from tests.support.forked_attempts import run_task


def test_module_is_preloaded_and_one_that_fails_is_named(folder: Path, logged):
    (folder / "useful.py").write_text("import sys\nsys.stdout.write('imported')\n")
    (folder / "broken.py").write_text("import nowhere\n")
    server = ForkServer(["useful", "broken", "absent"])
    output = CapturedLines()
    try:
        modules = run_task(server, "process.loaded", output)
        again = run_task(NO_FORK_SERVER, "process.loaded", output)
    finally:
        server.close()

    assert "useful" in modules
    assert "useful" not in again
    assert "argparse" not in set(modules) - set(again)
    assert output.texts_of("stdout") == []
    (failed,) = logged("fork_server.modules_failed")
    assert failed["modules"] == {
        "broken": "ModuleNotFoundError: No module named 'nowhere'",
        "absent": "ModuleNotFoundError: No module named 'absent'",
    }


def test_what_an_import_changes_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEPT", "of the worker")
    (folder / "changes.py").write_text(
        "import os, sys\nos.environ['SET'] = 'by import'\nos.environ.setdefault('KEPT', 'by import')\n"
        "sys.path.insert(0, '/first')\n"
    )
    server = ForkServer(["changes"])
    try:
        output = run_task(server, "process.describe")
        monkeypatch.setenv("KEPT", "later")
        monkeypatch.syspath_prepend("/later")
        later = run_task(server, "process.describe")
    finally:
        server.close()

    assert [(o["env"]["SET"], o["env"]["KEPT"]) for o in (output, later)] == [
        ("by import", "of the worker"),
        ("by import", "later"),
    ]
    assert output["path"][0] == "/first"
    assert later["path"][0] == "/later"
    assert "/first" in later["path"]


def test_module_that_exits_when_imported_is_named(folder: Path, logged):
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    server = ForkServer(["exits"])
    try:
        run_task(server, "process.random")
        assert server.pid is not None
    finally:
        server.close()

    assert [entry["modules"] for entry in logged("fork_server.modules_failed")] == [{"exits": "SystemExit: 3"}]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "starts threads"),
        ("import socket\nkept = socket.socket()", "opens socket:"),
        ("import os\nkept = os.pipe()", "opens pipe:"),
    ],
)
def test_module_that_makes_forks_unsafe_is_refused(folder: Path, logged, code: str, reason: str):
    (folder / "harmless.py").write_text("")
    (folder / "unsafe.py").write_text(code)
    server = ForkServer(["harmless", "unsafe"])
    try:
        modules = run_task(server, "process.loaded")
        assert server.pid is not None
        threads = psutil.Process(server.pid).num_threads()
    finally:
        server.close()

    assert "harmless" in modules
    assert "unsafe" not in modules
    assert threads == 1
    (refused,) = logged("fork_server.modules_refused")
    assert list(refused["modules"]) == ["unsafe"]
    assert reason in refused["modules"]["unsafe"]


def test_thread_started_by_a_fork_ends_the_server(folder: Path, logged):
    (folder / "hooked.py").write_text(
        "import os, threading\n"
        "def start():\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "os.register_at_fork(after_in_parent=start)\n"
    )
    server = ForkServer(["hooked"])
    try:
        run_task(server, "process.random")
        run_task(server, "process.random")
    finally:
        server.close()

    (exited,) = logged("fork_server.exited")
    assert exited["code"] == EXIT_HAS_THREADS
