"""The fingerprint of an error: what failures are grouped by. Portable."""

from __future__ import annotations

import os
import traceback
from itertools import accumulate
from types import FrameType

from dataloader.pipelines.failures import members_of_group

_LIBRARY_DIRECTORIES = (os.path.dirname(os.__file__) + os.sep,)
_PACKAGE_DIRECTORIES = frozenset({"site-packages", "dist-packages"})
# Modules between the worker and a task's function. The other modules of `pipelines` are tasks.
_OUR_MODULES = frozenset({"dataloader.app", "dataloader.workers", "dataloader.client"}) | {
    f"dataloader.pipelines.{name}"
    for name in (
        "arguments", "base_context", "context", "contract", "job_args", "json_values", "limits", "reported_state",
        "reports", "retry", "runner", "signature", "targets", "task", "testing", "toolkit",
    )
}  # fmt: skip
_INLINED_FUNCTIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})  # frames of their own before Python 3.12


def fingerprint(error: BaseException, task_module: str = "") -> str:
    """Return the class of the error and the innermost function of the task's own code, as in `KeyError sales.py:load`;
    the class alone if no such function is in its traceback. It has no line number, so that an edit of the file keeps
    it.

    Code is the task's own if it is of the top-level package of `task_module`, or of no installed library. Of an
    exception group it is the first fingerprint of its errors, in alphabetical order.
    """
    errors: list[BaseException] = []
    pending = [error]
    while pending:
        member = pending.pop()
        members = members_of_group(member)
        pending += members
        errors += () if members else (member,)
    return min(_fingerprint_of_one(member, task_module.partition(".")[0]) for member in errors)


def _fingerprint_of_one(error: BaseException, task_package: str) -> str:
    name = type(error).__name__
    for frame in reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)]):
        if _is_own(frame, task_package):
            return f"{name} {os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}"
    return name


def _is_own(frame: FrameType, task_package: str) -> bool:
    path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    package = module.partition(".")[0]
    if is_our_module(module):
        return False
    if path.startswith("<") or frame.f_code.co_name in _INLINED_FUNCTIONS:
        return False
    if package == task_package:
        return True
    return not is_library_path(path)


def is_our_module(module: str) -> bool:
    """Whether a module of this name is between the worker and a task's function."""
    return not _OUR_MODULES.isdisjoint(accumulate(module.split("."), "{}.{}".format))


def is_library_path(path: str) -> bool:
    """Whether a file belongs to the standard library, or to an installed package."""
    return path.startswith(_LIBRARY_DIRECTORIES) or not _PACKAGE_DIRECTORIES.isdisjoint(path.split(os.sep))
