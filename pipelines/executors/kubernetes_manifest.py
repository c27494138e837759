"""The manifest of a Job: one pod, that neither Kubernetes nor its kubelet starts a second time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dataloader.pipelines.offload import EngineRefused, OffloadSpec

CONTAINER = "main"
_GRACE_SEC = 60  # beyond the time limit that the job's worker keeps
_TTL_SEC = 86_400  # after the end
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The level `restricted` of the Pod Security Standards."""
_OURS_OF_POD = ("containers", "restartPolicy")
_OURS_OF_CONTAINER = ("name", "command", "args")


def check_templates(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for keys of `pod` and `container` that the executor sets itself."""
    for part, ours in (("pod", _OURS_OF_POD), ("container", _OURS_OF_CONTAINER)):
        template = settings.get(part, {})
        if not isinstance(template, Mapping):
            raise ValueError(f"DL_EXECUTORS: {part!r} of an engine of kind 'kubernetes' is an object")
        if refused := [key for key in ours if key in template]:
            raise ValueError(
                f"DL_EXECUTORS: {', '.join(refused)} in {part!r} of an engine of kind 'kubernetes' would have no"
                " effect; 'container' has the fields of the container that runs the entrypoint"
            )


def make_manifest(name: str, spec: OffloadSpec, settings: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Raises EngineRefused without an image."""
    labels = {"app.kubernetes.io/managed-by": "dataloader"}
    labels |= {f"dataloader/{key.replace('_', '-')}": _label(value) for key, value in spec.labels.items()}
    pod = {**settings.get("pod", {}), "restartPolicy": "Never", "containers": [_container(spec, settings)]}
    if "service_account" in settings:
        pod["serviceAccountName"] = settings["service_account"]
    job: dict[str, Any] = {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "ttlSecondsAfterFinished": _TTL_SEC,
        "podFailurePolicy": {  # shows an eviction as another end than a failure of the program
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if spec.time_limit_sec is not None:
        job["activeDeadlineSeconds"] = int(spec.time_limit_sec) + _GRACE_SEC
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": job,
    }


def _container(spec: OffloadSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The container of the settings, with what this work needs."""
    template = dict(settings.get("container", {}))
    amounts = {key: str(value) for key, value in spec.resources.items() if key != "image"}
    image = spec.resources.get("image") or settings.get("image") or template.get("image")
    if not image:
        raise EngineRefused('a Kubernetes Job needs an image: in the settings, or as resources={"image": …}')
    resources = dict(template.get("resources", {}))
    if amounts:
        resources |= {kind: {**resources.get(kind, {}), **amounts} for kind in ("requests", "limits")}
    variables = [variable for variable in template.get("env", []) if variable.get("name") not in spec.env]
    return {
        **template,
        "name": CONTAINER,
        "image": image,
        "command": ["/bin/sh", "-c", spec.entrypoint],
        "env": [*variables, *({"name": key, "value": str(value)} for key, value in spec.env.items())],
        "resources": resources,
        "securityContext": {**_RESTRICTED, **template.get("securityContext", {})},
    }


def _label(value: str) -> str:
    """At most 63 characters that a label may have."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "-", value)
    return text[:63].strip("-_.")
