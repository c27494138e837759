"""Everything of one campaign: the servers, the proxies, the processes under test, the callers and the witness."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2

from app.postgres.binaries import Choice
from app.queue.schema import migrate
from tests.chaos import etl, witness
from tests.chaos.load import Load, Mix
from tests.chaos.proxy import Proxy
from tests.chaos.record import Record
from tests.chaos.servers import Server
from tests.chaos.services import Service, can_have_namespaces, environment
from tests.support.processes import free_port
from tests.support.waiting import eventually

DISK_MB = 640


@dataclass(frozen=True)
class Shape:
    """How big a campaign is."""

    workers: int = 3
    api: bool = True
    per_sec: float = 20.0
    mix: Mix = field(default_factory=Mix)
    threads: int = 4
    namespaces: bool = True  # the last worker has a namespace of pids of its own, where that is allowed
    binaries: Choice = "auto"
    mutant: str = ""
    server: Mapping[str, str] = field(default_factory=dict)  # settings of the primary


class World:
    def __init__(self, seed: int, shape: Shape, *, say: Callable[[str], None]) -> None:
        self.seed, self.shape, self.say = seed, shape, say
        self.folder = Path(tempfile.mkdtemp(prefix="dl-chaos-"))
        self.folder.chmod(0o755)  # as root the servers have another account, which must get there
        self._servers: list[Server] = []
        self.services: list[Service] = []
        self.proxies: list[Proxy] = []
        self._over = threading.Event()
        self._manager = threading.Thread(target=self._look_after_services, name="service-manager", daemon=True)

    # ── a life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self) -> None:
        self.witness = self.make_server(settings={"shared_buffers": "16MB"})
        self.witness.make()
        self.witness.ask(witness.TABLE)
        self.witness.ask(etl.EFFECTS)
        self.primary = self.make_server(disk_mb=DISK_MB, settings=self.shape.server)
        self.primary.make()
        migrate(self.primary.dsn)
        self.primary.ask(etl.TARGET)
        self.primary.ask(etl.EFFECTS)
        # One that follows the primary about, as a virtual address does; and two that each stay with their server.
        self.address, *self.slots = (Proxy(self.primary.address) for _ in range(3))
        self.slots[1].refuse()
        self.proxies = [self.address, *self.slots]
        self.record = Record(self.folder / "told.jsonl")
        self._build_services()

    def _build_services(self) -> None:
        shape, said = self.shape, self.witness.dsn
        for n in range(shape.workers):
            dsn = self.multi_host_dsn if n % 2 == 0 else self.address_dsn
            self._add(f"worker-{n + 1}", ("dataloader", "worker"), environment(dsn, said, threads=shape.threads))
        # As containers on one host: the pids of one mean other processes to the others.
        self.services[-1].own_namespace = shape.namespaces and can_have_namespaces()
        port = None
        if shape.api:
            port = free_port()
            env = environment(self.address_dsn, said, threads=shape.threads) | {"APP_PORT": str(port)}
            self._add("gunicorn", ("gunicorn", "wsgi:app"), env)
        self.load = Load(
            self.seed, shape.mix, self.record, dsn=lambda: self.address_dsn, port=port, per_sec=shape.per_sec
        )

    def _add(self, name: str, argv: tuple[str, ...], env: dict[str, str]) -> None:
        self.services.append(Service(name, argv, env, self.folder, mutant=self.shape.mutant))

    def start(self) -> None:
        for service in self.services:
            service.start()
        eventually(self.all_workers_known, 180, lambda: "\n".join(s.text()[-1500:] for s in self.services), period=0.1)
        self.load.start()
        self._manager.start()

    def _look_after_services(self) -> None:
        """As a service manager does: what has ended is started again, unless a fault has it down on purpose."""
        while not self._over.wait(0.3):
            for service in self.services:
                if not service.down:
                    service.start()

    def all_workers_known(self) -> bool:
        """Every process has registered itself with the queue."""
        ((known,),) = self.primary.ask("SELECT count(DISTINCT name) FROM dl_workers")
        return int(known) >= len(self.services)

    def heal(self) -> None:
        """Undo whatever a fault may have left, and see that everything runs."""
        for proxy in self.proxies:
            proxy.heal()
            proxy.cut_halves()
        self.slots[1 - self.slot].refuse()
        for service in self.services:
            service.thaw()
            service.down = False
        if not self.primary.answers():
            with suppress(RuntimeError):
                self.primary.start()

    def quiet(self, timeout: float, *, but_for: int = 0) -> float:
        """No more is asked for and nothing is broken any more: how long until every job has ended, but for so many?
        -1: not in time."""
        began = time.monotonic()
        self.load.stop()
        self.load.join()
        while time.monotonic() - began < timeout:
            with suppress(psycopg2.Error):
                if self.unfinished() <= but_for:
                    return time.monotonic() - began
            time.sleep(0.2)
        return -1.0

    def unfinished(self) -> int:
        ((count,),) = self.primary.ask("SELECT count(*) FROM dl_jobs WHERE status IN ('queued', 'running')")
        return int(count)

    def end(self) -> None:
        """Stop the services, as a service manager does."""
        self._rest()
        for service in self.services:
            service.terminate()
        for service in self.services:
            service.end()

    def _rest(self) -> None:
        self._over.set()
        if self._manager.is_alive():
            self._manager.join(30)

    def remove(self) -> None:
        self._rest()
        for service in self.services:
            service.sweep_up()
        for proxy in self.proxies:
            proxy.close()
        for server in self._servers:
            server.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── servers ─────────────────────────────────────────────────────────────────────────────────────────────────

    slot = 0  # which of the two slots holds the primary

    def make_server(self, *, disk_mb: int | None = None, settings: Mapping[str, str] | None = None) -> Server:
        folder = self.folder / f"server-{len(self._servers)}"
        server = Server(folder, binaries=self.shape.binaries, disk_mb=disk_mb, settings=settings)
        self._servers.append(server)
        return server

    def take_over(self, server: Server) -> None:
        """The server is the primary now: both ways of finding it lead there."""
        old, self.primary, self.slot = self.primary, server, 1 - self.slot
        self.slots[self.slot].heal()
        self.slots[self.slot].lead_to(server.address)
        self.address.lead_to(server.address)
        self.slots[1 - self.slot].refuse()
        self.slots[1 - self.slot].cut()
        old.remove()

    @property
    def address_dsn(self) -> str:
        return f"host=127.0.0.1 port={self.address.port} user=dataloader dbname=postgres"

    @property
    def multi_host_dsn(self) -> str:
        ports = ",".join(str(slot.port) for slot in self.slots)
        return f"host=127.0.0.1,127.0.0.1 port={ports} user=dataloader dbname=postgres target_session_attrs=read-write"

    @property
    def workers(self) -> Sequence[Service]:
        return [service for service in self.services if service.argv[0] != "gunicorn"]

    @property
    def gunicorn(self) -> Service:
        return next(service for service in self.services if service.argv[0] == "gunicorn")


@contextmanager
def world(seed: int, shape: Shape, *, say: Callable[[str], None], keep: bool = False) -> Iterator[World]:
    made = World(seed, shape, say=say)
    try:
        made.build()
        yield made
    finally:
        if keep:
            say(f"kept: {made.folder}")
            for service in made.services:
                service.sweep_up()
        else:
            made.remove()
