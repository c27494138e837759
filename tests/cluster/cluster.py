"""One run of a cluster: servers, worker processes on hosts, load, and the evidence afterwards."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from dataloader.app.db.schema import migrate
from dataloader.app.postgres.binaries import Choice
from tests.chaos import etl, observer
from tests.chaos.checker import Violation, check
from tests.chaos.client_log import ClientLog, read_client_log
from tests.chaos.clock import clock
from tests.chaos.history import read_history
from tests.chaos.job_requests import Mix
from tests.chaos.load import Load
from tests.chaos.servers import Server
from tests.chaos.services import HEARTBEAT_SEC, service_environment
from tests.cluster.network import DATABASE, HUB, Network
from tests.support.processes import ROOT, Process
from tests.support.waiting import eventually

THREADS = 4
LEASE_SEC = 3  # the longest of the load's
_PORT = 5432
_FIRST_PROXY_PORT = 7001
# As a machine of its own: pids of its own, so that no other host can prove its death, and a name of its own.
_MACHINE = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child")
# Without what needs processes of its own or a second server, which a host that is cut off still reaches here.
MIX = Mix(
    apart=0, sql=0, sql_apart=0, legacy=0, target=0, target_zombie=0, slice=0, schedules=False, zombie=2, warehouse=0,
    tenant=0, partner=0, fragile=0, zombie_sec=(2.0, 5.0), long_sec=(1.0, 4.0), long=10,
)  # fmt: skip


@dataclass
class Host:
    """A machine with one worker process."""

    name: str
    dsn: str
    process: Process | None = None
    exit_codes: list[int] = field(default_factory=list)


class Cluster:
    """Hosts `h1`, `h2`, … and a database in a namespace of its own. The caller reaches all servers by Unix sockets."""

    def __init__(self, network: Network, hosts: int, *, binaries: Choice = "auto", seed: int = 1) -> None:
        self.network, self._binaries = network, binaries
        self.folder = Path(tempfile.mkdtemp(prefix="dl-cluster-"))
        self.folder.chmod(0o755)  # the servers have another account
        self.server, self.observer = self._make_server("queue", 400), self._make_server("witness", 300)
        self.client_log = ClientLog(self.folder / "told.jsonl")
        self.load = Load(seed, MIX, self.client_log, dsn=lambda: self.server.dsn, port=None, per_sec=25.0)
        self.hosts = [Host(f"h{n}", "") for n in range(1, hosts + 1)]
        self._proxies: list[Process] = []

    def _make_server(self, name: str, connections: int) -> Server:
        settings = {"max_connections": str(connections), "listen_addresses": "*"}
        return Server(self.folder / name, binaries=self._binaries, settings=settings)

    def build(self) -> None:
        for host in self.hosts:
            self.network.add(host.name)
        with self.network.inside(DATABASE):
            self.server.create()
        allow_network(self.server)
        with self.network.inside(HUB):
            self.observer.create()
        migrate(self.server.dsn)
        for statement in (etl.TARGET, etl.EFFECTS):
            self.server.query(statement)
        self.observer.query(observer.CREATE_TABLE)
        self.observer.query(etl.EFFECTS)
        for host in self.hosts:
            host.dsn = host.dsn or tcp_dsn(self.network.address(DATABASE), _PORT)

    def put_proxy_before(self, number: int, *, delay_sec: float = 0.0, bytes_per_sec: float = 0.0) -> None:
        """Let the host of this number reach the database by a proxy in the hub. Before its start."""
        port = _FIRST_PROXY_PORT + number
        with self.network.inside(HUB):
            proxy = start_proxy(
                self.folder, port, f"{self.network.address(DATABASE)}:{_PORT}", delay_sec, bytes_per_sec
            )
        self._proxies.append(proxy)
        self.hosts[number].dsn = tcp_dsn(self.network.address(HUB), port)

    # ── hosts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        for host in self.hosts:
            self.start_host(host)
        self.wait_for_all_hosts(120)

    def start_host(self, host: Host) -> None:
        env = service_environment(host.dsn, self.observer.dsn, threads=THREADS)
        command = f"hostname {host.name} && exec {sys.executable} -m tests.chaos.launch '' dataloader worker"
        with self.network.inside(host.name):
            argv = [*_MACHINE, "sh", "-c", command]
            host.process = Process(argv, env=env, output=self.folder / f"{host.name}.log", cwd=ROOT)

    def stop_host(self, host: Host) -> int:
        """SIGTERM to the worker, as a service manager does it."""
        assert host.process is not None
        for child in psutil.Process(host.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        code = host.process.wait(30)
        host.exit_codes.append(code)
        host.process.kill()
        return code

    @contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Cut this namespace off from all others."""
        self.network.cut(name)
        try:
            yield
        finally:
            self.network.heal(name)

    def wait_for_all_hosts(self, timeout_sec: float = 30) -> None:
        names = {host.name for host in self.hosts}
        eventually(lambda: set(self.live_workers()) >= names, timeout_sec, "every host is there", interval_sec=0.1)

    def live_workers(self) -> list[str]:
        rows = self.server.query(
            "SELECT split_part(name, ':', 1) FROM dl_workers"
            " WHERE dead_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => 3 * heartbeat_sec)"
        )
        return [name for (name,) in rows]

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self, timeout_sec: float = 300) -> None:
        """No new jobs, and wait until all have ended."""
        self.load.stop()
        self.load.join()
        unfinished = "SELECT count(*) FROM dl_jobs WHERE status IN ('queued', 'running')"
        eventually(lambda: self.server.query(unfinished) == [(0,)], timeout_sec, self.describe_rest, interval_sec=0.2)

    def describe_rest(self) -> str:
        return str(
            self.server.query(
                "SELECT status, wait_state, task, worker, count(*) FROM dl_jobs WHERE status IN ('queued', 'running')"
                " GROUP BY 1, 2, 3, 4"
            )
        )

    def violations(self) -> list[Violation]:
        """What the checker of the fault campaign finds, with the events and the witness as evidence."""
        history = read_history(
            self.server.query,
            self.observer.query,
            read_client_log(self.client_log.file),
            heartbeat_sec=HEARTBEAT_SEC,
            wall=time.time() - clock(),
        )
        return check(history)

    def events(self, where: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Kind, reason, attempt, host and time of events."""
        return self.server.query(
            "SELECT kind, payload ->> 'reason', (payload ->> 'attempt')::int, job_id::text,"
            f" extract(epoch FROM ts)::float8 FROM dl_job_events WHERE {where} ORDER BY event_id",
            *parameters,
        )

    def crashed(self) -> list[str]:
        """Hosts whose process has ended although it was not stopped, with the end of their log."""
        return [
            f"{host.name}: {host.process.text[-2000:]}"
            for host in self.hosts
            if host.process is not None and host.process.exit_code is not None and not host.exit_codes
        ]

    def remove(self) -> None:
        self.load.stop()
        for process in [*(host.process for host in self.hosts), *self._proxies]:
            if process is not None:
                process.kill()
        self.client_log.close()
        for server in (self.server, self.observer):
            server.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


def tcp_dsn(host: str, port: int) -> str:
    return f"host={host} port={port} user=dataloader dbname=postgres"


def allow_network(server: Server) -> None:
    """Let every host of the cluster connect."""
    with (server.folder / "cluster/pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write("host all all 10.77.0.0/16 trust\n")
    server.query("SELECT pg_reload_conf()")


def start_proxy(folder: Path, port: int, target: str, delay_sec: float, bytes_per_sec: float) -> Process:
    """Start a proxy in the namespace of this thread."""
    words = [str(port), target, str(delay_sec), str(bytes_per_sec)]
    proxy = Process([sys.executable, "-m", "tests.cluster.proxy", *words], output=folder / f"proxy-{port}.log")
    proxy.wait_for_line("ready")
    return proxy


@contextmanager
def running_cluster(
    hosts: int, *, binaries: Choice = "auto", seed: int = 1, slow: Sequence[int] = ()
) -> Iterator[Cluster]:
    """A cluster under load. `slow`: numbers of hosts with a line of 20 kB a second."""
    with Network() as network:
        made = Cluster(network, hosts, binaries=binaries, seed=seed)
        try:
            made.build()
            for number in slow:
                made.put_proxy_before(number, bytes_per_sec=20_000)
            made.start()
            made.load.start()
            yield made
        except psycopg2.Error as error:
            raise AssertionError(f"the caller's own connection broke: {error}") from error
        finally:
            made.remove()
