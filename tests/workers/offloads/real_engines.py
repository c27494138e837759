"""Real engines on loopback, for `make engines`: each is started once a session, from an environment of its own.

DL_TEST_RAY is the folder of a virtual environment with `ray[default]`, DL_TEST_DASK of one with `distributed`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import requests

from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import Executor
from tests.support.processes import free_ports
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
RAY_TOKEN = "a-token-of-the-head-with-32-letters"
_RAY_PORTS = range(10_002, 20_000)  # of its workers: no port of the head may be one


def _needs(variable: str, what: str) -> list[Any]:
    is_missing = variable not in os.environ
    return [
        pytest.mark.engines,
        pytest.mark.skipif(is_missing, reason=f"{variable} names no environment with {what}; see `make engines`"),
        pytest.mark.timeout(300),
    ]


RAY = _needs("DL_TEST_RAY", "ray[default]")
DASK = _needs("DL_TEST_DASK", "distributed")


@dataclass
class RealEngine:
    """Its processes, which are started again on the same ports."""

    ports: list[int]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        raise NotImplementedError

    def commands(self) -> list[list[str]]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def up(self) -> None:
        with (self.folder / "log").open("ab") as log:
            for command in self.commands():
                started = subprocess.Popen(
                    command, env={**os.environ, **self.environment}, cwd=self.folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                self.processes.append(started)
        eventually(self._is_ready, 120, lambda: (self.folder / "log").read_text()[-3000:], interval_sec=0.2)

    def _is_ready(self) -> bool:
        assert all(process.poll() is None for process in self.processes), (self.folder / "log").read_text()[-3000:]
        return self.answers()

    def down(self) -> None:
        """SIGKILL to its processes and all that they have started."""
        for process in self.processes:
            below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            for child in below:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(below, 20)
            process.wait()
        self.processes.clear()


class RayHead(RealEngine):
    """A head with its dashboard, which has the jobs API. Authentication is set on both sides: its default depends on
    the version."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}"

    def commands(self) -> list[list[str]]:
        gcs, dashboard, agent_http, agent_grpc, client = self.ports
        temporary = f"{self.folder}/r{len(list(self.folder.iterdir()))}"
        return [
            [
                f"{os.environ['DL_TEST_RAY']}/bin/ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
                f"--port={gcs}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent_http}",
                f"--dashboard-agent-grpc-port={agent_grpc}", f"--ray-client-server-port={client}",
                "--dashboard-host=127.0.0.1", "--num-cpus=2", "--object-store-memory=80000000",
                f"--temp-dir={temporary}", "--disable-usage-stats",
            ]
        ]  # fmt: skip

    def answers(self) -> bool:
        headers = {"Authorization": f"Bearer {RAY_TOKEN}"}
        try:
            return requests.get(f"{self.address}/api/jobs/", timeout=2, headers=headers).status_code == 200
        except requests.RequestException:
            return False


class DaskCluster(RealEngine):
    """A scheduler and a worker process with eight threads, which imports this repository."""

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.ports[0]}"

    def commands(self) -> list[list[str]]:
        start = [f"{os.environ['DL_TEST_DASK']}/bin/python", "-m"]
        scheduler = ["--host", "127.0.0.1", "--port", str(self.ports[0]), "--no-dashboard"]
        return [
            [*start, "distributed.cli.dask_scheduler", *scheduler],
            [*start, "distributed.cli.dask_worker", self.address, "--nthreads", "8", "--nworkers", "1",
             "--no-dashboard"],
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.ports[0]), 1).close()
        except OSError:
            return False
        return True


@contextmanager
def ray_head() -> Iterator[RayHead]:
    tools = Path(os.environ["DL_TEST_RAY"]) / "bin"
    environment = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RAY_TOKEN, "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ports = [port for port in free_ports(15) if port not in _RAY_PORTS][:5]
        head = RayHead(ports, Path(folder), environment)
        try:
            head.up()
            yield head
        finally:
            head.down()


@contextmanager
def dask_cluster(**settings: str) -> Iterator[DaskCluster]:
    environment = {
        "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
        "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "false", **settings,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="dask-", ignore_cleanup_errors=True) as folder:
        cluster = DaskCluster(free_ports(1), Path(folder), environment)
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()


def ray_executor(head: RayHead) -> Executor:
    return Engines({"ray": {"address": head.address, "token": RAY_TOKEN}}).get("ray")


def dask_executor(cluster: DaskCluster) -> Executor:
    return Engines({"dask": {"address": cluster.address}}).get("dask")
