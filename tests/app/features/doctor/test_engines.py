"""Engines of DL_EXECUTORS that cannot be used are found before a job needs them."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from dataloader.app.acts.findings import Severity
from dataloader.app.features.doctor.engines import check_engines
from dataloader.pipelines import executors
from dataloader.pipelines.executors import Engines

RAY = {"address": "http://head:8265", "token": {"$secret": "ray"}}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"dask": {"address": "tcp://scheduler:8786"}},
            r"it needs pg-dataloader\[dask\]: there is no module distributed",
        ),
        ({"gpu": {"kind": "rey", "address": "http://head"}}, "kind 'rey', which is none of dask, kubernetes"),
        ({"ray": {**RAY, "adress": "http://head"}}, "has no adress"),
        ({"kubernetes": {"address": "https://k8s", "pod": {"containers": []}}}, "'container' has the fields"),
    ],
    ids=["extra", "kind", "key", "template"],
)
def test_engine_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch, settings: Any, problem: str):
    found = importlib.util.find_spec
    monkeypatch.setattr(executors, "find_spec", lambda name: None if name == "distributed" else found(name))

    (finding,) = check_engines(Engines(settings).problems())

    assert (finding.severity, finding.check) == (Severity.ERROR, "engine")
    assert re.search(problem, finding.message)


def test_engines_that_can_be_used_are_named():
    (finding,) = check_engines(Engines({"ray": RAY}).problems())

    assert (finding.severity, finding.message) == (Severity.OK, "engines that can be used: ray")
    assert list(check_engines(Engines().problems())) == []
