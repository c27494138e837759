"""What is shipped for containers, Kubernetes and systemd is checked by what can check it without running it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config import load_settings
from app.runtime.shutdown import STOP_MARGIN_SEC

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
VARIABLES = {knob.variable for knob in load_settings({}).describe()}


def tool(name: str) -> str:
    """A program that the development requirements install beside this Python."""
    return str(Path(sys.executable).with_name(name))


def ran(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents() -> Iterator[dict[str, Any]]:
    for file in MANIFESTS:
        yield from yaml.safe_load_all(file.read_text(encoding="utf-8"))


def deployments() -> dict[str, dict[str, Any]]:
    return {it["metadata"]["name"]: it["spec"] for it in documents() if it["kind"] == "Deployment"}


def settings() -> dict[str, str]:
    (found,) = (it["data"] for it in documents() if it["kind"] == "ConfigMap")
    return dict(found)


def test_the_image_follows_the_rules_for_images():
    ran(tool("hadolint"), ROOT / "Dockerfile")


def test_every_base_image_can_be_set_by_digest():
    """Without an edit: what is written here is a default only."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    images = [it["image"] for it in (compose["x-dataloader"], *compose["services"].values()) if "image" in it]

    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert dockerfile.index("ARG PYTHON_IMAGE=") < dockerfile.index("FROM "), "else it is none of FROM's"
    assert "PYTHON_IMAGE" in compose["x-dataloader"]["build"]["args"]
    assert all(re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[\w:.]+\}", image) for image in images), images


def test_compose_is_what_compose_understands():
    ran(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", ROOT / "compose.yaml")


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_each_manifest_is_what_kubernetes_understands(file):
    if file.name == "kustomization.yaml":  # no resource of the cluster; the next test looks after it
        return

    ran(tool("kubernetes-validate"), "--strict", file)


def test_the_kustomization_names_what_is_there_and_only_that():
    found = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text(encoding="utf-8"))

    beside = {file.name for file in MANIFESTS} - {"kustomization.yaml", "secret.example.yaml"}
    assert set(found["resources"]) == beside


def test_stop_timeouts_exceed_shutdown_time():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["x-dataloader"]
    takes = float(compose["environment"]["DL_SHUTDOWN_GRACE_SEC"]) + STOP_MARGIN_SEC
    assert float(compose["stop_grace_period"].removesuffix("s")) > takes

    takes = float(settings()["DL_SHUTDOWN_GRACE_SEC"]) + STOP_MARGIN_SEC
    for spec in deployments().values():
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > takes

    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "deploy/systemd/environment.example").read_text(), re.MULTILINE))
    takes = float(example["DL_SHUTDOWN_GRACE_SEC"]) + STOP_MARGIN_SEC
    for unit in UNITS:
        if "migrate" not in unit.name:
            (waits,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)
            assert float(waits) > takes


def test_every_setting_in_them_is_one_of_ours():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["x-dataloader"]["environment"]
    secret = next(it["stringData"] for it in documents() if it["kind"] == "Secret")
    units = "".join(file.read_text(encoding="utf-8") for file in [*UNITS, ROOT / "deploy/systemd/environment.example"])
    named = {*compose, *settings(), *secret, *re.findall(r"^(?:Environment=)?([A-Z][A-Z_]+)=", units, re.MULTILINE)}

    assert named <= VARIABLES
    for given in (compose, settings()):
        assert json.loads(given["WORKERS_JSON"])


def test_probes_ask_for_what_there_is():
    described = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))["paths"]
    containers = [spec["template"]["spec"]["containers"][0] for spec in deployments().values()]
    asked = {
        probe["httpGet"]["path"]
        for container in containers
        for name, probe in container.items()
        if name.endswith("Probe") and "httpGet" in probe
    }

    assert asked
    assert asked <= set(described)


def test_pods_are_unprivileged():
    pods = [*deployments().values(), *(it["spec"] for it in documents() if it["kind"] == "Job")]

    for pod in (spec["template"]["spec"] for spec in pods):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])


def test_systemd_understands_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze is not installed: apt-get install systemd")
        pytest.skip("needs systemd-analyze")
    program = tmp_path / "dataloader"  # it looks whether the command is there
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    there = []
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/dataloader/bin/dataloader", str(program))
        there.append(tmp_path / unit.name.replace("@", "@1"))
        there[-1].write_text(text, encoding="utf-8")

    assert ran("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *there) == ""
