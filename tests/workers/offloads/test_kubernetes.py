"""What Kubernetes is asked for, and what its answers mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.executors.kubernetes import KubernetesExecutor
from pipelines.offload import EngineRefused, EngineUnavailable, FailureKind, OffloadFailed, OffloadSpec, RemoteState
from tests.support.fake_kubernetes import FakeKubernetes
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


def test_refused_token_is_no_fault_of_the_work(cluster: FakeKubernetes, tmp_path: Path):
    with pytest.raises(EngineUnavailable, match="401"):
        executor(cluster, token="another").status("dl-j-1")
    file = tmp_path / "token"
    file.write_text(f"{cluster.token}\n")
    assert executor(cluster, token="another", token_file=str(file)).status("dl-j-1").state is RemoteState.UNKNOWN


def test_result_of_a_pod_that_is_gone_is_an_error(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch):
    engine = executor(cluster)
    engine.submit("dl-j-1", OffloadSpec(entrypoint="echo '::result 1'"))
    eventually(lambda: engine.status("dl-j-1").state is RemoteState.SUCCEEDED)
    assert engine.result("dl-j-1") == 1

    monkeypatch.setattr(engine, "_pods", lambda name: [])

    with pytest.raises(OffloadFailed, match="the pod of dl-j-1 is gone"):
        engine.result("dl-j-1")
    assert engine.logs("dl-j-1", "") == ([], "0")


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
