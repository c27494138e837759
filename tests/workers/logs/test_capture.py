"""The output of a job is captured apart from all other output of the process."""
# ruff: noqa: T201 - jobs print

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from dataloader.app import log
from dataloader.workers.logs.capture import Capture, CapturedStream, is_captured
from tests.support.claimed_jobs import Source
from tests.support.processes import ROOT

JOB = UUID(int=1)


class Kept:
    def __init__(self):
        self.lines: list[Any] = []
        self.capture = Capture(lambda *result: self.lines.append(result))

    @contextmanager
    def speaking(self):
        """Installed only here: pytest changes the streams between a fixture and its test."""
        self.capture.install()
        try:
            with self.capture.output_of(Source(JOB)):
                yield
        finally:
            self.capture.remove()

    @property
    def texts(self):
        return [line for *_, line in self.lines]


@pytest.fixture
def kept():
    return Kept()


def test_output_of_a_job_is_captured_and_other_output_is_not(kept, capfd):
    print("before")
    with kept.speaking():
        assert is_captured()
        print("inside", 1)
        sys.stderr.writelines(["an error\n", "and its end"])
        sys.stdout.flush()
        elsewhere = threading.Thread(target=print, args=("another thread",))
        elsewhere.start()
        elsewhere.join()
    print("after", flush=True)

    assert kept.lines == [
        (JOB, 1, "INFO", "stdout", "inside 1"),
        (JOB, 1, "INFO", "stderr", "an error"),
        (JOB, 1, "INFO", "stderr", "and its end"),
    ]
    assert capfd.readouterr().out == "before\nanother thread\nafter\n"
    assert not is_captured()


def test_log_records_of_a_job_keep_fields_and_traceback(kept):
    voice = log.get("pipeline")
    with kept.speaking():
        voice.info("page loaded", rows=5, name="a b", password="secret")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("theirs").exception("it failed", stack_info=True)
        logging.getLogger("theirs").log(35, "")
    logging.getLogger("theirs").error("not a job")

    assert kept.lines[0] == (JOB, 1, "INFO", "log", 'page loaded rows=5 name="a b" password=***')
    assert kept.lines[1] == (JOB, 1, "ERROR", "log", "it failed")
    assert "ValueError: broken" in kept.texts
    assert "Stack (most recent call last):" in kept.texts
    assert kept.lines[-1] == (JOB, 1, "WARNING", "log", "")


def test_asyncio_tasks_and_to_thread_are_captured(kept):
    async def helper():
        print("task")
        await asyncio.to_thread(print, "thread")

    async def main():
        await asyncio.create_task(helper())

    with kept.speaking():
        asyncio.run(main())

    assert kept.texts == ["task", "thread"]


def test_last_state_of_a_progress_bar_is_kept(kept):
    with kept.speaking():
        for percent in (10, 50, 100):
            print(f"\r{percent}%", end="")
        print()
        for percent in (10, 90):
            print(f"{percent} of 100\r", end="")

    assert kept.texts == ["100%", "90 of 100"]


def test_endless_line_is_split(kept):
    with kept.speaking():
        for _ in range(3):
            print("x" * 10_000, end="")

    assert [len(text) for text in kept.texts] == [20_000, 10_000]


def test_captured_stream_behaves_as_a_stream(kept):
    with kept.speaking():
        assert not sys.stdout.isatty()
        assert sys.stdout.write("four") == 4
        with pytest.raises(TypeError, match="must be str, not bytes"):
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
    assert sys.stdout.encoding == "utf-8"
    assert sys.stdout.isatty() in (True, False)


def test_captures_can_be_removed_in_any_order():
    before = sys.stdout
    first, second = Kept(), Kept()
    first.capture.install()
    second.capture.install()
    with first.capture.output_of(Source(JOB)):
        print("to the first")
    first.capture.remove()
    assert isinstance(sys.stdout, CapturedStream)
    with second.capture.output_of(Source(JOB)):
        print("to the second")
    second.capture.remove()

    assert (first.texts, second.texts) == (["to the first"], ["to the second"])
    assert sys.stdout is before


IN_A_BARE_PROCESS = """
import logging, sys, types, uuid, warnings
from dataloader.app import log
from dataloader.workers.logs.capture import Capture
class Hostile:
    def __repr__(self):
        raise RuntimeError("no")

kept = []
capture = Capture(lambda *chunk: kept.append(chunk[-1]))
capture.install()
with capture.output_of(types.SimpleNamespace(job_id=uuid.uuid4(), attempt=1)):
    log.get("pipeline").info("kept although nothing is set up")
    logging.getLogger("theirs").info("not loud enough")
    warnings.warn("old ways", UserWarning)
    logging.getLogger("theirs").warning("%d and %d", 1)
    logging.getLogger("theirs").error(Hostile())
logging.warning("seen on stderr")
logging.getLogger("theirs").info("not seen")
capture.remove()
sys.stdout = None
capture.install()
capture.remove()
assert logging.getLogger("pipeline").level == 0 and sys.stdout is None
assert kept[0] == "kept although nothing is set up", kept
assert "UserWarning: old ways" in kept[1], kept
assert kept[-1] == "'%d and %d' (with arguments that do not fit it)", kept
assert "not loud enough" not in kept, kept
"""


def test_process_without_logging_keeps_its_default_output():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_BARE_PROCESS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == "seen on stderr\n"
