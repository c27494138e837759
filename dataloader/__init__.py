"""What other projects import: `Client` and `enqueue` to ask for jobs, `Workers` to run them, the rest for pipelines.

Names are loaded on first use. `Client`, `enqueue` and the errors load nothing of `dataloader.app`,
`dataloader.workers` or `dataloader.pipelines`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataloader._enqueue import enqueue
    from dataloader._job_fields import JobOptions, TriggerOptions
    from dataloader.app.runtime.embedding import Workers
    from dataloader.client import Client
    from dataloader.errors import (
        ClientError,
        Conflict,
        FieldError,
        NotAllowed,
        NotFound,
        Refused,
        ServiceFault,
        ServiceUnavailable,
    )
    from dataloader.pipelines.contract import (
        Args,
        Breaker,
        Checkpoint,
        Context,
        Daily,
        EngineUnavailable,
        Fail,
        Handle,
        Hourly,
        Listed,
        Monthly,
        OffloadFailed,
        Progress,
        RemoteOutOfMemory,
        RemoteWorkerLost,
        Snooze,
        Stop,
        Wait,
        Weekly,
        register,
        registry,
        schedule,
    )
    from dataloader.pipelines.retry import Exponential, Fixed, Linear, Table

    __version__: str

__all__ = [
    "Args", "Breaker", "Checkpoint", "Client", "ClientError", "Conflict", "Context", "Daily",
    "EngineUnavailable", "Exponential", "Fail", "FieldError", "Fixed", "Handle", "Hourly", "JobOptions",
    "Linear", "Listed", "Monthly", "NotAllowed", "NotFound", "OffloadFailed", "Progress", "Refused",
    "RemoteOutOfMemory", "RemoteWorkerLost", "ServiceFault", "ServiceUnavailable", "Snooze", "Stop", "Table",
    "TriggerOptions", "Wait", "Weekly", "Workers", "enqueue", "register", "registry", "schedule",
]  # fmt: skip

_MODULES = {
    "enqueue": "dataloader._enqueue",
    **dict.fromkeys(("JobOptions", "TriggerOptions"), "dataloader._job_fields"),
    **dict.fromkeys(
        (
            *("Args", "Breaker", "Checkpoint", "Context", "Daily", "Fail", "Hourly", "Listed", "Monthly", "Progress"),
            *("Snooze", "Stop", "Wait", "Weekly", "register", "registry", "schedule"),
            *("EngineUnavailable", "Handle", "OffloadFailed", "RemoteOutOfMemory", "RemoteWorkerLost"),
        ),
        "dataloader.pipelines.contract",
    ),
    **dict.fromkeys(("Exponential", "Fixed", "Linear", "Table"), "dataloader.pipelines.retry"),
    "Client": "dataloader.client",
    "Workers": "dataloader.app.runtime.embedding",
}


def _load(name: str) -> Any:
    """Import a public name on its first use."""
    if name == "__version__":
        value = import_module("dataloader._distribution").version()
    elif name in __all__:
        value = getattr(import_module(_MODULES.get(name, "dataloader.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker would take any other name for one that exists
    __getattr__ = _load
