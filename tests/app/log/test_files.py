"""Log files are put aside in time, shared by processes, and never in a job's way."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dataloader.app.log import LogOptions, get, set_up, tear_down
from dataloader.app.log.files import RotatingFileHandler

ROOT = Path(__file__).parents[3]
MOSCOW = ZoneInfo("Europe/Moscow")
HOUR, DAY, WEEK = 3600, 86_400, 7 * 86_400


@pytest.fixture
def file(tmp_path):
    """Makes files that are closed at the end."""
    made: list[RotatingFileHandler] = []

    def make(path: Path = tmp_path / "app.log", **options: Any) -> RotatingFileHandler:
        given = {"max_bytes": None, "every_sec": None, "zone": MOSCOW, **options}
        made.append(RotatingFileHandler(path, **given))
        return made[-1]

    yield make
    for handler in made:
        handler.close()


def say(file: RotatingFileHandler, text: str, at: datetime | None = None) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, text, (), None)
    if at is not None:
        record.created = at.timestamp()
    file.handle(record)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def written_at(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


def test_a_full_file_is_put_aside_and_no_line_is_cut_or_lost(tmp_path, file):
    log = file(max_bytes=18)
    for number in range(20):
        say(log, f"line {number:03}")

    output = sorted(line for text in texts(tmp_path).values() for line in text.splitlines())
    assert output == [f"line {number:03}" for number in range(20)]
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {18}
    assert len(texts(tmp_path)) == 10


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path, file):
    log = file(max_bytes=10)
    say(log, "x" * 50)
    say(log, "y")

    assert sorted(texts(tmp_path).values()) == ["x" * 50 + "\n", "y\n"]


def test_the_oldest_are_dropped_and_nothing_else(tmp_path, file):
    others = ["app.log.bak", "app.log.20260101-000000.gz", "other.log.20260101-000000"]
    for name in others:
        (tmp_path / name).touch()
    log = file(max_bytes=1)
    for number in range(14):
        say(log, str(number))

    kept = {text for name, text in texts(tmp_path).items() if name not in others}
    assert kept == {f"{number}\n" for number in range(3, 14)}
    assert set(others) <= set(texts(tmp_path))


@pytest.mark.parametrize(
    ("every_sec", "last", "now", "due"),
    [
        (DAY, datetime(2026, 5, 1, 20, 59, tzinfo=UTC), datetime(2026, 5, 1, 21, 1, tzinfo=UTC), True),
        (DAY, datetime(2026, 5, 1, 23, 59, tzinfo=UTC), datetime(2026, 5, 2, 0, 1, tzinfo=UTC), False),
        (HOUR, datetime(2026, 5, 1, 9, 1, tzinfo=UTC), datetime(2026, 5, 1, 9, 59, tzinfo=UTC), False),
        (HOUR, datetime(2026, 5, 1, 9, 59, tzinfo=UTC), datetime(2026, 5, 1, 10, 0, tzinfo=UTC), True),
        (WEEK, datetime(2026, 5, 3, 20, 59, tzinfo=UTC), datetime(2026, 5, 3, 21, 0, tzinfo=UTC), True),  # a Sunday
        (WEEK, datetime(2026, 4, 27, 0, 0, tzinfo=UTC), datetime(2026, 5, 3, 20, 59, tzinfo=UTC), False),
        (DAY, datetime(2026, 5, 2, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC), False),  # the clock went back
        (None, datetime(2020, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC), False),
    ],
)
def test_a_period_ends_by_the_clock_of_the_zone(tmp_path, file, every_sec, last, now, due):
    log = file(every_sec=every_sec)
    say(log, "before")
    written_at(tmp_path / "app.log", last)

    say(log, "after", at=now)

    aside = f"app.log.{last.astimezone(MOSCOW):%Y%m%d-%H%M%S}"
    expected = {"app.log": "after\n", aside: "before\n"} if due else {"app.log": "before\nafter\n"}
    assert texts(tmp_path) == expected


def test_a_new_process_knows_the_age_of_an_old_file(tmp_path, file):
    (tmp_path / "app.log").write_text("yesterday\n")
    written_at(tmp_path / "app.log", datetime(2026, 5, 1, tzinfo=UTC))

    say(file(every_sec=DAY), "today")

    assert (tmp_path / "app.log").read_text() == "today\n"


def test_a_file_that_another_moved_is_followed(tmp_path, file):
    log = file()
    say(log, "one")
    (tmp_path / "app.log").rename(tmp_path / "moved")
    say(log, "two")
    (tmp_path / "app.log").unlink()
    say(log, "three")

    assert texts(tmp_path) == {"moved": "one\n", "app.log": "three\n"}


def test_locked_rotation_is_not_waited_for(tmp_path, file):
    log = file(max_bytes=4)
    say(log, "one")
    with (tmp_path / "app.log").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        say(log, "two")
    say(log, "three")

    assert sorted(texts(tmp_path).values()) == ["one\ntwo\n", "three\n"]


def test_many_processes_share_a_file_and_lose_no_line(tmp_path):
    code = (
        "import logging, sys, zoneinfo, pathlib\n"
        "from dataloader.app.log.files import RotatingFileHandler\n"
        "log = RotatingFileHandler(pathlib.Path(sys.argv[1]), max_bytes=2000, every_sec=None,"
        " zone=zoneinfo.ZoneInfo('UTC'))\n"
        "log._delete_oldest = lambda: None\n"
        "for n in range(500):\n"
        "    log.handle(logging.LogRecord('x', 20, '', 1, f'{sys.argv[2]} {n}', (), None))\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "app.log"), name], cwd=ROOT) for name in "abcd"
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0, 0]

    output = [line for text in texts(tmp_path).values() for line in text.splitlines()]
    assert sorted(output) == sorted(f"{name} {n}" for name in "abcd" for n in range(500))
    assert len(texts(tmp_path)) > 2


def test_a_forked_child_has_a_descriptor_of_its_own(tmp_path):
    # Were it shared, so would be the lock, and both would put the file aside at once.
    code = (
        "import fcntl, logging, os, pathlib, sys, zoneinfo\n"
        "from dataloader.app.log.files import RotatingFileHandler\n"
        "log = RotatingFileHandler(pathlib.Path(sys.argv[1]), max_bytes=5, every_sec=None,"
        " zone=zoneinfo.ZoneInfo('UTC'))\n"
        "say = lambda text: log.handle(logging.LogRecord('x', 20, '', 1, text, (), None))\n"
        "say('parent')\n"
        "fcntl.flock(log.stream, fcntl.LOCK_EX)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    say('child')\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "app.log")], check=True, cwd=ROOT, timeout=60)

    assert texts(tmp_path) == {"app.log": "parent\nchild\n"}


def test_log_file_stays_after_chdir(tmp_path, file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = file(Path("here.log"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    say(log, "said")

    assert (tmp_path / "here.log").read_text() == "said\n"


def test_full_disk_drops_lines_and_is_reported_once(tmp_path):
    out = io.StringIO()
    (tmp_path / "app.log").symlink_to("/dev/full")
    set_up(LogOptions(stream=out, file=tmp_path / "app.log", rotate_bytes=100_000, rotate_every_sec=DAY))
    try:
        for number in range(5):
            get("x").info("said", number=number)
        (tmp_path / "app.log").unlink()
        get("x").info("again")
    finally:
        tear_down()

    result = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert [event for event in result if event in ("said", "again")] == ["said"] * 5 + ["again"]
    [trouble, recovery] = [event for event in result if event not in ("said", "again")]
    assert "cannot be written" in trouble
    assert "No space left on device" in trouble
    assert "is written again" in recovery
    in_file = [json.loads(line)["event"] for line in (tmp_path / "app.log").read_text().splitlines()]
    assert in_file == ["again", recovery]


def test_a_folder_that_cannot_be_made_costs_lines_only(tmp_path, file):
    (tmp_path / "file").touch()
    log = file(tmp_path / "file" / "app.log")

    say(log, "said")
    say(log, "said")

    assert texts(tmp_path) == {"file": ""}


def test_line_after_a_cut_line_starts_a_new_line(tmp_path, file):
    log = file()
    say(log, "first")
    (tmp_path / "app.log").write_text("fir")
    log.handleError(logging.LogRecord("x", logging.INFO, __file__, 1, "first", (), None))
    say(log, "second")

    assert (tmp_path / "app.log").read_text().splitlines() == ["fir", "second"]


def test_a_closed_file_is_opened_by_the_next_line(tmp_path, file):
    log = file()
    say(log, "one")
    log.close()
    log.close()
    say(log, "two")

    assert (tmp_path / "app.log").read_text() == "one\ntwo\n"
