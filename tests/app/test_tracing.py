"""The trace of a caller continues in the job: kept as a text in any case, drawn where OpenTelemetry is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.errors import ConfigError
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import Status
from dataloader.app.tracing import Tracer, create_tracer, parse_traceparent
from tests.support.worker_pool_fixture import WorkerPoolFixture

ROOT = Path(__file__).parents[2]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (GIVEN, GIVEN),
        (f" {GIVEN} ", GIVEN),
        (f"cc-{TRACE}-{SPAN}-01-what-is-to-come", GIVEN),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GIVEN.upper(), None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_trace_context_is_one_or_none(result, kept):
    assert parse_traceparent(result) == kept


@pytest.fixture
def worker_pools(dsn: str) -> Any:
    made = WorkerPoolFixture(dsn)
    yield made
    made.close()


def of_context(worker_pools: WorkerPoolFixture) -> list[str | None]:
    """The trace context of each attempt of these pools, in order."""
    result: list[str | None] = []

    def says(args: dict[str, Any], ctx: Any) -> None:
        result.append(ctx.traceparent)
        if args.get("follow"):
            ctx.enqueue("says", {})
        if ctx.attempt < int(args.get("tries", 1)):
            raise ValueError("not yet")

    worker_pools.pipelines.register("says")(says)
    return result


def triggered(worker_pools: WorkerPoolFixture, tracer: Any, **headers: str) -> Any:
    app = create_app(worker_pools.queue_fixture.queue, worker_pools.pipelines, WebOptions(version="1"), tracer=tracer)
    body = {
        "queue": "q", "task": "says", "lock_key": "k", "args": {"tries": 2, "follow": True},
        "retry": {"kind": "fixed", "seconds": 0.01},
    }  # fmt: skip
    response = app.test_client().post("/api/v1/jobs/trigger", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json


def test_trace_context_passes_without_opentelemetry(worker_pools):
    result = of_context(worker_pools)
    triggered(worker_pools, None, traceparent=GIVEN)

    worker_pools.pool()
    worker_pools.wait_for_all([job[0] for job in worker_pools.queue_fixture.sql("SELECT job_id FROM dl_jobs")])
    follow_ups = [
        row[0] for row in worker_pools.queue_fixture.sql("SELECT job_id FROM dl_jobs WHERE parent_id IS NOT NULL")
    ]
    worker_pools.wait_for_all(follow_ups)

    assert len(follow_ups) == 1
    assert result == [GIVEN] * 3


def test_spans_continue_the_callers_trace(worker_pools):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    exporters = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    kept = exporters.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    telemetry = Tracer(provider, version="1")
    result = of_context(worker_pools)
    job = triggered(worker_pools, telemetry, traceparent=GIVEN)["job_id"]

    worker_pools.pool(tracer=telemetry)
    worker_pools.wait_for_status(job, Status.SUCCEEDED)
    worker_pools.wait_for_all([row[0] for row in worker_pools.queue_fixture.sql("SELECT job_id FROM dl_jobs")])
    for pool in worker_pools.pools:
        pool.stop(grace=5)

    spans = kept.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    (asked,) = [span for span in spans if span.name == "dataloader.enqueue"]
    assert f"{asked.parent.span_id:016x}" == SPAN
    of_job = [span for span in spans if span.attributes.get("dataloader.job_id") == job]
    assert sorted((span.name, span.attributes["dataloader.attempt"]) for span in of_job) == [
        ("dataloader.attempt", 1), ("dataloader.attempt", 2), ("dataloader.wait", 1), ("dataloader.wait", 2),
    ]  # fmt: skip
    assert {span.parent.span_id for span in of_job} == {asked.context.span_id}
    tries = {span.attributes["dataloader.attempt"]: span for span in of_job if span.name == "dataloader.attempt"}
    assert not tries[1].status.is_ok
    assert (tries[1].attributes["dataloader.status"], tries[2].attributes["dataloader.status"]) == (
        "queued",
        "succeeded",
    )
    assert result[0] == f"00-{TRACE}-{tries[1].context.span_id:016x}-01"


def test_untraced_job_begins_trace_when_it_runs():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    telemetry = Tracer(sdk.TracerProvider())

    began = telemetry.record_wait_span(None, 1.0, {})

    assert began is not None
    with telemetry.attempt_span(began, {}) as part:
        assert part.traceparent is not None
        assert part.traceparent.split("-")[1] == began.split("-")[1]


def test_without_a_provider_the_text_goes_through_as_it_came():
    trace = pytest.importorskip("opentelemetry.trace")
    telemetry = Tracer(trace.NoOpTracerProvider())

    with telemetry.attempt_span(GIVEN, {}) as part:
        assert part.traceparent == GIVEN


def test_tracing_is_not_imported_unless_configured():
    code = "import sys, dataloader.app.tracing, dataloader.app.runtime.service"
    code += "; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    with pytest.raises(ConfigError, match=r"pip install 'pg-dataloader\[otel\]'"):
        create_tracer("1")


def test_provider_is_created_if_none_is_set_up():
    """In a process of its own: OpenTelemetry keeps one for good."""
    pytest.importorskip("opentelemetry.sdk.trace")
    code = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import *\n"
        "from dataloader.app.tracing import Tracer, create_tracer\n"
        "one = create_tracer('1'); assert isinstance(one, Tracer)\n"
        "with one.enqueue_span(None, {}) as part: assert part.traceparent, part\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "assert isinstance(create_tracer('1'), Tracer)\n"
        "import os; os._exit(0)"  # not waiting for a collector that is not there
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0
