"""What a terminal is shown, on a real pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable

import pytest

from dataloader.app.cli import render
from tests.app.cli.fake_service import AT, BUSY, Standin
from tests.support.processes import ROOT, clean_environment

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Terminal = Callable[..., str]


@pytest.fixture
def terminal(service: Standin) -> Terminal:
    """Run a command on a terminal, and give back all that was written to it."""

    def shown(*args: str, width: int = 80, **env: str) -> str:
        keyboard, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        plain = {name: value for name, value in clean_environment().items() if name not in ("COLUMNS", "NO_COLOR")}
        process = subprocess.Popen(
            [sys.executable, "-m", "app", *args],
            env={**plain, "TERM": "xterm-256color", "DL_URL": service.url, **env},
            cwd=ROOT, stdin=screen, stdout=screen, stderr=screen,
        )  # fmt: skip
        os.close(screen)
        try:
            result = b"".join(iter(lambda: _read(keyboard), b""))
        finally:
            os.close(keyboard)
            process.kill()
            process.wait(30)
        return result.decode().replace("\r\n", "\n")

    return shown


def _read(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, 4096)
    except OSError:  # how Linux reports that no one writes to the terminal any more
        return b""


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_of_jobs_fits_the_terminal_and_keeps_ids_whole(terminal, service, width):
    job_id = service.add(status="failed", task="load.[red]everything[/]", queue="etl.default", error="e" * 300)

    lines = CONTROL.sub("", terminal("jobs", width=width)).splitlines()

    assert max(map(len, lines)) <= width
    assert lines[1].startswith(f"{job_id}  failed")
    assert "load.[red]everything[/]" in lines[1] or width < 200


def test_colours_are_for_those_who_want_them(terminal, service):
    service.add(status="failed")

    assert "\x1b[31mfailed" in terminal("jobs")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal("jobs", NO_COLOR="1"))


def test_a_watched_job_is_a_bar_that_moves(terminal, service):
    job_id = service.add(
        {"status": "running", "attempt": 2, "progress": {"processed": 250, "total": 1000, "unit": "rows [x]"}},
        BUSY,
        {"progress": {"step": "[bold]sort[/]"}},
        {"status": "succeeded", "finished_at": AT},
    )

    shown = terminal("status", job_id, "--watch", "--retry-timeout", "0", width=200)

    plain = CONTROL.sub("", shown)
    assert "running, attempt 2" in plain
    assert "250 of 1000 rows [x] (25%)" in plain
    assert "[bold]sort[/]" in plain
    assert "still watching" in plain
    assert "succeeded" in plain.splitlines()[-1]
    assert "\x1b[2K" in shown


def test_a_bar_without_colours_still_moves(terminal, service):
    shown = terminal("status", service.add({"status": "running"}, {"status": "failed"}), "--watch", NO_COLOR="1")

    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown)
    assert "failed" in shown


def test_a_dumb_terminal_gets_lines(terminal, service):
    job_id = service.add({"status": "running"}, {"status": "succeeded"})

    assert terminal("status", job_id, "--watch", TERM="dumb").splitlines() == ["running", "succeeded"]


def test_what_cannot_fit_at_all_is_shown_all_the_same(terminal, service):
    job_id = service.add()

    assert job_id in CONTROL.sub("", terminal("jobs", width=20)).replace("\n", "")


def test_columns_that_say_nothing_are_not_drawn(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    render.print_table(("job", "error"), [("1", ""), ("2", "")], uncut=("job",))

    assert "error" not in capsys.readouterr().out
