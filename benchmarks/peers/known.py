"""The peers: what each needs, what drives it, and what it does differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True, eq=False)
class Peer:
    name: str
    driver: str  # a file in drivers/
    needs: tuple[str, ...]  # packages; none: the project's own environment
    differs: str
    store: Literal["postgres", "redis"] = "postgres"
    oldest_python: tuple[int, int] = (3, 11)
    bulk: bool = True  # whether it has a way to enqueue many at once
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """What it is called on the command line."""
        return self.path.stem.removeprefix("with_")

    @property
    def on_node(self) -> bool:
        return self.driver.endswith(".mjs")

    @property
    def path(self) -> Path:
        return DRIVERS / self.driver


OURS = Peer("dataloader", "with_dataloader.py", (), "keeps rows and a journal of every move; threads")
ALL = (
    OURS,
    Peer(
        "dataloader, 2 processes",
        "with_dataloader.py",
        (),
        "the same, 2 × the threads",
        environ={"BENCH_PROCESSES": "2"},
    ),
    Peer(
        "graphile-worker",
        "with_graphile_worker.mjs",
        ("graphile-worker@0.17", "pg@8"),
        "deletes rows, no journal; local queue of 500, completions batched",
    ),
    Peer("pg-boss", "with_pg_boss.mjs", ("pg-boss@10", "pg@8"), "keeps rows, no journal; polls; batches of 500"),
    Peer(
        "pgqueuer",
        "with_pgqueuer.py",
        ("pgqueuer>=1.6,<2", "asyncpg", "uvloop"),
        "deletes rows, keeps a log line a job; asyncio, a batch of 500 at a time",
    ),
    Peer(
        "procrastinate",
        "with_procrastinate.py",
        ("procrastinate>=3,<4", "psycopg[binary,pool]"),
        "keeps rows and events; asyncio",
    ),
    Peer(
        "oban",
        "with_oban.py",
        ("oban>=0.7,<1", "psycopg[binary,pool]", "uvloop"),
        "keeps rows, no journal; asyncio",
        oldest_python=(3, 12),
    ),
    Peer(
        "dramatiq-pg",
        "with_dramatiq_pg.py",
        ("dramatiq-pg>=0.12", "dramatiq<2", "psycopg2-binary", "setuptools<80"),
        "keeps rows, no journal; threads",
        bulk=False,
    ),
    Peer(
        "huey",
        "with_huey.py",
        ("huey>=3.2", "psycopg[binary]"),
        "deletes a row before the job runs: one that dies is lost; threads",
        bulk=False,
    ),
    Peer(
        "celery + Redis",
        "with_celery.py",
        ("celery[redis]>=5.4",),
        "in memory, not durable; acknowledges before the job runs; processes",
        store="redis",
        bulk=False,
    ),
    Peer("rq + Redis", "with_rq.py", ("rq>=2",), "in memory, not durable; a process a job", store="redis"),
)
