"""The peers: requirements, driver and differences of each."""

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
    requirements: tuple[str, ...]  # packages; none: uses the project's environment
    differences: str
    store: Literal["postgres", "redis"] = "postgres"
    oldest_python: tuple[int, int] = (3, 11)
    bulk: bool = True  # whether it can enqueue many jobs at once
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def command_name(self) -> str:
        """The name on the command line."""
        return self.path.stem.removeprefix("with_")

    @property
    def is_node(self) -> bool:
        return self.driver.endswith(".mjs")

    @property
    def path(self) -> Path:
        return DRIVERS / self.driver


DATALOADER = Peer("dataloader", "with_dataloader.py", (), "keeps rows and an event for every transition; threads")
PEERS = (
    DATALOADER,
    Peer(
        "dataloader, 2 processes",
        "with_dataloader.py",
        (),
        "the same, with twice the threads",
        environ={"BENCH_PROCESSES": "2"},
    ),
    Peer(
        "graphile-worker",
        "with_graphile_worker.mjs",
        ("graphile-worker@0.17", "pg@8"),
        "deletes rows, no events; local queue of 500, completions batched",
    ),
    Peer("pg-boss", "with_pg_boss.mjs", ("pg-boss@10", "pg@8"), "keeps rows, no events; polls; batches of 500"),
    Peer(
        "pgqueuer",
        "with_pgqueuer.py",
        ("pgqueuer>=1.6,<2", "asyncpg", "uvloop"),
        "deletes rows, keeps a log line per job; asyncio, a batch of 500 at a time",
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
        "keeps rows, no events; asyncio",
        oldest_python=(3, 12),
    ),
    Peer(
        "dramatiq-pg",
        "with_dramatiq_pg.py",
        ("dramatiq-pg>=0.12", "dramatiq<2", "psycopg2-binary", "setuptools<80"),
        "keeps rows, no events; threads",
        bulk=False,
    ),
    Peer(
        "huey",
        "with_huey.py",
        ("huey>=3.2", "psycopg[binary]"),
        "deletes the row before the job runs, so a crash loses the job; threads",
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
    Peer("rq + Redis", "with_rq.py", ("rq>=2",), "in memory, not durable; a process per job", store="redis"),
)
