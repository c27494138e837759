"""The stacks of threads, as names and lines: never a value, and nothing of the program's own is called. Portable."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from dataloader.workers.fingerprint import is_library_path, is_our_module

MAX_FRAMES = 60  # of the task's thread
_MAX_OUTERMOST_FRAMES = 20  # of these
_MAX_OTHER_FRAMES = 12  # of each other thread
_MAX_OTHER_THREADS = 15
_MAX_WALKED_FRAMES = 10_000
_MAX_NAME_LENGTH, _MAX_FILE_LENGTH = 100, 200
# Of Python's own types alone: the attributes of others may be code of the task.
_AWAITABLES = {CoroutineType: ("cr", "await"), AsyncGeneratorType: ("ag", "await"), GeneratorType: ("gi", "yieldfrom")}
_STANDARD_DIRECTORIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")


def read_threads(
    task_thread: int, skipped: tuple[int, ...] = (), *, others: bool = True, awaitable: Any = None
) -> list[dict[str, Any]]:
    """Return the stack of the task's thread, and of the other threads but for those skipped. `awaitable` is the
    coroutine or async generator that the task's thread runs: while it awaits, its frames are on no stack."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = frames.get(task_thread)
    package = None if own is None else task_package(own)
    threads = []
    if own is not None:
        awaiting = awaiting_frames(awaitable)
        if awaiting and package is None:
            package = _module(awaiting[-1]).partition(".")[0] or None
        threads.append(_describe_thread(names.get(task_thread), own, package, MAX_FRAMES, is_task=True, above=awaiting))
    if others:
        idents = [ident for ident in frames if ident not in (task_thread, threading.get_ident(), *skipped)]
        for ident in sorted(idents)[:_MAX_OTHER_THREADS]:
            threads.append(_describe_thread(names.get(ident), frames[ident], package, _MAX_OTHER_FRAMES, is_task=False))
    return threads


def awaiting_frames(awaitable: Any) -> list[FrameType]:
    """The frames of what a coroutine or generator awaits, the innermost first; none while it is executed: then they are
    on the stack of its thread."""
    frames: list[FrameType] = []
    while len(frames) < _MAX_WALKED_FRAMES:
        prefix, name = _AWAITABLES.get(type(awaitable), ("", ""))
        frame: FrameType | None = getattr(awaitable, f"{prefix}_frame") if prefix else None
        awaited = getattr(awaitable, f"{prefix}_{name}") if prefix else None
        if frame is None or awaited is None:
            break
        frames.append(frame)
        awaitable = awaited
    return frames[::-1]


def _describe_thread(
    name: Any, innermost: FrameType, package: str | None, max_frames: int, *, is_task: bool,
    above: Sequence[FrameType] = (),
) -> dict[str, Any]:  # fmt: skip
    frames, total = read_frames(_walk(innermost, above), package, max_frames)
    if is_task:
        _mark_entry(frames)
    cut_name = None if name is None else cut_text(name, _MAX_NAME_LENGTH)
    return {"name": cut_name, "is_task": is_task, "frames": frames, "frame_count": total}


def _walk(innermost: FrameType, above: Sequence[FrameType]) -> Iterator[FrameType]:
    yield from above
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def _mark_entry(frames: list[dict[str, Any]]) -> None:
    """The program that has called the outermost frame of ours is ours, whatever it is called."""
    for frame in reversed(frames):
        if frame["kind"] == "dataloader":
            return
        frame["kind"] = "dataloader" if frame["kind"] == "task" else frame["kind"]


def read_frames(
    stack: Iterable[FrameType], package: str | None = None, max_frames: int = MAX_FRAMES
) -> tuple[list[dict[str, Any]], int]:
    """Return the frames of a stack, the innermost first, and how many it has. Calls of a function by itself at the same
    lines are one with their number; of a stack that is still too deep both ends are returned."""
    folded: list[tuple[FrameType, int | None, int]] = []
    total = 0
    for frame in islice(stack, _MAX_WALKED_FRAMES):
        line = frame.f_lineno
        total += 1
        if folded and folded[-1][0].f_code is frame.f_code and folded[-1][1] == line:
            folded[-1] = (folded[-1][0], line, folded[-1][2] + 1)
        else:
            folded.append((frame, line, 1))
    if len(folded) > max_frames:
        outermost = min(_MAX_OUTERMOST_FRAMES, max_frames // 2)
        folded = folded[: max_frames - outermost] + folded[-outermost:]
    return [_describe_frame(*entry, package) for entry in folded], total


def _describe_frame(frame: FrameType, line: int | None, repeated: int, package: str | None) -> dict[str, Any]:
    code = frame.f_code
    return {
        "file": cut_text(code.co_filename, _MAX_FILE_LENGTH, keeps_end=True),
        "line": line,
        "function": cut_text(qualified_name(code), _MAX_NAME_LENGTH),
        "kind": frame_kind(frame, package),
        "repeated": repeated,
    }


def qualified_name(code: CodeType) -> Any:
    return getattr(code, "co_qualname", code.co_name)  # since Python 3.11


def frame_kind(frame: FrameType, package: str | None) -> str:
    """Whose code it is: `task`, `library`, `standard` or `dataloader`."""
    module, path = _module(frame), frame.f_code.co_filename
    if is_our_module(module):
        return "dataloader"
    if package is not None and module.partition(".")[0] == package:
        return "task"
    if is_library_path(path):
        return "standard" if _is_standard(path) else "library"
    return "standard" if path.startswith("<frozen ") else "task"


def _is_standard(path: str) -> bool:
    return path.startswith(_STANDARD_DIRECTORIES) and "-packages" + os.sep not in path


def _module(frame: FrameType) -> str:
    """The name of the frame's module. The globals of code may be a mapping with methods of its own."""
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def task_package(innermost: FrameType) -> str | None:
    """The package of the task's function: of the first frame that is called by one of ours, seen from the outermost."""
    inner: str | None = None
    walked = 0
    frame: FrameType | None = innermost
    package: str | None = None
    while frame is not None and walked < _MAX_WALKED_FRAMES:
        module = _module(frame)
        if is_our_module(module):
            if inner is not None:
                package = inner
            inner = None
        else:
            inner = module.partition(".")[0] or None
        frame, walked = frame.f_back, walked + 1
    return None if package in (None, "__main__") or _is_standard_module(package) else package


def _is_standard_module(package: str | None) -> bool:
    path = getattr(sys.modules.get(package or ""), "__file__", None)
    return not isinstance(path, str) or _is_standard(path)


def cut_text(text: Any, max_length: int, *, keeps_end: bool = False) -> str:
    """A text that is short enough. A name may be of a class of the program's own."""
    plain = text if type(text) is str else "?"
    if len(plain) <= max_length:
        return plain
    return "…" + plain[1 - max_length :] if keeps_end else plain[: max_length - 1] + "…"
