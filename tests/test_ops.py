"""The dashboard and the alert rules in docs/ops speak of numbers that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from dataloader.app.db.pool import Pool
from dataloader.app.features.metrics.routes import DatabaseCollector, QueueCollector
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.scaling.routes import CachedScaling, ScalingCollector
from dataloader.app.http.middleware import RequestMetrics
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.runtime.service import process_metrics
from dataloader.workers.metrics import PoolCollector
from tests.support.processes import ROOT
from tests.support.worker_pool_fixture import WorkerPoolFixture

OPS = ROOT / "docs" / "ops"
RULES = yaml.safe_load((OPS / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((OPS / "grafana.json").read_text(encoding="utf-8"))

_WORDS = frozenset({
    "by", "on", "and", "or", "unless", "sum", "max", "min", "avg", "count", "rate", "increase", "without", "ignoring",
    "histogram_quantile", "label_values", "group_left", "bool", "inf", "nan",
})  # fmt: skip
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")


def names_in(expression: str) -> set[str]:
    """The metrics of a PromQL expression: its words that are no functions, labels, values or times."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left)\s*\([^)]*\)", "", bare)
    return {word for word in re.findall(r"[a-zA-Z_:][\w:]*", bare) if word not in _WORDS}


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    for name, matchers in re.findall(r"([a-zA-Z_]\w*)\{([^}]*)\}", expression):
        yield from ((name, label) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((\w+), \w+\)", r"\1", variable["query"]["query"])


@pytest.fixture(scope="module")
def families(databases) -> Iterator[dict[str, Metric]]:
    """Every number that there is, by name: as a process that answers and works reports them."""
    with databases.fresh() as dsn:
        worker_pools = WorkerPoolFixture(dsn)
        pool = Pool(dsn)
        try:
            working = worker_pools.listening_pool({"q": 1})
            worker_pools.wait_for_all([worker_pools.add_job()])
            working.counters.record_checks("t", [{"name": "rows", "outcome": "passed"}])
            working.counters.record_firing("s", "fired")
            registry = CollectorRegistry()
            traffic = RequestMetrics(registry)
            traffic.start()
            traffic.finish("/health", "200", 0.01)
            options = WebOptions(version="1", queues=("q",), status_timeout_sec=20)
            for collector in (
                QueueCollector(JobQueue(pool), options),
                ScalingCollector(CachedScaling(pool, options), options.queues),
                DatabaseCollector(pool, FEATURES, timeout_sec=20),
                *process_metrics(has_workers=True, has_api=True),
                PoolCollector(lambda: working),
            ):
                registry.register(collector)
            yield {family.name: family for family in registry.collect()}
        finally:
            worker_pools.close()
            pool.close()


def family_of(name: str, families: dict[str, Metric]) -> Metric | None:
    if name in families:
        return families[name]
    return next(
        (families[base] for suffix in _SUFFIXES if (base := name.removesuffix(suffix)) != name and base in families),
        None,
    )


def test_every_expression_names_numbers_that_there_are(families):
    strange = [
        (where, name) for where, result in expressions() for name in names_in(result) if not family_of(name, families)
    ]

    assert strange == []


def test_every_label_that_is_asked_for_is_one_of_its_number(families):
    for where, result in expressions():
        for name, label in labels_in(result):
            family = family_of(name, families)
            assert family is not None, (where, name)
            assert any(label in sample.labels for sample in family.samples), (where, name, label)


def test_counters_are_read_as_rates_and_gauges_as_they_are(families):
    for where, result in expressions():
        for name in names_in(result):
            family = family_of(name, families)
            assert family is not None
            rated = re.search(rf"(rate|increase)\({name}\b", result) is not None
            assert rated == (family.type in ("counter", "histogram")), (where, name)


def test_every_number_of_ours_is_on_the_dashboard_or_in_a_rule(families):
    result = {name for _, expression in expressions() for name in names_in(expression)}
    shown = {family.name for name in result if (family := family_of(name, families)) is not None}
    elsewhere = {
        "dataloader_jobs_estimated",
        "dataloader_oldest_snapshot_transactions",
        "dataloader_process_start_time_seconds",
    }

    assert {name for name in families if name.startswith("dataloader_")} - shown - elsewhere == set()


def test_every_alert_rule_has_severity_summary_and_remedy():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "remedy"} == set(rule["annotations"])


def test_the_parser_of_expressions_sees_what_there_is():
    result = 'sum by (le, task) (rate(a_bucket{x=~"b"}[5m])) / max(c) > 0.3 or d == 0'

    assert names_in(result) == {"a_bucket", "c", "d"}
    assert list(labels_in(result)) == [("a_bucket", "x")]


def test_promtool_accepts_the_rules():
    tool = shutil.which("promtool")
    if tool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("this is CI, and promtool is not here: .ci/run fetches it")
        pytest.skip("promtool is not here")
    done = subprocess.run([tool, "check", "rules", OPS / "alerts.yaml"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
