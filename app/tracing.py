"""Continues the trace of a caller in the job and in each of its attempts.

The W3C trace context is stored with the job, and passed to the pipeline and to follow-up jobs, with or without
OpenTelemetry. With it (the extra `otel`, DL_TRACING) the service sends spans of its own: the enqueue, the wait, and
each attempt. Without it nothing of it is imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from dataloader._distribution import install_command
from dataloader.app.errors import ConfigError, SettingError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_NS_PER_SEC = 1_000_000_000
SpanAttributes = Mapping[str, str | int | float | bool]


def parse_traceparent(header: str) -> str | None:
    """Parse the trace context that a caller has sent; None if it is not valid."""
    found = _TRACEPARENT.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or trace == "0" * 32 or span == "0" * 16 or (version == "00" and more):
        return None
    return f"00-{trace}-{span}-{flags}"


@dataclass
class Span:
    """A span, with the trace context that its children continue."""

    traceparent: str | None
    otel_span: Any

    def end(self, status: str, error: str | None = None) -> None:
        self.otel_span.set_attribute("dataloader.status", status)
        if error is not None:
            trace = import_module("opentelemetry.trace")
            self.otel_span.set_status(trace.Status(trace.StatusCode.ERROR, error[:1000]))


class Tracer:
    """Sends spans with OpenTelemetry, by default through the provider of the process."""

    def __init__(self, provider: Any = None, *, version: str = "0") -> None:
        self._trace: ModuleType = import_module("opentelemetry.trace")
        self._tracer = self._trace.get_tracer("dataloader", version, tracer_provider=provider)

    @contextmanager
    def enqueue_span(self, traceparent: str | None, attributes: SpanAttributes) -> Iterator[Span]:
        """Start the span of an enqueue."""
        with self._start_span("dataloader.enqueue", traceparent, attributes, self._trace.SpanKind.PRODUCER) as part:
            yield part

    def record_wait_span(self, traceparent: str | None, seconds: float, attributes: SpanAttributes) -> str | None:
        """Record the time that a job has waited until now; return the parent of its attempt's span."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "dataloader.wait",
            self._parent_context(traceparent),
            attributes=attributes,
            start_time=now - int(seconds * _NS_PER_SEC),
        )
        span.end(now)
        return traceparent or _format_traceparent(span.get_span_context())

    @contextmanager
    def attempt_span(self, traceparent: str | None, attributes: SpanAttributes) -> Iterator[Span]:
        """Start the span of an attempt in this thread; spans of the pipeline become its children."""
        with self._start_span("dataloader.attempt", traceparent, attributes, self._trace.SpanKind.CONSUMER) as part:
            yield part

    @contextmanager
    def _start_span(self, name: str, traceparent: str | None, attributes: SpanAttributes, kind: Any) -> Iterator[Span]:
        after = self._parent_context(traceparent)
        with self._tracer.start_as_current_span(name, after, kind=kind, attributes=attributes) as span:
            yield Span(_format_traceparent(span.get_span_context()) or traceparent, span)

    def _parent_context(self, traceparent: str | None) -> Any:
        """Return the context of the parent span; None for the thread's own."""
        if traceparent is None:
            return None
        _, trace, span, flags = traceparent.split("-")
        remote = self._trace.SpanContext(
            int(trace, 16), int(span, 16), is_remote=True, trace_flags=self._trace.TraceFlags(int(flags, 16))
        )
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(remote))


def _format_traceparent(context: Any) -> str | None:
    if not context.is_valid:  # no provider is set up
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def create_tracer(version: str) -> Tracer:
    """Raises ConfigError if the packages are missing."""
    try:
        trace = import_module("opentelemetry.trace")
        sdk = import_module("opentelemetry.sdk.trace")
    except ImportError as error:
        problem = f"true, and {error.name} is not installed"
        raise ConfigError([SettingError("DL_TRACING", problem, install_command("otel"))]) from error
    if isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        return Tracer(version=version)  # the embedding process has set one up
    return Tracer(_create_provider(sdk, version), version=version)


def _create_provider(sdk: ModuleType, version: str) -> Any:
    """Create a provider that sends to the collector of OTEL_EXPORTER_OTLP_ENDPOINT."""
    resources = import_module("opentelemetry.sdk.resources")
    about = resources.Resource.create({"service.name": "dataloader", "service.version": version})
    provider = sdk.TracerProvider(resource=about)
    with suppress(ImportError):
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        batch = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor
        provider.add_span_processor(batch(otlp.OTLPSpanExporter()))
    return provider
