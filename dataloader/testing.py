"""For tests of pipelines: `FakeContext` and `run` need no service, `drain` runs jobs of a real queue.

    ctx = FakeContext(resume={"page": 3})
    result = run(load_orders, {"days": ["2030-01-31"]}, ctx)

Names are loaded on first use: only `drain` needs a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataloader.pipelines.testing import FakeContext, FakeHandle, FakeOffload, FollowUp, LogLine, run
    from dataloader.workers.testing import drain

__all__ = ["FakeContext", "FakeHandle", "FakeOffload", "FollowUp", "LogLine", "drain", "run"]


def _load(name: str) -> Any:
    """Import a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "dataloader.workers.testing" if name == "drain" else "dataloader.pipelines.testing"
    return globals().setdefault(name, getattr(import_module(module), name))


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker would take any other name for one that exists
    __getattr__ = _load
