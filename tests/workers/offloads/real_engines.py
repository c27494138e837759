"""Real engines on loopback, for `make engines`: each is started once a session, from an environment of its own.

DL_TEST_RAY is the folder of a virtual environment with `ray[default]`, DL_TEST_DASK of one with `distributed`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.executors import Engines
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
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


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return [port for port in ports if port not in _RAY_PORTS]


@contextmanager
def ray_head() -> Iterator[str]:
    """A head with its dashboard, which has the jobs API. Authentication is set: it may be on by default."""
    tools = Path(os.environ["DL_TEST_RAY"]) / "bin"
    gcs, dashboard, agent_http, agent_grpc, client = free_ports(5)
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        log = (Path(folder) / "head.log").open("wb")
        head = subprocess.Popen(
            [
                str(tools / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}",
                f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent_http}",
                f"--dashboard-agent-grpc-port={agent_grpc}", f"--ray-client-server-port={client}",
                "--dashboard-host=127.0.0.1", "--num-cpus=2", "--object-store-memory=80000000",
                f"--temp-dir={folder}/r", "--disable-usage-stats",
            ],
            env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        address = f"http://127.0.0.1:{dashboard}"
        try:
            eventually(lambda: _answers(address, head), 90, "Ray's head answers", interval_sec=0.2)
            yield address
        finally:
            head.terminate()
            try:
                head.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, 9)
                head.wait()
            log.close()


def _answers(address: str, head: subprocess.Popen[bytes]) -> bool:
    import requests

    assert head.poll() is None, "the head has ended"
    try:
        return requests.get(f"{address}/api/jobs/", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def ray_executor(request: pytest.FixtureRequest) -> Any:
    return Engines({"ray": {"address": request.getfixturevalue("ray_address")}}).get("ray")


@contextmanager
def dask_cluster(**settings: str) -> Iterator[str]:
    """A scheduler and a worker process with four threads, which imports this repository."""
    python = str(Path(os.environ["DL_TEST_DASK"]) / "bin" / "python")
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
        "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "false", **settings,
    }  # fmt: skip
    commands = [
        ["dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        ["dask_worker", address, "--nthreads", "4", "--nworkers", "1", "--no-dashboard"],
    ]
    with tempfile.TemporaryDirectory(prefix="dask-") as folder, ExitStack() as processes:
        for command, *arguments in commands:
            process = subprocess.Popen(
                [python, "-m", f"distributed.cli.{command}", *arguments],
                env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            processes.callback(process.wait, 20)
            processes.callback(process.terminate)
        eventually(lambda: _listens(port), 60, "the scheduler listens", interval_sec=0.1)
        yield address


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def dask_executor(request: pytest.FixtureRequest) -> Any:
    return Engines({"dask": {"address": request.getfixturevalue("dask_address")}}).get("dask")
