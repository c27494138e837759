"""The image on a real Docker engine: what is made from it, who runs it, and how it stops.

Needs an engine with a base image of Dockerfile's name, or a registry to pull it from; DOCKER_HOST may name the engine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
import yaml
from psycopg2.extensions import parse_dsn

from dataloader.app.db.schema import migrate
from tests.support.engine import base_image, build_image, code_block, docker, require_engine, yaml_blocks
from tests.support.processes import free_port
from tests.support.proxy import SilentProxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
DERIVED = "dataloader-test:derived"
POD_USER = "10001:10001"
TASKS = """
from pathlib import Path
import polars
from dataloader import register

@register("acme.wait")
def wait(args, ctx):
    while not Path("/tmp/go").exists():
        ctx.sleep(0.05)
"""
HARDENED = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--init"]


@pytest.fixture(scope="module")
def image() -> str:
    require_engine(base_image())
    return build_image()


@pytest.fixture(scope="module")
def derived(image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image by the lines that docs/deploying.md shows."""
    folder = tmp_path_factory.mktemp("derived")
    (folder / "acme_etl").mkdir()
    (folder / "acme_etl" / "__init__.py").write_text(TASKS)
    lines = code_block("dockerfile", "## Docker and compose")
    assert len(lines.splitlines()) == 4
    (folder / "Dockerfile").write_text(lines)
    docker("build", "--network=host", f"--tag={DERIVED}", folder)
    return DERIVED


class Containers:
    """Containers on this machine's network, run by an account that the image does not know, with a secret as a file."""

    def __init__(self, dsn: str, folder: Path, image: str) -> None:
        self._started: list[str] = []
        (folder / "password").write_text("not-asked-for\n")
        parts = parse_dsn(dsn)
        settings = {
            "PG_HOST": parts["host"], "PG_PORT": parts["port"],
            "PG_USER": parts["user"], "PG_DATABASE": parts["dbname"],
            "PG_PASSWORD_FILE": "/run/secrets/password", "APP_PORT": str(free_port()), "DL_AUTH": "none",
        }  # fmt: skip
        self._options = [f"--env={name}={value}" for name, value in settings.items()]
        self._options += [f"--volume={folder / 'password'}:/run/secrets/password:ro", "--network=host", *HARDENED]
        self._image = image

    def start(self, *words: str, user: str = "12345:0", settings: Mapping[str, str] | None = None) -> str:
        name = f"dataloader-test-{uuid4().hex[:12]}"
        self._started.append(name)
        options = [*self._options, *(f"--env={key}={value}" for key, value in (settings or {}).items())]
        docker("run", "--detach", f"--name={name}", f"--user={user}", *options, self._image, *words)
        return name

    def remove(self) -> None:
        for name in self._started:
            docker("rm", "--force", name)


@pytest.fixture
def containers(derived: str, server: Any, tmp_path: Path) -> Iterator[Containers]:
    migrate(server.dsn)
    with SilentProxy(server.dsn) as proxy:
        started = Containers(proxy.dsn, tmp_path, derived)
        yield started
        started.remove()


def query(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def enqueue(dsn: str) -> str:
    job = str(uuid4())
    insert = "INSERT INTO dl_jobs (job_id, queue, task, lock_key) VALUES (%s, 'etl.default', 'acme.wait', %s)"
    query(dsn, insert, job, job)
    return job


def row(dsn: str, job: str) -> tuple[str, int]:
    ((status, attempt),) = query(dsn, "SELECT status, attempt FROM dl_jobs WHERE job_id = %s", job)
    return status, attempt


def releases(dsn: str, job: str) -> list[str]:
    """Of the attempts of a job."""
    statement = (
        "SELECT payload ->> 'release' FROM dl_job_events WHERE job_id = %s AND kind = 'picked' ORDER BY event_id"
    )
    return [release for (release,) in query(dsn, statement, job)]


def events(container: str) -> list[str]:
    """Its log has nothing but JSON."""
    return [json.loads(line)["event"] for line in docker("logs", container).splitlines()]


def exit_code(container: str) -> int:
    return int(docker("inspect", "--format={{.State.ExitCode}}", container))


def test_packages_are_installed_where_tasks_import_them(derived: str):
    code = "import polars, dataloader, sys; print(polars.__file__, sys.prefix)"

    for user in ("10001", "12345:0"):
        output = docker("run", "--rm", "--network=none", f"--user={user}", "--entrypoint=python", derived, "-c", code)
        assert output.split() == [output.split()[0], "/opt/dataloader"]
        assert output.startswith("/opt/dataloader/lib/")


@pytest.mark.parametrize("user", ["10001", "12345:0"])
def test_stop_in_the_middle_of_a_job_gives_it_back(containers: Containers, server: Any, user: str):
    job = enqueue(server.dsn)

    worker = containers.start("worker", user=user)
    eventually(lambda: row(server.dsn, job) == ("running", 1), 120, lambda: docker("logs", worker, check=False))
    docker("stop", "--time=100", worker)

    assert row(server.dsn, job) == ("queued", 0), docker("logs", worker)
    assert exit_code(worker) == 0
    assert "service.ready" in events(worker)


def test_pod_finishes_its_job_after_term(containers: Containers, server: Any):
    """With the grace of the recipe for Kubernetes, and TERM once the new pod is there, as in a rolling update."""
    (patch,) = [yaml.safe_load(block) for block in yaml_blocks("**Kubernetes.**") if "kind: Deployment" in block]
    pod = patch["spec"]["template"]["spec"]
    settings = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    old = containers.start("worker", user=POD_USER, settings=settings | {"DL_RELEASE": "2026.11.1"})
    long_job = enqueue(server.dsn)
    eventually(lambda: row(server.dsn, long_job) == ("running", 1), 120, lambda: docker("logs", old, check=False))

    new = containers.start("worker", user=POD_USER, settings=settings)
    eventually(lambda: "service.ready" in events(new), 120, lambda: docker("logs", new), interval_sec=0.5)
    with subprocess.Popen(["docker", "stop", f"--time={pod['terminationGracePeriodSeconds']}", old]) as stop:
        eventually(lambda: "service.stopping" in events(old), 60, lambda: docker("logs", old), interval_sec=0.5)
        new_job = enqueue(server.dsn)
        eventually(lambda: row(server.dsn, new_job) == ("running", 1), 60, lambda: docker("logs", new, check=False))
        assert row(server.dsn, long_job) == ("running", 1)
        assert stop.poll() is None
        docker("exec", old, "touch", "/tmp/go")
        assert stop.wait(100) == 0

    assert row(server.dsn, long_job) == ("succeeded", 1)
    assert exit_code(old) == 0
    assert releases(server.dsn, long_job) == ["2026.11.1"]
    assert releases(server.dsn, new_job) == [settings["DL_RELEASE"]]


def test_api_is_healthy_with_a_read_only_root(containers: Containers):
    api = containers.start("serve", "--no-workers")

    eventually(
        lambda: docker("inspect", "--format={{.State.Health.Status}}", api).strip() == "healthy",
        120,
        lambda: docker("logs", api) + docker("inspect", "--format={{json .State.Health}}", api),
        interval_sec=0.5,
    )
