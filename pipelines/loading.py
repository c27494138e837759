"""Finding tasks: in the modules of packages, and by what the settings say, which needs no change to any code."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pipelines import retry
from pipelines.registry import Pipelines, registry

_OWN = __name__.rpartition(".")[0]
_NO_TASKS = tuple(f"{_OWN}.{name}" for name in ("contract", "fit", "loading", "options", "progress", "registry",
                                                "retry", "task", "template", "toolkit"))  # fmt: skip


@dataclass(frozen=True)
class Loading:
    """What loading the pipelines' modules brought."""

    modules: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)  # module, or `task NAME` → its error, with the traceback


def load(packages: Iterable[str], tasks: Mapping[str, Any] | None = None, *, into: Pipelines = registry) -> Loading:
    """Import every module of the packages, so that their tasks are registered; then register `tasks`, each a dotted
    path such as `company.loads:rates`, or an object with that under `call`, or with a `command`, and with options.

    What cannot be loaded is told in `failures` and does not keep the rest from loading.
    """
    modules: list[str] = []
    failures: dict[str, str] = {}
    for package in packages:
        for name in _modules(package, failures):
            try:
                importlib.import_module(name)
            except Exception:  # whatever a module raises at import is its author's to read
                failures[name] = traceback.format_exc()
            else:
                modules.append(name)
    for name, told in (tasks or {}).items():
        try:
            _register(name, told, into)
        except Exception:
            failures[f"task {name}"] = traceback.format_exc()
    return Loading(tuple(modules), failures)


def _modules(package: str, failures: dict[str, str]) -> Iterator[str]:
    try:
        found = importlib.import_module(package)
    except Exception:
        failures[package] = traceback.format_exc()
        return
    yield package
    for module in pkgutil.walk_packages(getattr(found, "__path__", []), package + ".", onerror=lambda _: None):
        if package == _OWN and (module.name in _NO_TASKS or module.name.startswith(f"{_OWN}.toolkit.")):
            continue
        if not module.name.endswith(".__main__"):
            yield module.name


def _register(name: str, told: Any, into: Pipelines) -> None:
    options: dict[str, Any] = {"call": told} if isinstance(told, str) else dict(told)
    if "retry" in options:
        options["retry"] = retry.from_json(options["retry"])
    if "command" in options:
        into.command(name, options.pop("command"), **options)
    else:
        found = _find(options.pop("call"))
        options.setdefault("isolation", "process")  # it may have no safe point: only a process can be ended for certain
        into.register(name, **options)(found)


def _find(path: str) -> Any:
    module, _, names = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not names:
        raise ValueError(f"{path!r} names no callable; company.loads:rates would do")
    return reduce(getattr, names.split("."), importlib.import_module(module))
