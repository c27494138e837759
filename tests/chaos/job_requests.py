"""What callers of a campaign ask for: the mix of jobs, and the requests that a seed makes of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.chaos.limit_changes import CHANGED_LIMIT, MAX_WEIGHT

QUEUE, OTHER_QUEUE = "chaos", "chaos-other"
HOT_KEYS = 3
SQL_KEYS = 24
SQL_TARGETS = ("default", "witness")
TARGET_SHAPES = ("checkpoint", "each", "own table", "final")
_TARGET_APART = 1 / 8
TENANTS = 3
LIMITED_KINDS = ("warehouse", "tenant", "partner")
RETRY_POLICY = {"kind": "fixed", "seconds": 0.3}


@dataclass(frozen=True)
class Mix:
    """How often each kind of work is asked for, in parts of the whole; leases and tries."""

    short: float = 42
    hot: float = 14
    long: float = 7
    steady: float = 0.4  # so long that a row is renewed more seldom than its lease is long
    failing: float = 8
    fragile: float = 3
    graph: float = 1.2  # jobs that wait for one another, four to thirteen
    parent: float = 5
    load: float = 12
    apart: float = 0.6
    sql: float = 3  # a long statement in autocommit
    sql_apart: float = 0.4
    legacy: float = 0.4
    zombie: float = 3
    delayed: float = 6
    bulk: float = 0.5  # each brings thirty
    pair: float = 0  # a second job of a key, just when the first one ends
    warehouse: float = 9  # jobs of a limit, in two queues, of weight 1 and 2
    tenant: float = 5  # of a default for the limits of several names; some of `warehouse` too
    partner: float = 0.6  # of a rate; each brings some at once
    target: float = 8  # a load into a target of its own server; one in eight in a process of its own
    target_zombie: float = 2
    offload: float = 2  # work on an engine; half of the jobs wait for it without a thread
    slice: float = 2  # a slice that backfills load too
    schedules: bool = True  # and backfills
    canceled: float = 5
    retried: float = 2
    lease_sec: tuple[int, ...] = (2, 3)
    max_attempts: int = 6
    zombie_sec: tuple[float, float] = (4.0, 9.0)
    zombie_holds: float = 1.0
    tombs: float = 0.5  # of the zombies, how many share a few keys
    long_sec: tuple[float, float] = (1.0, 6.0)
    steady_sec: tuple[float, float] = (26.0, 36.0)  # half of it is more than each lease
    limited_sec: tuple[float, float] = (0.2, 1.4)
    limited_long: float = 0.5  # of the jobs of a limit, how many take that long
    sql_sec: tuple[float, float] = (2.0, 6.0)  # beyond a lease
    target_sec: tuple[float, float] = (0.0, 0.4)  # in each transaction, and between them
    offload_sec: tuple[float, float] = (0.3, 4.0)
    apart_sec: tuple[float, float] = (0.5, 8.0)  # beyond a lease: whose worker is frozen is ended by its leash

    @property
    def has_limits(self) -> bool:
        return any(getattr(self, kind) for kind in (*LIMITED_KINDS, "fragile"))

    def weights(self) -> Mapping[str, float]:
        names = (
            "short", "hot", "long", "steady", "failing", "fragile", "graph", "parent", "load", "apart", "sql",
            "sql_apart", "legacy", "target", "target_zombie", "offload", "zombie", "delayed", "bulk", "pair", "slice",
            "canceled", "retried", *LIMITED_KINDS,
        )  # fmt: skip
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@dataclass(frozen=True)
class JobRequest:
    """One job, as a caller asks for it."""

    task: str
    lock_key: str
    args: Mapping[str, Any]
    lease_ttl_sec: int
    max_attempts: int
    delay_sec: float | None = None
    queue: str = QUEUE
    limits: Mapping[str, int] | None = None

    def body(self, key: str) -> dict[str, Any]:
        body = {
            "queue": self.queue, "task": self.task, "lock_key": self.lock_key, "args": dict(self.args),
            "lease_ttl_sec": self.lease_ttl_sec, "max_attempts": self.max_attempts, "idempotency_key": key,
            "retry": RETRY_POLICY,
        }  # fmt: skip
        if self.limits:
            body["limits"] = dict(self.limits)
        if self.delay_sec is not None:
            body["available_at"] = (datetime.now(UTC) + timedelta(seconds=self.delay_sec)).isoformat()
        return body


class RequestGenerator:
    """What a seed asks for. The same seed asks for the same, in the same order; when, only the clock knows."""

    def __init__(self, seed: str, mix: Mix) -> None:
        self._random, self._mix = random.Random(seed), mix
        self._seed, self._count = seed, 0

    def next(self) -> tuple[str, str, list[JobRequest]]:
        """A kind of work, an idempotency key, and the jobs."""
        self._count += 1
        weights = self._mix.weights()
        (kind,) = self._random.choices(list(weights), list(weights.values()))
        same_kind = {"bulk": ("short", 30), "partner": ("partner", 8)}
        made, count = same_kind.get(kind, (kind, 1))
        make = self._limited_job if kind in LIMITED_KINDS else self._job
        jobs = [make(made, n) for n in range(count)]
        return kind, f"{self._seed}:{self._count}", jobs

    def _job(self, kind: str, n: int) -> JobRequest:
        chance, mix = self._random, self._mix
        task, delay = "short", None
        args: dict[str, Any] = {}
        key = f"{self._seed}:{self._count}:{n}"
        match kind:
            case "hot":
                key = f"hot {chance.randrange(HOT_KEYS)}"
                if chance.random() < 0.1:
                    task, args = "long", {"seconds": chance.uniform(0.2, 1.0)}
                elif chance.random() < 0.1:
                    task, args = "failing", {"fails": 1}
            case "long" | "steady":
                task = "long"
                args = {"seconds": chance.uniform(*(mix.long_sec if kind == "long" else mix.steady_sec))}
            case "failing" | "fragile" | "parent":
                task, args = kind, {"fails": chance.choice([0, 1, 1, 2, 20] if kind == "failing" else [0, 0, 1])}
            case "apart":
                task, args = kind, {"seconds": chance.uniform(*mix.apart_sec)}
            case "sql" | "sql_apart" | "legacy":
                # On the queue's own server, which suffers faults, and on one that does not: there a session lives on.
                target = chance.choice(SQL_TARGETS)
                task, args = kind, {"seconds": chance.uniform(*mix.sql_sec), "target": target}
                key = f"sql {chance.randrange(SQL_KEYS)}" if chance.random() < 0.6 else key
            case "offload":
                task = chance.choice(("offload", "offload_wait"))
                args = {"seconds": chance.uniform(*mix.offload_sec), "fails": chance.random() < 0.15}
            case "zombie":
                task, args = kind, self._zombie_args() | {"final": chance.random() < 0.5}
                key = f"tomb {chance.randrange(6)}" if chance.random() < mix.tombs else key
            case "load" | "target" | "target_zombie":
                task, args = self._load(kind)
            case "slice":
                task, args = kind, {"seconds": chance.uniform(0.2, 1.0)}
                key = f"slice:chaos.slice:2026-01-{chance.randrange(1, 3):02}T{chance.randrange(24):02}+00:00"
            case "delayed":
                delay = chance.uniform(0.5, 8.0)
        args = args | {"queue": QUEUE}
        attempts = 3 if task == "failing" else mix.max_attempts
        lease_sec = min(mix.lease_sec) if kind == "steady" else chance.choice(mix.lease_sec)
        return JobRequest(f"chaos.{task}", key, args, lease_sec, attempts, delay)

    def _zombie_args(self) -> dict[str, Any]:
        return {"seconds": self._random.uniform(*self._mix.zombie_sec), "holds": self._mix.zombie_holds}

    def _load(self, kind: str) -> tuple[str, dict[str, Any]]:
        if kind == "load":
            return kind, {}
        if kind == "target_zombie":
            return kind, self._zombie_args()
        args = {
            "shape": self._random.choice(TARGET_SHAPES),
            "parts": self._random.randint(3, 6),
            "seconds": self._random.uniform(*self._mix.target_sec),
        }
        return "target_apart" if self._random.random() < _TARGET_APART else kind, args

    def _limited_job(self, kind: str, n: int) -> JobRequest:
        chance, mix = self._random, self._mix
        task, seconds = "short", 0.0
        if kind != "partner" and chance.random() < mix.limited_long:
            task, seconds = "long", chance.uniform(*mix.limited_sec)
        elif chance.random() < 0.1:
            task = "failing"
        has_hot_key = chance.random() < 0.1
        return JobRequest(
            f"chaos.{task}",
            f"hot {chance.randrange(HOT_KEYS)}" if has_hot_key else f"{self._seed}:{self._count}:{n}",
            {"seconds": seconds, "fails": 1, "queue": QUEUE},
            chance.choice(mix.lease_sec),
            mix.max_attempts,
            queue=chance.choice((QUEUE, OTHER_QUEUE)),
            limits=self._limits(kind),
        )

    def _limits(self, kind: str) -> dict[str, int]:
        limits = {f"tenant:{self._random.randrange(TENANTS)}": 1} if kind == "tenant" else {}
        if kind == "warehouse" or self._random.random() < 0.2:
            limits[CHANGED_LIMIT] = self._random.choice((1, 1, MAX_WEIGHT))
        return limits | ({"partner": 1} if kind == "partner" else {})
