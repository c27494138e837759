"""The OpenAPI document in other people's tools: two linters, and a generated client that works with a service."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader.pipelines.contract import Pipelines
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.processes import ROOT

pytestmark = pytest.mark.full  # the tools need half a minute of processor time

DOCUMENT = ROOT / "docs" / "openapi.json"
NODE_PROGRAMS = ROOT / "build" / "tools" / "node_modules" / ".bin"
# Two names of a path cannot be mistaken: an alert's id is a UUID.
REDOCLY_WARNINGS = {"no-ambiguous-paths"}
# The document has no contact and operations whose summary says it all; the last rule refuses what OpenAPI 3.1 allows:
# names of roles for a bearer key.
SPECTRAL_RULES = {
    "extends": ["spectral:oas"],
    "rules": {"info-contact": "off", "operation-description": "off", "oas3-operation-security-defined": "off"},
}
MAX_MODEL_FILES = 320  # each field that is an object or a list of choices has one


def node_program(name: str) -> str:
    found = shutil.which(name, path=f"{NODE_PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    if found is None and "CI" in os.environ:
        pytest.fail(f"this is CI, and {name} is missing: .ci/run installs it")
    if found is None:
        pytest.skip(f"{name} is missing: `npm install` as in .ci/run")
    return found


@pytest.mark.timeout(180)
def test_redocly_finds_no_error(tmp_path: Path):
    """In a folder of its own: it looks for its configuration in the working one."""
    command = [node_program("redocly"), "lint", "--extends=recommended", "--format=json", str(DOCUMENT)]
    environment = {**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170, check=False
    )

    found = {(it["severity"], it["ruleId"]) for it in json.loads(done.stdout)["problems"]}
    assert found <= {("warn", rule) for rule in REDOCLY_WARNINGS}, done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(180)
def test_spectral_finds_no_error_and_no_warning(tmp_path: Path):
    ruleset = tmp_path / "rules.json"
    ruleset.write_text(json.dumps(SPECTRAL_RULES), encoding="utf-8")
    command = [node_program("spectral"), "lint", str(DOCUMENT), "--ruleset", str(ruleset), "--fail-severity=warn"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of a client that `openapi-python-client` made from the document."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n", encoding="utf-8")  # no one reads it
    command = [
        sys.executable, "-m", "openapi_python_client", "generate", "--path", str(DOCUMENT), "--meta", "none",
        "--output-path", str(folder / "generated_client"), "--config", str(config), "--fail-on-warning",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=170, capture_output=True)
    sys.path.insert(0, str(folder))
    yield folder / "generated_client"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    known = Pipelines()
    known.register("load", queue="q", lock_key="load")(lambda args: None)
    with databases.fresh() as dsn, serving(dsn, known) as address:
        yield address


@pytest.mark.timeout(180)
def test_generated_client_is_small_and_has_every_operation(generated: Path):
    paths = json.loads(DOCUMENT.read_text(encoding="utf-8"))["paths"]
    operations = {operation["operationId"] for methods in paths.values() for operation in methods.values()}

    assert operations - {file.stem for file in generated.glob("api/*/*.py")} == set()
    assert len(list(generated.glob("models/*.py"))) <= MAX_MODEL_FILES


@pytest.mark.timeout(180)
def test_generated_client_triggers_reads_cancels_and_lists(generated: Path, url: str):
    def module(name: str) -> Any:
        return importlib.import_module(f"generated_client.{name}")

    client, models = module("client").Client(base_url=url), module("models")
    trigger, status = module("api.jobs.trigger_job"), module("api.jobs.get_job_status")
    cancel, listing = module("api.jobs.cancel_job"), module("api.jobs.list_jobs")
    request = models.TriggerRequest.from_dict({"task": "load", "queue": "q", "lock_key": "k", "args": {"day": "1"}})

    job_id: UUID = trigger.sync(client=client, body=request).job_id
    assert status.sync(job_id, client=client).status is models.Status.QUEUED
    assert [job.job_id for job in listing.sync(client=client, task="load", status=[models.Status.QUEUED]).jobs] == [
        job_id
    ]
    assert cancel.sync(job_id, client=client).status is models.Status.CANCELED
    entries = module("api.audit.list_audit_entries").sync(client=client).entries
    assert {entry.action for entry in entries} == {"trigger_job", "cancel_job"}
    problem = status.sync(UUID(int=0), client=client)
    assert isinstance(problem, models.Problem)
    assert problem.code == "job_not_found"
