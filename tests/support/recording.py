"""Records the calls of methods of the product, which do as before."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.workers.attempt import Attempt
from dataloader.workers.running_attempts import RunningAttempts


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[Any, ...]]:
    """Return a list that gets the positional arguments of each call that has returned, with the object as the first.

    To be called before the objects that keep the bound method are made.
    """
    method, calls = getattr(owner, name), list[tuple[Any, ...]]()

    def recorded(*args: Any, **options: Any) -> Any:
        result = method(*args, **options)
        calls.append(args)
        return result

    monkeypatch.setattr(owner, name, recorded)
    return calls


def record_attempts(monkeypatch: pytest.MonkeyPatch) -> list[Attempt]:
    """Return a list that gets each attempt that a pool of this process claims."""
    add, attempts = RunningAttempts.add, list[Attempt]()

    def recorded(running: RunningAttempts, added: list[Attempt]) -> None:
        attempts.extend(added)
        add(running, added)

    monkeypatch.setattr(RunningAttempts, "add", recorded)
    return attempts
