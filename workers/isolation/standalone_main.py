"""The main program of a task that has an interpreter of its own, of Python 3.8 or newer.

Run by its path, with the descriptor of a socket to the worker. The packages of that interpreter are the task's, and so
are packages named `app`, `workers` or `pipelines`. Of ours it loads the portable modules (`pipelines/portable.py`) by
their full names, without the `__init__` of `dataloader`, which is for our interpreter.
"""

from __future__ import annotations

import os
import sys
import types

_PACKAGES = (
    "dataloader",
    "dataloader.pipelines",
    "dataloader.workers",
    "dataloader.workers.isolation",
    "dataloader.workers.logs",
)


def provide_packages() -> None:
    """Make the portable modules importable by their full names."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for name in _PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = module


def main(descriptor: int) -> None:
    del sys.path[0]  # the folder of this file
    provide_packages()
    from dataloader.workers.isolation import standalone_context  # noqa: PLC0415 - found only now

    standalone_context.main(descriptor, _PACKAGES)


if __name__ == "__main__":
    main(int(sys.argv[1]))
