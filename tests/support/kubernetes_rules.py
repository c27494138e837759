"""What a Kubernetes API server refuses beyond its schemas, in its own words: names, labels, quantities, the fields of a
Job, the level `restricted` of Pod Security, and rights that no Role gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGTPE]|[KMGTPE]i)?")
_UNITS = {"": "1", "m": "0.001", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15", "E": "1e18"}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_MAX_LABEL_LENGTH = 63
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def invalid_fields(job: Mapping[str, Any]) -> Iterator[str]:
    """What the validation of a Job refuses that its schema allows."""
    name = job["metadata"].get("name", "")
    if not _SUBDOMAIN.fullmatch(name) or len(name) > _MAX_LABEL_LENGTH:
        yield f'metadata.name: Invalid value: "{name}": must be a lowercase RFC 1123 subdomain of at most 63 characters'
    spec = job["spec"]
    for labels in (job["metadata"].get("labels", {}), spec["template"].get("metadata", {}).get("labels", {})):
        for key, value in labels.items():
            if not _LABEL_KEY.fullmatch(key):
                yield f'metadata.labels: Invalid value: "{key}": a qualified name'
            if not _LABEL_VALUE.fullmatch(value) or len(value) > _MAX_LABEL_LENGTH:
                yield f'metadata.labels: Invalid value: "{value}": a valid label'
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        yield 'spec.template.spec.restartPolicy: Invalid value: only "Never" is supported with podFailurePolicy'
    if spec.get("activeDeadlineSeconds", 0) < 0:
        yield "spec.activeDeadlineSeconds: Invalid value: must be greater than or equal to 0"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        yield from _invalid_container(container, volumes)


def _invalid_container(container: Mapping[str, Any], volumes: set[str]) -> Iterator[str]:
    path = f"spec.template.spec.containers[{container.get('name', '')}]"
    if not container.get("image", "").strip():
        yield f"{path}.image: Required value"
    for variable in container.get("env", []):
        if not variable.get("name") or "=" in variable["name"]:
            yield f"{path}.env: Invalid value: a valid environment variable name"
        if "value" in variable and "valueFrom" in variable:
            yield f"{path}.env[0].valueFrom: Invalid value: may not be specified when `value` is not empty"
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f'{path}.volumeMounts[0].name: Not found: "{mount["name"]}"'
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for amount in [*requests.values(), *limits.values()]:
        if _quantity(amount) is None:
            yield f'{path}.resources: Invalid value: "{amount}": quantities must match the regular expression'
            return
    for resource, amount in requests.items():
        if resource in limits and (_quantity(amount) or 0) > (_quantity(limits[resource]) or 0):
            yield f'{path}.resources.requests: Invalid value: "{amount}": must be at most the {resource} limit'


def _quantity(amount: Any) -> Decimal | None:
    match = _QUANTITY.fullmatch(str(amount))
    if match is None:
        return None
    unit = match[2] or ""
    return Decimal(match[1]) * (Decimal(_BINARY[unit]) if unit in _BINARY else Decimal(_UNITS[unit]))


def restricted_violations(pod: Mapping[str, Any]) -> list[str]:
    """What the level `restricted` of Pod Security has against a pod; it refuses the pod, not its Job."""
    of_pod = pod.get("securityContext", {})
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    found += [f"volume {v['name']}" for v in pod.get("volumes", []) if not _VOLUMES & (v.keys() - {"name"})]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        context = {**of_pod, **own}
        name = container["name"]
        if own.get("privileged"):
            found.append(f'privileged (container "{name}")')
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f'allowPrivilegeEscalation != false (container "{name}")')
        if "ALL" not in own.get("capabilities", {}).get("drop", []):
            found.append(f'unrestricted capabilities (container "{name}")')
        if context.get("runAsNonRoot") is not True:
            found.append(f'runAsNonRoot != true (container "{name}")')
        if context.get("runAsUser") == 0:
            found.append("runAsUser=0")
        if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append(f'seccompProfile (container "{name}")')
    return found


def rights_of(manifests: Iterable[Path]) -> set[tuple[str, str]]:
    """Verbs and resources that the Roles of manifests give."""
    return {
        (verb, resource)
        for path in manifests
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == "Role"
        for rule in document["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
