"""What accounts cost, how often the sampler looks, and which servers there are: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataloader.app.features.targets.servers import TargetServers

_WRITE_INTERVAL_SEC = 60.0  # of an account that grows


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What an hour costs: of a CPU, of a gigabyte of memory, and of an attempt."""

    cpu_hour: float = 0.0
    memory_gb_hour: float = 0.0
    run_hour: float = 0.0
    currency: str = ""

    def cost(self, *, cpu_sec: float, memory_gb_sec: float, wall_sec: float) -> float:
        per_hour = self.cpu_hour * cpu_sec + self.memory_gb_hour * memory_gb_sec + self.run_hour * wall_sec
        return round(per_hour / 3600, 6)


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """An interval of 0 turns the sampler off."""

    after_sec: float = 10.0  # the age of the attempts that are looked at
    interval_sec: float = 1.0
    prices: Prices | None = None
    write_interval_sec: float = _WRITE_INTERVAL_SEC


@dataclass(frozen=True)
class WhereOptions:
    """The feature's options: the targets whose sessions pages read, and what worker processes sample."""

    servers: TargetServers = field(default_factory=lambda: TargetServers({}))
    sampler: SamplerOptions = field(default_factory=SamplerOptions)
