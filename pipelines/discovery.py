"""Finds tasks in the modules of packages and in the settings."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

from pipelines import retry
from pipelines.registry import Pipelines, registry


def load_tasks(
    packages: Iterable[str], tasks: Mapping[str, Any] | None = None, *, known_tasks: Pipelines = registry
) -> dict[str, str]:
    """Import all modules of the packages, which registers their tasks; then register `tasks`: each is a dotted path such
    as `company.loads:rates`, or an object with `call` (such a path) or `command`, and options.

    Return the traceback of each module, and of each `task NAME`, that cannot be loaded; the others are loaded.
    """
    failures: dict[str, str] = {}
    for package in packages:
        for name in _module_names(package, failures):
            try:
                importlib.import_module(name)
            except Exception:  # for the module's author to read
                failures[name] = traceback.format_exc()
    for name, definition in (tasks or {}).items():
        try:
            _register_task(name, definition, known_tasks)
        except Exception:
            failures[f"task {name}"] = traceback.format_exc()
    return failures


def _module_names(package: str, failures: dict[str, str]) -> Iterator[str]:
    try:
        root = importlib.import_module(package)
    except Exception:
        failures[package] = traceback.format_exc()
        return
    yield package
    for module in pkgutil.walk_packages(getattr(root, "__path__", []), package + ".", onerror=lambda _: None):
        if not module.name.endswith(".__main__"):
            yield module.name


def _register_task(name: str, definition: Any, known_tasks: Pipelines) -> None:
    options: dict[str, Any] = {"call": definition} if isinstance(definition, str) else dict(definition)
    if "retry" in options:
        options["retry"] = retry.policy_from_json(options["retry"])
    if "command" in options:
        known_tasks.command(name, options.pop("command"), **options)
    else:
        call = _import_callable(options.pop("call"))
        options.setdefault("isolation", "process")  # it may have no safe points: only a process can always be stopped
        known_tasks.register(name, **options)(call)


def _import_callable(path: str) -> Any:
    module, _, names = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not names:
        raise ValueError(f"{path!r} names no callable; expected a path such as company.loads:rates")
    return reduce(getattr, names.split("."), importlib.import_module(module))
