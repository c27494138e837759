"""The image on a real Docker engine: what is made from it, who runs it, and how it stops.

Needs an engine with a base image of Dockerfile's name, or a registry to pull it from; DOCKER_HOST may name the engine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from dataloader.app.db.schema import migrate
from tests.support.processes import ROOT, free_port
from tests.support.proxy import SilentProxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
IMAGE, DERIVED = "dataloader:local", "dataloader-test:derived"
TASKS = """
import polars
from dataloader import register

@register("acme.wait")
def wait(args, ctx):
    while True:
        ctx.sleep(0.05)
"""
HARDENED = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--init"]


def docker(*words: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *map(str, words)],
        env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"docker {' '.join(map(str, words))}:\n{done.stdout[-4000:]}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    """Machines of CI have no engine and reach no registry of images: there too the tests are skipped."""
    if shutil.which("docker") is None or "Server Version" not in docker("info", check=False):
        pytest.skip("needs a Docker engine; DOCKER_HOST may name one")
    base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[0]
    if not docker("images", "--quiet", base).strip() and "Error" in docker("pull", base, check=False):
        pytest.skip(f"needs the image {base}, and reaches no registry")


@pytest.fixture(scope="module")
def image(engine: None) -> str:
    docker("build", "--network=host", f"--tag={IMAGE}", ROOT)
    return IMAGE


@pytest.fixture(scope="module")
def derived(image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image by the lines that docs/deploying.md shows."""
    folder = tmp_path_factory.mktemp("derived")
    (folder / "acme_etl").mkdir()
    (folder / "acme_etl" / "__init__.py").write_text(TASKS)
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
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

    def start(self, *words: str, user: str = "12345:0") -> str:
        name = f"dataloader-test-{uuid4().hex[:12]}"
        self._started.append(name)
        docker("run", "--detach", f"--name={name}", f"--user={user}", *self._options, self._image, *words)
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


def test_packages_are_installed_where_tasks_import_them(derived: str):
    code = "import polars, dataloader, sys; print(polars.__file__, sys.prefix)"

    for user in ("10001", "12345:0"):
        output = docker("run", "--rm", "--network=none", f"--user={user}", "--entrypoint=python", derived, "-c", code)
        assert output.split() == [output.split()[0], "/opt/dataloader"]
        assert output.startswith("/opt/dataloader/lib/")


@pytest.mark.parametrize("user", ["10001", "12345:0"])
def test_stop_in_the_middle_of_a_job_gives_it_back(containers: Containers, server: Any, user: str):
    job = str(uuid4())
    connection = psycopg2.connect(server.dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    insert = "INSERT INTO dl_jobs (job_id, queue, task, lock_key) VALUES (%s, 'etl.default', 'acme.wait', %s)"
    cursor.execute(insert, (job, job))

    def row() -> tuple[str, int]:
        cursor.execute("SELECT status, attempt FROM dl_jobs WHERE job_id = %s", (job,))
        found: tuple[str, int] = cursor.fetchall()[0]
        return found

    worker = containers.start("worker", user=user)
    eventually(lambda: row() == ("running", 1), 120, lambda: docker("logs", worker, check=False))
    docker("stop", "--time=100", worker)

    assert row() == ("queued", 0), docker("logs", worker)
    assert docker("inspect", "--format={{.State.ExitCode}}", worker).strip() == "0"
    lines = docker("logs", worker).splitlines()
    events = [json.loads(line)["event"] for line in lines]  # nothing but JSON
    assert "service.ready" in events
    connection.close()


def test_api_is_healthy_with_a_read_only_root(containers: Containers):
    api = containers.start("serve", "--no-workers")

    eventually(
        lambda: docker("inspect", "--format={{.State.Health.Status}}", api).strip() == "healthy",
        120,
        lambda: docker("logs", api) + docker("inspect", "--format={{json .State.Health}}", api),
        interval_sec=0.5,
    )
