"""`dataloader demo`: from an empty folder to a dashboard, and back to nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataloader import Client
from dataloader.app.cli.command import cli
from dataloader.app.features.demo.show import open_browser
from dataloader.app.queue.job import Status
from tests.support import Process, eventually, free_port
from tests.support.processes import ROOT, clean_environment


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of temporary files, in which any account may look, with a path that is short enough for sockets."""
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"dl-demo-{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    folder.rmdir()  # nothing is left in it
    # A server whose folder is gone ends by itself within a minute: that is not meant.
    eventually(lambda: not processes_of(folder), 15, message=lambda: str(processes_of(folder)))


def processes_of(folder: Path) -> list[bytes]:
    """The command lines of processes that name the folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(path.read_bytes())
    return [command for command in commands if str(folder).encode() in command]


def start(temporary: Path, tmp_path: Path, *options: str, port: int | None = None) -> Process:
    env = {"TMPDIR": str(temporary), "DL_DB_DSN": "postgresql://etl@192.0.2.1/other", "DL_PIPELINES": "of.another"}
    return Process.dataloader(
        "demo", "--port", str(port or free_port()), *options, output=tmp_path / "demo.log", env=env
    )


def server_pids(temporary: Path) -> list[int]:
    return [int(path.read_text().split()[0]) for path in temporary.glob("**/postmaster.pid")]


def test_demo_shows_work_and_leaves_nothing(temporary: Path, tmp_path: Path):
    port = free_port()
    with start(temporary, tmp_path, port=port) as demo:
        eventually(lambda: "ready at" in demo.text, 110, lambda: demo.text)
        client = Client(f"http://127.0.0.1:{port}")
        running = {job["task"]: job for job in client.jobs(status=Status.RUNNING, limit=50)}
        waiting = {job["wait_state"] for job in client.jobs(status=Status.QUEUED, limit=200)}

        assert {"load.orders", "load.invoices", "load.web_events", "build.margins"} <= set(running)
        assert running["load.orders"]["progress"]["processed"] > 1_000_000
        assert {"blocked", "limited", "scheduled", "waiting"} <= waiting
        assert len(client.schedules()) == 20
        assert len(client.progress(running["load.orders"]["job_id"])["points"]) > 100
        eventually(lambda: len(client.failures()) == 2, 60)
        assert [one["state"] for one in client.backfills()] == ["open"]
        for signal_number in (signal.SIGINT, signal.SIGINT):  # an impatient person
            demo.signal(signal_number)
        assert demo.wait(60) == 0

    assert "no browser" in demo.text


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_end_while_it_starts_leaves_nothing(temporary: Path, tmp_path: Path, how: signal.Signals):
    with start(temporary, tmp_path) as demo:
        eventually(lambda: server_pids(temporary), 60, lambda: demo.text)
        demo.signal(how)
        assert demo.wait(60) == (0 if how is signal.SIGINT else -signal.SIGKILL)
        eventually(lambda: not any(temporary.iterdir()), 60)


def test_demo_ends_by_itself(temporary: Path, tmp_path: Path):
    with start(temporary, tmp_path, "--minutes", "0.01", "--no-browser") as demo:
        assert demo.wait(110) == 0

    assert demo.text.index("ready at") < demo.text.index("Ending")
    assert "browser" not in demo.text


def test_taken_port_is_named():
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        done = CliRunner().invoke(cli, ["demo", "--port", str(port)])

    assert done.exit_code != 0
    assert f"port {port} cannot be used: Address already in use; leave out --port, or name another one" in done.output


def test_folder_that_cannot_be_made_is_named(monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))

    done = CliRunner().invoke(cli, ["demo"])

    assert done.exit_code != 0
    assert "no folder for the demo can be made" in done.output
    assert "TMPDIR" in done.output


def test_browser_that_does_not_open_is_named(monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda _url: False)
    lines: list[str] = []

    open_browser("http://127.0.0.1:8081", lines.append)

    assert lines == ["  (no browser was found here; open the address in yours)"]


def test_port_of_root_is_refused_without_the_right_to_it():
    """An ordinary account has not the capability either; the superuser's process lays it down."""
    has_it = os.geteuid() == 0
    lay_down = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"] if has_it else []
    done = subprocess.run(
        [*lay_down, sys.executable, "-m", "dataloader", "demo", "--no-browser", "--port", "80"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert done.stderr == "Error: port 80 cannot be used: Permission denied; leave out --port, or name another one\n"
