"""The trace of whoever asks for a job goes on in the job, and in each of its tries.

A trace is known by its W3C trace context, a short text that stands with the job. It is kept, and handed on to the
pipeline and to what that asks for, whether or not anybody here draws spans. With OpenTelemetry (`dataloader[otel]`,
DL_TRACING) the service draws its own: the asking, the waiting, and each try. Without it nothing of it is imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from app.errors import ConfigError, Fault

_CONTEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_NS = 1_000_000_000
Facts = Mapping[str, str | int | float | bool]


def read(told: str | None) -> str | None:
    """The trace context that a caller sent; None if it sent none, or one that is none."""
    found = _CONTEXT.fullmatch(told.strip()) if told else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or trace == "0" * 32 or span == "0" * 16 or (version == "00" and more):
        return None
    return f"00-{trace}-{span}-{flags}"


@dataclass
class Part:
    """What is being done: its own trace context, for those who go on from here, and how it ends."""

    traceparent: str | None
    span: Any = None

    def end(self, status: str, error: str | None = None) -> None:
        if self.span is not None:
            self.span.set_attribute("dataloader.status", status)
            if error is not None:
                trace = import_module("opentelemetry.trace")
                self.span.set_status(trace.Status(trace.StatusCode.ERROR, error[:1000]))


class Tracer(Protocol):
    def asking(self, traceparent: str | None, facts: Facts) -> Any: ...
    def waited(self, traceparent: str | None, seconds: float, facts: Facts) -> str | None: ...
    def trying(self, traceparent: str | None, facts: Facts) -> Any: ...


class Quiet:
    """Draws nothing, and hands on what came."""

    @contextmanager
    def asking(self, traceparent: str | None, facts: Facts) -> Iterator[Part]:
        yield Part(traceparent)

    def waited(self, traceparent: str | None, seconds: float, facts: Facts) -> str | None:
        return traceparent

    @contextmanager
    def trying(self, traceparent: str | None, facts: Facts) -> Iterator[Part]:
        yield Part(traceparent)


class Telemetry:
    """Draws spans with OpenTelemetry, through the provider that it is given or the one of the process."""

    def __init__(self, provider: Any = None, *, version: str = "0") -> None:
        self._trace: ModuleType = import_module("opentelemetry.trace")
        self._tracer = self._trace.get_tracer("dataloader", version, tracer_provider=provider)

    @contextmanager
    def asking(self, traceparent: str | None, facts: Facts) -> Iterator[Part]:
        """While a job is put into the queue."""
        with self._part("dataloader.enqueue", traceparent, facts, self._trace.SpanKind.PRODUCER) as part:
            yield part

    def waited(self, traceparent: str | None, seconds: float, facts: Facts) -> str | None:
        """A job has waited until just now. Returns what its try goes on from: where nobody traces, it begins."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "dataloader.wait", self._after(traceparent), attributes=facts, start_time=now - int(seconds * _NS)
        )
        span.end(now)
        return traceparent or _written(span.get_span_context())

    @contextmanager
    def trying(self, traceparent: str | None, facts: Facts) -> Iterator[Part]:
        """While a try runs, in this thread: what the pipeline draws itself is within."""
        with self._part("dataloader.attempt", traceparent, facts, self._trace.SpanKind.CONSUMER) as part:
            yield part

    @contextmanager
    def _part(self, name: str, traceparent: str | None, facts: Facts, kind: Any) -> Iterator[Part]:
        after = self._after(traceparent)
        with self._tracer.start_as_current_span(name, after, kind=kind, attributes=facts) as span:
            yield Part(_written(span.get_span_context()) or traceparent, span)

    def _after(self, traceparent: str | None) -> Any:
        """The context in which what follows it is drawn. None: as the thread has it."""
        if traceparent is None:
            return None
        _, trace, span, flags = traceparent.split("-")
        remote = self._trace.SpanContext(
            int(trace, 16), int(span, 16), is_remote=True, trace_flags=self._trace.TraceFlags(int(flags, 16))
        )
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(remote))


def _written(context: Any) -> str | None:
    if not context.is_valid:  # nobody has set up a provider
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def tracer(*, wanted: bool, version: str) -> Tracer:
    """What the settings ask for. Raises ConfigError where the packages are missing."""
    if not wanted:
        return Quiet()
    try:
        trace = import_module("opentelemetry.trace")
        sdk = import_module("opentelemetry.sdk.trace")
    except ImportError as error:
        told = f"true, and {error.name} is not installed"
        raise ConfigError([Fault("DL_TRACING", told, "pip install 'dataloader[otel]'")]) from error
    if isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        return Telemetry(version=version)  # whoever started the process has set one up
    return Telemetry(_provider(sdk, version), version=version)


def _provider(sdk: ModuleType, version: str) -> Any:
    """One that sends to the collector of OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT)."""
    resources = import_module("opentelemetry.sdk.resources")
    about = resources.Resource.create({"service.name": "dataloader", "service.version": version})
    provider = sdk.TracerProvider(resource=about)
    with suppress(ImportError):
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        batch = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor
        provider.add_span_processor(batch(otlp.OTLPSpanExporter()))
    return provider
