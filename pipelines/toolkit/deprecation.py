"""Old names of the toolkit, accepted with a DeprecationWarning for one release."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def renamed_attributes(module: str, **new_names: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which finds objects by their old names."""

    def find(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", new_names[name], stacklevel=3)
        return getattr(sys.modules[module], new_names[name])

    return find


def renamed_keywords(**new_names: str) -> Callable[[F], F]:
    """Decorate a function so that it accepts arguments by their old keywords."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            for old in new_names.keys() & named.keys():
                _warn(f"{old}=", f"{new_names[old]}=", stacklevel=3)
                named[new_names[old]] = named.pop(old)
            return function(*args, **named)

        return cast(F, call)

    return decorate


def renamed_fields(**new_names: str) -> Callable[[C], C]:
    """Decorate a dataclass so that its constructor accepts old keywords."""

    def decorate(decorated: C) -> C:
        type.__setattr__(decorated, "__init__", renamed_keywords(**new_names)(decorated.__init__))  # type: ignore[misc]
        return decorated

    return decorate


def _warn(old: str, new: str, *, stacklevel: int) -> None:
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=stacklevel + 1)
