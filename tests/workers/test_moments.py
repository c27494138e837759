"""What is seen of a thread at a moment: the caller of a function just entered, and a wait for the interpreter."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from dataloader.pipelines.portable import clock
from dataloader.workers.moments import LATE_SEC, LateLooks, ThreadMoments

HELD_SEC = 0.5


def entered() -> None:
    pass


def load() -> None:
    entered()


def test_function_just_entered_counts_for_its_caller():
    looks = ThreadMoments(threading.get_ident(), threading.get_native_id(), clock())
    places: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is entered.__code__:
            places.append(looks.look(clock(), {looks.ident: frame}, late_sec=0.0)["place"])

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        load()
    finally:
        sys.settrace(before)
        looks.close()

    assert [place.partition(":")[0] for place in places] == ["load in workers/test_moments.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel says it on Linux")
def test_look_that_waited_for_the_interpreter_is_late():
    planned, late_sec = threading.Event(), []

    def look() -> None:
        looks = LateLooks()
        looks.plan(clock() + 0.01)
        planned.set()
        threading.Event().wait(0.01)
        late_sec.append(looks.late_sec(clock()))
        looks.close()

    thread = threading.Thread(target=look)
    thread.start()
    planned.wait(10)
    ctypes.PyDLL(None).usleep(int(HELD_SEC * 1_000_000))  # holds the interpreter
    thread.join()

    assert late_sec[0] >= LATE_SEC
