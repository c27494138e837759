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

from dataloader.app.db.schema import migrate
from dataloader.app.postgres.binaries import Choice
from tests.chaos import etl, observer
from tests.chaos.client_log import ClientLog
from tests.chaos.engine import CampaignEngine
from tests.chaos.history import PAST_QUEUE
from tests.chaos.job_requests import Mix
from tests.chaos.limit_changes import LimitOperator
from tests.chaos.load import Load
from tests.chaos.proxy import FaultProxy
from tests.chaos.row_monitor import RowMonitor
from tests.chaos.schedule_changes import ScheduleOperator
from tests.chaos.servers import Server
from tests.chaos.services import THREADS, ManagedService, can_have_namespaces, service_environment
from tests.model import record
from tests.support.fake_engine import install_entry_points
from tests.support.processes import ROOT, free_port
from tests.support.waiting import eventually
from tests.target_proof.site import prepare_target

DISK_MB = 640
_PAST_JOB_BYTES = 4000
_LOG_INTERVAL_SEC = 15.0  # while it waits for the end of all jobs
# Past all triggers, which would take minutes.
_PAST = """
SET session_replication_role = replica;
INSERT INTO dl_jobs (queue, task, lock_key, status, wait_state, attempt, run_id, created_at, started_at, finished_at)
SELECT '{queue}', 'past.' || n % 20, 'past ' || n, 'succeeded', 'scheduled', 1, gen_random_uuid(),
       began, began, began + interval '1 min'
  FROM generate_series(1, {count}) n CROSS JOIN LATERAL (SELECT now() - interval '1 day' * n / {count} AS began) x;
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT job_id, queue, CASE kind WHEN 'queued' THEN created_at ELSE finished_at END, kind, '{{"status": "succeeded"}}'
  FROM dl_jobs CROSS JOIN unnest(ARRAY['queued', 'done']) AS kind;
ANALYZE dl_jobs, dl_job_events;
RESET session_replication_role
"""


@dataclass(frozen=True)
class CampaignSize:
    """How big a campaign is."""

    workers: int = 3
    api: bool = True
    per_sec: float = 20.0
    mix: Mix = field(default_factory=Mix)
    threads: int = THREADS  # so many that the load fits: a job of it takes 1.5 s of a thread on average
    namespaces: bool = True  # the last worker has a namespace of pids of its own, where that is allowed
    binaries: Choice = "auto"
    mutant: str = ""
    server: Mapping[str, str] = field(default_factory=dict)  # settings of the primary
    changes_limits: bool = True  # an operator changes a limit meanwhile
    past_jobs: int = 0  # that are in the tables when it begins, with two events each


