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
from urllib.parse import urlsplit

import pytest
import yaml

from dataloader.app.config import load_settings
from dataloader.app.runtime.shutdown import STOP_MARGIN_SEC
from tests.support.engine import yaml_blocks

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
OPTIONAL = {
    "keda.yaml",
    "scaled-job.yaml",
    "hpa.yaml",
    "deletion-cost.yaml",
    "first-key.yaml",
    "offload.yaml",
}  # not every cluster has what they need, or once
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
VARIABLES = {knob.variable for knob in load_settings({}).describe()}


def tool(name: str) -> str:
    """A program that the development requirements install next to this Python."""
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
    if "keda.sh/" in file.read_text(encoding="utf-8"):  # of KEDA; its parts that Kubernetes has are checked below
        return

    ran(tool("kubernetes-validate"), "--strict", file)


def test_parts_of_keda_manifests_are_what_kubernetes_understands(tmp_path):
    (job,) = (it["spec"] for it in documents() if it["kind"] == "ScaledJob")
    (scaled,) = (it["spec"] for it in documents() if it["kind"] == "ScaledObject")
    (hpa,) = (it for it in documents() if it["kind"] == "HorizontalPodAutoscaler")
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    parts = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"}, "spec": job["jobTargetRef"]},
        {**hpa, "spec": {**hpa["spec"], "behavior": behavior}},
    ]

    for number, part in enumerate(parts):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(part), encoding="utf-8")
        ran(tool("kubernetes-validate"), "--strict", tmp_path / f"{number}.yaml")


def test_autoscalers_ask_for_a_number_that_there_is():
    described = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
    threads = sum(queue["concurrency"] for queue in json.loads(settings()["WORKERS_JSON"]))
    triggers = {
        it["kind"]: it["spec"]["triggers"][0]["metadata"] for it in documents() if "triggers" in it.get("spec", {})
    }
    (hpa,) = (it["spec"] for it in documents() if it["kind"] == "HorizontalPodAutoscaler")
    (metric,) = (it["external"] for it in hpa["metrics"])
    (service,) = (it["metadata"]["name"] for it in documents() if it["kind"] == "Service")

    assert set(triggers) == {"ScaledObject", "ScaledJob"}
    for trigger in triggers.values():
        address = urlsplit(trigger["url"])
        assert address.hostname == f"{service}.dataloader.svc"
        assert "get" in described["paths"][address.path]
        assert trigger["valueLocation"] in described["components"]["schemas"]["Scaling"]["properties"]
    assert triggers["ScaledObject"]["targetValue"] == metric["target"]["averageValue"] == str(threads)
    names = (ROOT / "tests/public_names/metrics.txt").read_text(encoding="utf-8").split()
    assert metric["metric"]["name"] in names


def test_pod_of_a_scaled_job_has_longer_than_its_grace():
    (job,) = (it["spec"]["jobTargetRef"] for it in documents() if it["kind"] == "ScaledJob")
    pod = job["template"]["spec"]
    (variable,) = pod["containers"][0]["env"]
    loaded = load_settings({variable["name"]: variable["value"]}, dotenv=None)

    assert pod["terminationGracePeriodSeconds"] > loaded.longest_grace_sec + STOP_MARGIN_SEC
    assert pod["restartPolicy"] == "Never"
    assert job["backoffLimit"] == 0


def test_workers_may_patch_pods_and_nothing_else():
    found = {
        it["kind"]: it
        for it in documents()
        if it["kind"].startswith("Role") and it["metadata"]["name"] == "dataloader-deletion-cost"
    }
    accounts = {it["metadata"]["name"] for it in documents() if it["kind"] == "ServiceAccount"}

    assert found["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert {it["name"] for it in found["RoleBinding"]["subjects"]} <= accounts - {"dataloader"}


def test_the_kustomization_names_what_is_there_and_only_that():
    found = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text(encoding="utf-8"))

    listed = {file.name for file in MANIFESTS} - {"kustomization.yaml", "secret.example.yaml"} - OPTIONAL
    assert set(found["resources"]) == listed


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

    assert {name.removesuffix("_FILE") for name in named} - {"HOME"} <= VARIABLES
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


def pods() -> list[dict[str, Any]]:
    owners = [*deployments().values(), *(it["spec"] for it in documents() if it["kind"] == "Job")]
    owners += [it["spec"]["jobTargetRef"] for it in documents() if it["kind"] == "ScaledJob"]
    return [spec["template"]["spec"] for spec in owners]


def restricted_violations(pod: dict[str, Any]) -> list[str]:
    """What the Pod Security standard `restricted` refuses; https://kubernetes.io/docs/concepts/security/pod-security-standards"""
    context = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found += [f"volume {it['name']}" for it in pod.get("volumes", []) if not (it.keys() - {"name"}) <= allowed]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = {**context, **container.get("securityContext", {})}
        capabilities = own.get("capabilities", {})
        rules = {
            "privileged": not own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": capabilities.get("drop") == ["ALL"]
            and set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser") != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
            "procMount": own.get("procMount", "Default") == "Default",
            "sysctls": not own.get("sysctls"),
        }
        found += [name for name, is_kept in rules.items() if not is_kept]
    return found


def test_namespace_and_pods_are_restricted():
    (namespace,) = (it for it in documents() if it["kind"] == "Namespace")

    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert [restricted_violations(pod) for pod in pods()] == [[]] * len(pods())
    assert len(restricted_violations({"containers": [{"image": "dataloader"}]})) >= 4, "the pod of `kubectl run`"


def rendered(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What kustomize makes of a folder, by kind and name."""
    made = yaml.safe_load_all(ran("kubectl", "kustomize", folder))
    return {(it["kind"], it["metadata"]["name"]): it for it in made}


@pytest.mark.full  # Debian's kubectl has a kustomize without `patches`
def test_recipe_for_long_jobs_changes_the_workers_alone(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize")
    shutil.copytree(ROOT / "deploy/kubernetes", tmp_path / "dataloader/deploy/kubernetes")
    for block in yaml_blocks("**Kubernetes.** A rolling update"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    key = ("Deployment", "dataloader-worker")

    before, after = rendered(ROOT / "deploy/kubernetes"), rendered(tmp_path)
    spec = after[key]["spec"]
    pod = spec["template"]["spec"]
    own_settings = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    loaded = load_settings({**settings(), **own_settings}, dotenv=None)

    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {key}
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "100%"}}
    assert pod["terminationGracePeriodSeconds"] > loaded.longest_grace_sec + STOP_MARGIN_SEC
    assert loaded.longest_grace_sec == 14400
    assert pod["containers"][0]["image"].endswith(f":{loaded.release}")
    assert spec["minReadySeconds"] > 0
    assert spec["template"]["metadata"] == before[key]["spec"]["template"]["metadata"]
    assert restricted_violations(pod) == []
    (tmp_path / "worker.yaml").write_text(yaml.safe_dump(after[key]), encoding="utf-8")
    ran(tool("kubernetes-validate"), "--strict", tmp_path / "worker.yaml")


def test_page_of_the_first_key_names_a_job_that_creates_one():
    (job,) = (it for it in documents() if it.get("metadata", {}).get("name") == "dataloader-first-key")
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8").split("## The first key")[1].split("\n## ")[0]

    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["keys", "create"]
    assert "deploy/kubernetes/first-key.yaml" in page
    assert "kubectl -n dataloader run" not in page


def test_pods_are_unprivileged():
    for pod in pods():
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
