"""Old import names: `pipelines.contract` is `dataloader.pipelines.contract`, until the next release.

A project's own packages `app`, `pipelines` and `workers` count first: an old name leads to dataloader where no other
module has it, or where it is that of a checkout of dataloader.
"""

from __future__ import annotations

import os.path
import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_ROOTS = ("app", "pipelines", "workers")
_CHECKOUT_ROOT = "app"  # an old name in a checkout alone, where `python -m app` stays


class _OldNames(MetaPathFinder, Loader):
    """Finds modules by their old names. Old and new name are the same module object."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        root, _, submodule = fullname.partition(".")
        if root not in _ROOTS or (submodule and sys.modules.get(root) is not sys.modules.get(f"dataloader.{root}")):
            return None
        new = find_spec(f"dataloader.{fullname}")
        if new is None or not (submodule or _leads_here(root, new)):
            return None
        spec = ModuleSpec(fullname, self, origin=new.origin, loader_state=new)
        spec.submodule_search_locations = new.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in _ROOTS:
            _warn(spec.name, stacklevel=3)
        return import_module(spec.loader_state.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # noqa: S101 - the import system has just replaced it
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType:
        """For `python -m` with an old name."""
        loader: Any = find_spec(f"dataloader.{fullname}").loader  # type: ignore[union-attr]  # it was found just now
        code: CodeType = loader.get_code(f"dataloader.{fullname}")
        return code


def _leads_here(root: str, new: ModuleSpec) -> bool:
    """Return whether no other module has this name, or the checkout of this package."""
    others = (finder.find_spec(root, None) for finder in sys.meta_path if not isinstance(finder, _OldNames))
    other = next((spec for spec in others if spec is not None), None)
    if other is None:
        return root != _CHECKOUT_ROOT
    return os.path.realpath(other.origin or "") == os.path.realpath(new.origin or "")


def accept() -> None:
    """Accept the old names in this process."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())


def redirect(root: str) -> None:
    """Make `root`, which is being imported from a checkout, another name of `dataloader.<root>`."""
    accept()
    _warn(root, stacklevel=4)
    sys.modules[root] = import_module(f"dataloader.{root}")


def _warn(root: str, *, stacklevel: int) -> None:
    if root != _CHECKOUT_ROOT:
        message = f"import from dataloader.{root}; the name {root!r} goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