class Environment:
    def __init__(self, seed: int, size: CampaignSize, *, log: Callable[[str], None]) -> None:
        self.seed, self.size, self.log = seed, size, log
        self.folder = Path(tempfile.mkdtemp(prefix="dl-chaos-"))
        self.folder.chmod(0o755)  # as root the servers have another account, which must get there
        self.client_log = ClientLog(self.folder / "responses.jsonl")
        self._servers: list[Server] = []
        self.services: list[ManagedService] = []
        self.proxies: list[FaultProxy] = []  # of the queue's server
        self._proxies: list[FaultProxy] = []  # all of them
        self.engine: CampaignEngine | None = None  # where the load has work for one
        self._stopping = threading.Event()
        self._manager = threading.Thread(target=self._restart_ended_services, name="service-manager", daemon=True)

    # ── a life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self) -> None:
        self.observer = self.make_server(settings={"shared_buffers": "16MB"})
        self.observer.create()
        self.observer.query(observer.CREATE_TABLE)
        self.observer.query(etl.EFFECTS)
        self.target = self.make_server(settings={"shared_buffers": "16MB"})
        self.target.create()
        prepare_target(self.target.dsn)
        self.target_proxy = self._make_proxy(self.target)
        self.disk_mb = DISK_MB + self.size.past_jobs * _PAST_JOB_BYTES // 1_000_000
        self.primary = self.make_server(disk_mb=self.disk_mb, settings=self.size.server)
        self.primary.create()
        migrate(self.primary.dsn)
        if self.size.past_jobs:
            self.primary.query(_PAST.format(count=self.size.past_jobs, queue=PAST_QUEUE), timeout_sec=1800)
        self.primary.query(etl.TARGET)
        self.primary.query(etl.EFFECTS)
        self.primary.query(record.CREATE_TABLES)
        # One that follows the primary about, as a virtual address does; and two that each stay with their server.
        self.address, *self.slots = (self._make_proxy(self.primary) for _ in range(3))
        self.slots[1].refuse()
        self.proxies = [self.address, *self.slots]
        self.monitor = RowMonitor(lambda: self.primary.connect(timeout_sec=3, name="chaos-monitor"))
        self.operator = LimitOperator(self.seed, lambda: self.address_dsn)
        if self.size.mix.has_limits:
            self.operator.set_all()
        self.schedules = ScheduleOperator(self.seed, lambda: self.address_dsn, self.client_log)
        if self.size.mix.schedules:
            self.schedules.create_schedules()
        if self.size.mix.offload:
            self.engine = CampaignEngine(self.folder, self.seed, has_intent=self._has_intent)
            self.engine.up()
        self._build_services()

    def _make_proxy(self, server: Server) -> FaultProxy:
        made = FaultProxy(server.address)
        self._proxies.append(made)
        return made

    def _has_intent(self, name: str) -> bool | None:
        """Whether the row of an offload is committed, in the server itself: no proxy lies between."""
        try:
            return bool(self.primary.query("SELECT 1 FROM dl_offloads WHERE name = %s", name, timeout_sec=2))
        except psycopg2.Error:
            return None

    def _service_environment(self, dsn: str) -> dict[str, str]:
        mix, engine = self.size.mix, self.engine
        env = service_environment(
            dsn, self.observer.dsn, target_dsn=self.target_dsn, threads=self.size.threads, has_schedules=mix.schedules,
            engine=None if engine is None else engine.address,
        )  # fmt: skip
        return env if engine is None else env | {"PYTHONPATH": f"{install_entry_points(self.folder)}:{ROOT}"}

    def _build_services(self) -> None:
        shape = self.size
        for n in range(shape.workers):
            dsn = self.multi_host_dsn if n % 2 == 0 else self.address_dsn
            self._add(
                f"worker-{n + 1}",
                ("dataloader", "worker"),
                self._service_environment(dsn),
            )
        # As containers on one host: the pids of one mean other processes to the others.
        self.services[-1].own_namespace = shape.namespaces and can_have_namespaces()
        port = None
        if shape.api:
            port = free_port()
            env = self._service_environment(self.address_dsn) | {"APP_PORT": str(port)}
            self._add("gunicorn", ("gunicorn", "wsgi:app"), env)
        self.load = Load(
            self.seed, shape.mix, self.client_log, dsn=lambda: self.address_dsn, port=port, per_sec=shape.per_sec
        )

    def _add(self, name: str, argv: tuple[str, ...], env: dict[str, str]) -> None:
        self.services.append(ManagedService(name, argv, env, self.folder, mutant=self.size.mutant))

    def start(self) -> None:
        for service in self.services:
            service.start()
        eventually(
            self.all_workers_registered,
            180,
            lambda: "\n".join(s.text()[-1500:] for s in self.services),
            interval_sec=0.1,
        )
        self.load.start()
        self.monitor.start()
        if self.size.mix.has_limits and self.size.changes_limits:
            self.operator.start()
        if self.size.mix.schedules:
            self.schedules.start()
        self._manager.start()

    def _restart_ended_services(self) -> None:
        """As a service manager does: what has ended is started again, unless a fault has it down on purpose."""
        while not self._stopping.wait(0.3):
            for service in self.services:
                if not service.is_kept_down:
                    service.start()

    def all_workers_registered(self) -> bool:
        """Every process has registered itself with the queue."""
        ((known,),) = self.primary.query("SELECT count(DISTINCT name) FROM dl_workers")
        return int(known) >= len(self.services)

    def heal(self) -> None:
        """Undo whatever a fault may have left, and see that everything runs."""
        for proxy in self.proxies:
            proxy.heal()
            proxy.cut_half_open()
        self.slots[1 - self.slot].refuse()
        self.target_proxy.heal()
        if self.engine is not None:
            self.engine.heal()
        for service in self.services:
            service.thaw()
            service.is_kept_down = False
        for server in (self.primary, self.target):
            if not server.is_accepting():
                with suppress(RuntimeError):
                    server.start()

    def wait_until_quiet(self, timeout: float, *, except_jobs: int = 0) -> float:
        """No more is asked for and nothing is broken any more: how long until every job has ended, but for so many?
        -1: not in time."""
        began = time.monotonic()
        self.load.stop()
        self.operator.stop()
        self.schedules.stop()
        self.load.join()
        said_at = began - _LOG_INTERVAL_SEC
        while time.monotonic() - began < timeout:
            with suppress(psycopg2.Error):
                left = self.unfinished()
                if left <= except_jobs:
                    return time.monotonic() - began
                if time.monotonic() - said_at >= _LOG_INTERVAL_SEC:
                    said_at = time.monotonic()
                    self.log(f"{said_at - began:6.1f} s  {left} jobs, backfills, updates and offloads are left")
            time.sleep(0.2)
        return -1.0

    def unfinished(self) -> int:
        """Jobs, backfills, updates of datasets and work on the engine that are not done with."""
        ((count,),) = self.primary.query(
            "SELECT (SELECT count(*) FROM dl_jobs WHERE status IN ('queued', 'running'))"
            "     + (SELECT count(*) FROM dl_backfills WHERE state IN ('open', 'paused'))"
            "     + (SELECT count(*) FROM dl_dataset_updates)"
            "     + (SELECT count(*) FROM dl_offloads WHERE ended_at IS NULL)"
        )
        return int(count)

    def stop(self) -> None:
        """Stop the services, as a service manager does."""
        self._stop_rest()
        for service in self.services:
            service.terminate()
        for service in self.services:
            service.stop()

    def _stop_rest(self) -> None:
        self._stopping.set()
        self.monitor.stop()
        if self._manager.is_alive():
            self._manager.join(30)

    def remove(self) -> None:
        self._stop_rest()
        for service in self.services:
            service.kill_remaining()
        if self.engine is not None:
            self.engine.close()
        for proxy in self._proxies:
            proxy.close()
        for server in self._servers:
            server.remove()
        self.client_log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── servers ─────────────────────────────────────────────────────────────────────────────────────────────────

    slot = 0  # which of the two slots holds the primary

    def make_server(self, *, disk_mb: int | None = None, settings: Mapping[str, str] | None = None) -> Server:
        folder = self.folder / f"server-{len(self._servers)}"
        server = Server(folder, binaries=self.size.binaries, disk_mb=disk_mb, settings=settings)
        self._servers.append(server)
        return server

    def promote_to_primary(self, server: Server) -> None:
        """The server is the primary now: both ways of finding it lead there."""
        old, self.primary, self.slot = self.primary, server, 1 - self.slot
        self.slots[self.slot].heal()
        self.slots[self.slot].redirect_to(server.address)
        self.address.redirect_to(server.address)
        self.slots[1 - self.slot].refuse()
        self.slots[1 - self.slot].cut()
        old.remove()

    @property
    def address_dsn(self) -> str:
        return f"host=127.0.0.1 port={self.address.port} user=dataloader dbname=postgres"

    @property
    def target_dsn(self) -> str:
        return f"host=127.0.0.1 port={self.target_proxy.port} user=dataloader dbname=postgres"

    @property
    def multi_host_dsn(self) -> str:
        ports = ",".join(str(slot.port) for slot in self.slots)
        return f"host=127.0.0.1,127.0.0.1 port={ports} user=dataloader dbname=postgres target_session_attrs=read-write"

    @property
    def workers(self) -> Sequence[ManagedService]:
        return [service for service in self.services if service.argv[0] != "gunicorn"]

    @property
    def gunicorn(self) -> ManagedService:
        return next(service for service in self.services if service.argv[0] == "gunicorn")


@contextmanager
def make_environment(
    seed: int, size: CampaignSize, *, log: Callable[[str], None], keep: bool = False
) -> Iterator[Environment]:
    made = Environment(seed, size, log=log)
    try:
        made.build()
        yield made
    finally:
        if keep:
            log(f"kept: {made.folder}")
            for service in made.services:
                service.kill_remaining()
        else:
            made.remove()
