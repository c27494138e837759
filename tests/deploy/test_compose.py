"""The recipe of docs/deploying.md for a deploy in the middle of long jobs, with compose.yaml on a real Docker engine.

Needs an engine with the images that Dockerfile and compose.yaml name, or a registry to pull them from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.support.engine import base_image, build_image, code_block, docker, require_engine
from tests.support.processes import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
OLD, NEW = "2026.11.1", "2026.11.2"
TASKS = """
from pathlib import Path
from dataloader import register

@register("acme.wait")
def wait(args, ctx):
    while not Path("/tmp/go").exists():
        ctx.sleep(0.05)
"""


class Project:
    """A compose project in a folder of its own, with the database of compose.yaml."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"dltest{uuid4().hex[:10]}"
        self._environment = {**os.environ, "COMPOSE_PROJECT_NAME": self.name, "DOCKER_BUILDKIT": "0"}
        (folder / "deploy/compose").mkdir(parents=True)
        for name in ("compose.yaml", "deploy/compose/database-password"):
            shutil.copy(ROOT / name, folder / name)
        lines = code_block("dockerfile", "## Docker and compose").splitlines()
        (folder / "acme-etl/acme_etl").mkdir(parents=True)
        (folder / "acme-etl/acme_etl/__init__.py").write_text(TASKS)
        # Without packages of a registry; tests/deploy/test_image.py installs them.
        (folder / "acme-etl/Dockerfile").write_text("\n".join(line for line in lines if not line.startswith("RUN")))

    def start(self, commands: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-euc", commands], cwd=self.folder, env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, commands: str) -> str:
        process = self.start(commands)
        output = process.communicate(timeout=300)[0]
        assert process.returncode == 0, output
        return output

    def query(self, statement: str) -> str:
        return self.run(f'docker compose exec -T database psql -U dataloader -qtAc "{statement}"').strip()

    def enqueue(self) -> str:
        job = str(uuid4())
        columns = "(job_id, queue, task, lock_key)"
        self.query(f"INSERT INTO dl_jobs {columns} VALUES ('{job}', 'etl.default', 'acme.wait', '{job}')")
        return job

    def wait_for(self, job: str, status: str, release: str) -> None:
        """Until its first attempt, by this release, has come to the status."""
        statement = (
            "SELECT j.status, j.attempt, string_agg(e.payload ->> 'release', ',') FROM dl_jobs j JOIN dl_job_events e"
            f" USING (job_id) WHERE job_id = '{job}' AND e.kind = 'picked' GROUP BY 1, 2"
        )
        expected = f"{status}|1|{release}"
        eventually(lambda: self.query(statement) == expected, 120, lambda: self.query(statement), interval_sec=0.5)

    def remove(self) -> None:
        containers = docker("ps", "--all", "--quiet", f"--filter=label=com.docker.compose.project={self.name}").split()
        if containers:
            docker("rm", "--force", "--volumes", *containers)
        self.run("docker compose down --volumes")
        docker("rmi", f"acme-etl:{OLD}", f"acme-etl:{NEW}", check=False)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    settings = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    require_engine(base_image(), settings["services"]["database"]["image"].partition(":-")[2].rstrip("}"))
    if "version" not in docker("compose", "version", check=False):
        pytest.skip("needs the plugin docker compose")
    build_image()
    made = Project(tmp_path)
    yield made
    made.remove()


def inspect(container: str, template: str) -> str:
    return docker("inspect", f"--format={{{{{template}}}}}", container).strip()


def test_deploy_in_the_middle_of_a_long_job(project: Project):
    """The lines as they are printed, for the release before and for this one."""
    recipe = code_block("sh", "**compose.** One container a release")
    start, deploy, stop = recipe.partition(f"docker exec etl-{NEW} dataloader deploy --wait\n")
    assert deploy
    project.run(start.replace(NEW, OLD))
    long_job = project.enqueue()
    project.wait_for(long_job, "running", OLD)

    project.run(start)
    process = project.start(deploy)
    assert process.stdout is not None
    assert any(f"still running: 1 job of release {OLD}" in line for line in process.stdout)
    new_job = project.enqueue()
    project.wait_for(new_job, "running", NEW)
    assert process.poll() is None, "it waits for the job of the old release"

    docker("exec", f"etl-{OLD}", "touch", "/tmp/go")
    output = process.communicate(timeout=120)[0]
    assert (process.returncode, "running 0 jobs" in output) == (0, True), output
    project.run(stop)
    project.wait_for(long_job, "succeeded", OLD)
    assert inspect(f"etl-{OLD}", ".State.ExitCode") == "0"
    docker("exec", f"etl-{NEW}", "touch", "/tmp/go")
    project.wait_for(new_job, "succeeded", NEW)
    assert inspect(f"etl-{NEW}", ".HostConfig.RestartPolicy.Name") == "unless-stopped"
