"""A worker process that has a token of its cluster keeps its pod's deletion cost."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dataloader.app.runtime import pod_deletion_cost
from dataloader.app.runtime.pod_deletion_cost import ANNOTATION, DeletionCost, Pod, reporting_deletion_cost
from tests.support import eventually
from tests.support.fake_kubernetes import FakeKubernetes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes(tmp_path).up()
    yield fake
    fake.close()


@pytest.fixture
def pod(cluster: FakeKubernetes, tmp_path: Path) -> Pod:
    (tmp_path / "namespace").write_text("loads")
    (tmp_path / "token").write_text(f"{cluster.token}\n")
    found = Pod.find(tmp_path, cluster.address)
    assert found is not None
    return found


def test_pod_is_found_by_its_token_alone(pod: Pod, tmp_path: Path):
    (tmp_path / "token").unlink()

    assert (pod.namespace, pod.name) == ("loads", socket.gethostname())
    assert Pod.find(tmp_path) is None
    assert Pod.find(tmp_path / "nowhere") is None


def test_seconds_that_would_be_lost_are_written_when_they_change(cluster: FakeKubernetes, pod: Pod):
    losses = [0.4, 61.9, 61.2, 1e12, 0.0]
    cost = DeletionCost(pod, iter(losses).__next__)
    written = []
    for _ in losses:
        cost.update()
        written.append(cluster.pod_annotations[pod.name][ANNOTATION])

    assert written == ["0", "61", "61", "2147483647", "0"]
    assert cluster.patches == 4


def test_refusal_is_warned_of_once_until_it_is_allowed(cluster: FakeKubernetes, pod: Pod, caplog, tmp_path: Path):
    caplog.set_level(logging.WARNING)
    losses = [7.0, 7.0, 7.0, 7.0, 8.0]
    cost = DeletionCost(pod, iter(losses).__next__)
    cluster.forbids_patches = True
    for _ in range(3):
        cost.update()
    refused = [record.message for record in caplog.records if "deletion_cost" in record.message]
    cluster.forbids_patches = False
    cost.update()
    (tmp_path / "token").write_text("old")
    cost.update()

    assert len(refused) == 1
    assert cluster.pod_annotations[pod.name] == {ANNOTATION: "7"}
    assert len([record for record in caplog.records if "deletion_cost" in record.message]) == 2


def test_cost_is_kept_while_the_process_runs(cluster: FakeKubernetes, pod: Pod, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_deletion_cost, "_INTERVAL_SEC", 0.01)
    with reporting_deletion_cost(pod, lambda: 12.0):
        eventually(lambda: cluster.pod_annotations.get(pod.name) == {ANNOTATION: "12"})

    assert "pod-deletion-cost" not in {thread.name for thread in threading.enumerate()}
    with reporting_deletion_cost(None, lambda: 12.0):
        assert "pod-deletion-cost" not in {thread.name for thread in threading.enumerate()}


def test_end_does_not_wait_for_an_api_that_is_silent(pod: Pod, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_deletion_cost, "_INTERVAL_SEC", 0.01)
    monkeypatch.setattr(pod_deletion_cost, "_REQUEST_TIMEOUT_SEC", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        slow = replace(pod, address=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with reporting_deletion_cost(slow, lambda: 12.0):
            request, _ = silent.accept()
            ended_at = time.monotonic()
        with request:
            assert time.monotonic() - ended_at < 30


def test_token_that_cannot_be_sent_is_warned_of(pod: Pod, caplog, tmp_path: Path):
    """The thread continues: the next token may be right."""
    caplog.set_level(logging.WARNING)
    for token in (b"\xff\xfe", b"a\nb"):
        (tmp_path / "token").write_bytes(token)
        DeletionCost(pod, lambda: 7.0).update()

    assert len([record for record in caplog.records if "deletion_cost" in record.message]) == 2
