"""Old import names: `pipelines.contract` is `dataloader.pipelines.contract`, until the next release.

A checkout has folders `app`, `workers` and `pipelines`, which are imported as parts of `dataloader`. A project that has
packages of these names keeps them: an old name is used only where Python finds no other module.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OLD_ROOTS = ("app", "workers", "pipelines")


class _OldNames(MetaPathFinder, Loader):
    """Finds the modules below one old name. The old and the new name are the same module."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._specs: dict[str, Any] = {}  # of the new modules, which an import under the old name replaces

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._root or fullname.endswith(".__main__"):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"dataloader.{spec.name}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # noqa: S101 - the import system has just set it
        module.__spec__ = self._specs.pop(module.__spec__.name)


def redirect(root: str) -> None:
    """Make `root`, which is being imported from a checkout, another name of `dataloader.<root>`."""
    if root != "app":  # `python -m app` stays
        _warn(root)
    sys.meta_path.insert(0, _OldNames(root))
    sys.modules[root] = import_module(f"dataloader.{root}")


def accept() -> None:
    """Accept the old names in tasks where no other package has them."""
    if not any(isinstance(finder, _Fallback) for finder in sys.meta_path):
        sys.meta_path.extend(_Fallback(root) for root in _OLD_ROOTS if root != "app")


class _Fallback(_OldNames):
    """Comes after all other finders."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if spec is not None and fullname == self._root:
            _warn(self._root)
        elif spec is not None and sys.modules.get(self._root) is not import_module(f"dataloader.{self._root}"):
            return None  # a submodule that a package of this name does not have
        return spec


def _warn(root: str) -> None:
    message = f"import from dataloader.{root}; the name {root!r} goes with the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
