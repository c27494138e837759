"""Graphs that a campaign asks for: chains, diamonds and fans, with failures, conditions and both policies."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

TASKS = ("chaos.short", "chaos.failing", "chaos.long", "chaos.long")
_CONDITIONS = ("succeeded", "ended", "failed")
_STRANGE_CONDITIONS = 0.08  # of the edges, how many ask for any of these
_ANY_END = 0.3  # of the others
_MAX_FAN = 12
_ALWAYS = 20  # failures: more than the attempts


def make_graph(chance: random.Random, key: str, queue: str, lease_sec: int, retry: Mapping[str, Any]) -> dict[str, Any]:
    """A request of a graph. The jobs' graph keys are their numbers."""
    width = chance.randrange(4, _MAX_FAN)
    parents_by_shape: dict[str, list[list[int]]] = {
        "chain": [[], [0], [1], [2]],
        "diamond": [[], [0], [0], [1, 2]],
        "fan": [[], *([0] for _ in range(width)), [*range(1, width + 1)]],
    }
    shape = chance.choice(list(parents_by_shape))
    jobs: list[dict[str, Any]] = []
    for number, parents in enumerate(parents_by_shape[shape]):
        job = _make_job(chance, f"{key}:{number}", number, queue, lease_sec, retry)
        if parents:
            job["after"] = [{"job": str(parent), "on": _condition(chance, jobs[parent])} for parent in parents]
            job["need"] = chance.choice(("all", "all", "any"))
        jobs.append(job)
    return {"name": shape, "on_failure": chance.choice(("cancel", "continue")), "idempotency_key": key, "jobs": jobs}


def _make_job(
    chance: random.Random, lock_key: str, number: int, queue: str, lease_sec: int, retry: Mapping[str, Any]
) -> dict[str, Any]:
    args = {"fails": chance.choice((0, 1, _ALWAYS)), "seconds": chance.uniform(0.2, 1.0), "queue": queue}
    return {
        "key": str(number), "queue": queue, "task": chance.choice(TASKS), "lock_key": lock_key, "args": args,
        "retry": dict(retry), "lease_ttl_sec": lease_sec, "max_attempts": 3,
    }  # fmt: skip


def _condition(chance: random.Random, parent: Mapping[str, Any]) -> str:
    """How a child asks its parent to end: mostly as it will, if nothing happens to it."""
    if chance.random() < _STRANGE_CONDITIONS:
        return chance.choice(_CONDITIONS)
    fails = parent["task"] == "chaos.failing" and parent["args"]["fails"] == _ALWAYS
    return "ended" if chance.random() < _ANY_END else "failed" if fails else "succeeded"
