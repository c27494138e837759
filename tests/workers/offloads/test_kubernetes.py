"""What Kubernetes is asked for, and what its answers mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader.pipelines.executors.kubernetes import KubernetesExecutor
from dataloader.pipelines.offload import (
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
)
from tests.support.fake_kubernetes import ROLES, FakeKubernetes
from tests.support.kubernetes_rules import rights_of
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(tmp_path).up()
    yield made
    made.close()


def executor(cluster: FakeKubernetes, **more: Any) -> KubernetesExecutor:
    settings = {"address": cluster.address, "namespace": "loads", "image": "acme:1", "token": cluster.token}
    return KubernetesExecutor({**settings, **more})


def test_manifest_has_one_pod_that_is_not_retried(cluster: FakeKubernetes):
    spec = OffloadSpec(
        entrypoint="true", env={"DAY": "2030-01-31"}, resources={"cpu": 2, "memory": "4Gi", "image": "acme:2"},
        time_limit_sec=600, labels={"job_id": "j", "task": "load sales/d\u00e4y"},
    )  # fmt: skip

    executor(cluster, service_account="loader").submit("dl-j-1", spec)

    assert cluster.refused == []
    job = cluster.jobs["dl-j-1"].manifest
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("FailJob", "DisruptionTarget")
    assert job["spec"]["activeDeadlineSeconds"] == 660
    assert job["metadata"]["labels"]["dataloader/task"] == "load-sales-d-y"
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert (pod["containers"][0]["image"], pod["serviceAccountName"]) == ("acme:2", "loader")


def test_manifest_that_is_not_valid_is_refused(cluster: FakeKubernetes):
    broken = executor(cluster, pod={"nodeSelektor": {}})

    with pytest.raises(EngineRefused, match="422"):
        broken.submit("dl-j-1", OffloadSpec(entrypoint="true"))
    with pytest.raises(EngineRefused, match="needs an image"):
        executor(cluster, image="").submit("dl-j-2", OffloadSpec(entrypoint="true"))
    assert "nodeSelektor" in cluster.refused[0]


@pytest.mark.parametrize(
    ("ended_as", "kind"),
    [
        ({"terminated": {"reason": "OOMKilled"}}, FailureKind.OOM),
        ({"condition": {"reason": "PodFailurePolicy"}}, FailureKind.WORKER_LOST),
        ({}, FailureKind.ERROR),
    ],
)
def test_failure_is_described_by_its_pod(cluster: FakeKubernetes, ended_as: dict[str, Any], kind: FailureKind):
    subject = executor(cluster)
    subject.submit("dl-j-1", OffloadSpec(entrypoint="exit 3"))
    cluster.jobs["dl-j-1"].ended_as = ended_as

    eventually(lambda: subject.status("dl-j-1").state is RemoteState.FAILED)

    assert subject.status("dl-j-1").kind is kind


def test_refused_token_is_no_fault_of_the_work(cluster: FakeKubernetes):
    with pytest.raises(EngineUnavailable, match='the setting "token" .* 401'):
        executor(cluster, token="another").status("dl-j-1")


def test_token_of_a_file_is_read_again_when_it_is_replaced(cluster: FakeKubernetes, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(f"{cluster.token}\n")
    engine = executor(cluster, token="another", token_file=str(file))
    assert engine.status("dl-j-1").state is RemoteState.UNKNOWN

    cluster.token = "the-next-token"

    with pytest.raises(EngineUnavailable, match='the setting "token_file" .* 401'):
        engine.status("dl-j-1")
    file.write_text(f"{cluster.token}\n")
    assert engine.status("dl-j-1").state is RemoteState.UNKNOWN


# ── the container of the settings ───────────────────────────────────────────────────────────────────────────────────


def test_container_of_the_settings_is_merged(cluster: FakeKubernetes):
    container = {
        "imagePullPolicy": "Always", "envFrom": [{"secretRef": {"name": "warehouse"}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "env": [{"name": "DAY", "value": "never"}, {"name": "ZONE", "value": "north"}],
        "securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": True},
    }  # fmt: skip
    engine = executor(cluster, container=container, pod={"volumes": [{"name": "cache", "emptyDir": {}}]})

    engine.submit("dl-j-1", OffloadSpec(entrypoint="true", env={"DAY": "2030-01-31"}, resources={"cpu": 2}))

    (made,) = cluster.jobs["dl-j-1"].manifest["spec"]["template"]["spec"]["containers"]
    assert cluster.refused == []
    assert made["envFrom"] == container["envFrom"]
    assert (made["imagePullPolicy"], made["volumeMounts"]) == ("Always", container["volumeMounts"])
    assert {variable["name"]: variable["value"] for variable in made["env"]} == {"DAY": "2030-01-31", "ZONE": "north"}
    assert len(made["env"]) == 2
    assert made["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}
    }  # fmt: skip
    assert made["securityContext"]["readOnlyRootFilesystem"]
    assert made["securityContext"]["allowPrivilegeEscalation"] is False
    assert cluster.jobs["dl-j-1"].forbidden == "", "it meets `restricted`"


@pytest.mark.parametrize(
    "settings",
    [{"pod": {"containers": []}}, {"container": {"command": ["x"]}}, {"pod": {"restartPolicy": "Always"}}, {"pod": []}],
    ids=str,
)
def test_fields_that_would_have_no_effect_are_refused(cluster: FakeKubernetes, settings: dict[str, Any]):
    with pytest.raises(ValueError, match="DL_EXECUTORS"):
        executor(cluster, **settings)


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_used_up_quota_is_described_as_such(cluster: FakeKubernetes):
    cluster.quota = 1
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="true"))

    with pytest.raises(EngineFull, match=r"exceeded quota: .*limited: count/jobs.batch=1"):
        engine.submit("dl-j-2", OffloadSpec(entrypoint="true"))


def test_missing_right_is_described_as_such(cluster: FakeKubernetes):
    cluster.rights.discard(("create", "jobs"))

    with pytest.raises(EngineUnavailable, match='the account lacks a right: .* cannot create resource "jobs"'):
        executor(cluster).submit("dl-j-1", OffloadSpec(entrypoint="true"))


def test_rights_of_the_manifest_are_enough_and_each_is_needed(cluster: FakeKubernetes):
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="true"))
    eventually(lambda: engine.status("dl-j-1").state is RemoteState.SUCCEEDED)
    used = {("create", "jobs"), ("get", "jobs"), ("delete", "jobs"), ("list", "pods"), ("get", "pods/log")}
    engine.result("dl-j-1")
    engine.delete("dl-j-1")

    assert rights_of([ROLES[0]]) == used | {("list", "events")}


# ── a pod that does not start ───────────────────────────────────────────────────────────────────────────────────────


def missing_image(cluster: FakeKubernetes) -> None:
    cluster.missing_images["acme:1"] = 'Back-off pulling image "acme:1"'


def no_node(cluster: FakeKubernetes) -> None:
    cluster.unschedulable = "0/3 nodes are available: 3 Insufficient cpu."


@pytest.mark.parametrize(
    ("cause", "settings", "reason"),
    [
        (missing_image, {}, 'ImagePullBackOff: Back-off pulling image "acme:1"'),
        (no_node, {}, "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."),
        (
            None,
            {"container": {"securityContext": {"runAsUser": 0}}},
            "FailedCreate: .*violates PodSecurity .*runAsUser=0",
        ),
    ],
    ids=["image", "node", "forbidden"],
)
def test_pod_that_does_not_start_has_a_reason_and_a_bound(
    cluster: FakeKubernetes, cause: Any, settings: dict[str, Any], reason: str
):
    if cause is not None:
        cause(cluster)
    engine, hasty = executor(cluster, **settings), executor(cluster, start_timeout=0, **settings)

    engine.submit("dl-j-1", OffloadSpec(entrypoint="true"))

    status = engine.status("dl-j-1")
    assert (status.state, status.is_stuck) == (RemoteState.PENDING, False)
    assert re.search(reason, status.detail)
    assert hasty.status("dl-j-1").is_stuck
    engine.stop("dl-j-1")
    assert engine.status("dl-j-1").state is RemoteState.UNKNOWN


def test_missing_right_to_read_events_is_the_reason(cluster: FakeKubernetes):
    cluster.rights.discard(("list", "events"))
    engine = executor(cluster, container={"securityContext": {"runAsNonRoot": False}})

    engine.submit("dl-j-1", OffloadSpec(entrypoint="true"))

    assert 'may not "list" the "events"' in engine.status("dl-j-1").detail


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_log_is_not_sent_again_from_its_beginning(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch):
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="echo one"))
    eventually(lambda: engine.status("dl-j-1").state is RemoteState.SUCCEEDED)
    container = cluster.jobs["dl-j-1"].container
    assert container is not None
    container.lines = [(f"2030-01-31T00:{n // 60:02}:{n % 60:02}.000000000Z", b"%d\n" % n) for n in range(2_500)]
    container.lines += [("2030-01-31T01:00:00.123456789Z", b"same\n")] * 3
    sent: list[int] = []
    whole = container.log

    def count_bytes(options: dict[str, str]) -> bytes:
        content = whole(options)
        sent.append(len(content))
        return content

    monkeypatch.setattr(container, "log", count_bytes)

    lines, position = [], ""
    for _ in range(5):
        piece, position = engine.logs("dl-j-1", position)
        lines += piece

    assert lines == [*map(str, range(2_500)), "same", "same", "same"]
    assert sent[0] > sent[1] > sent[2] > 4 * sent[3], "each time from the second of the position on"


def test_last_lines_of_a_log_are_read_alone(cluster: FakeKubernetes):
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="seq 100; exit 3"))
    eventually(lambda: engine.status("dl-j-1").state is RemoteState.FAILED)

    assert engine.last_lines("dl-j-1") == [str(n) for n in range(91, 101)]


def test_result_of_a_pod_that_is_gone_is_an_error(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch):
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="echo '::result 1'"))
    eventually(lambda: engine.status("dl-j-1").state is RemoteState.SUCCEEDED)
    assert engine.result("dl-j-1") == 1

    monkeypatch.setattr(engine, "_pods", lambda name: [])

    with pytest.raises(OffloadFailed, match="the pod of dl-j-1 is gone"):
        engine.result("dl-j-1")
    assert engine.logs("dl-j-1", "") == ([], "")


def test_missing_log_of_a_proxy_is_no_lost_result(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch):
    engine = executor(cluster)
    monkeypatch.setattr(engine, "_pods", lambda name: [{"metadata": {"name": "other/page"}}])  # no such address

    with pytest.raises(EngineUnavailable):
        engine.result("dl-j-1")


def test_missing_page_of_a_proxy_is_no_answer(cluster: FakeKubernetes):
    engine = executor(cluster, namespace="other/page")  # no such address

    with pytest.raises(EngineUnavailable):
        engine.status("dl-j-1")
    with pytest.raises(EngineUnavailable):
        engine.submit("dl-j-1", OffloadSpec(entrypoint="true"))
