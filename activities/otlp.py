"""Sends spans to an OpenTelemetry collector over HTTP; nothing of OpenTelemetry is imported where none is named."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from activities.span import Span
from perdure.outlets import Outlet

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE = "perdure"
"""The name of the service where the environment gives none."""
LINGER = 1.0
"""Seconds that spans wait to be sent together."""

_log = logging.getLogger("perdure.watching")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name a collector and do not switch traces off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = environment.get("OTEL_TRACES_EXPORTER", "").lower() == "none"
    named = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return bool(named) and not disabled and not none


def service_of(environment: Mapping[str, str]) -> str:
    """The name of this service."""
    return environment.get("OTEL_SERVICE_NAME") or SERVICE


def otlp_outlet(environment: Mapping[str, str]) -> Outlet[Span] | None:
    """The way to the collector, which reads OpenTelemetry's variables itself; None where that cannot be built.

    A collector that is away costs nothing but the spans: they wait in a bounded queue and are dropped in the end.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is missing: pip install 'perdure[otel]'")
        return None
    try:
        exporter = OTLPSpanExporter()
    except Exception as error:
        _log.warning("OpenTelemetry refuses its settings, so no traces are sent: %s", error)
        return None
    logging.getLogger(OTLPSpanExporter.__module__).addFilter(_ONCE)
    named = "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "") or "OTEL_SERVICE_NAME" in environment
    resource = Resource.create({} if named else {"service.name": SERVICE})

    def take(batch: list[Span], dropped: int) -> None:
        if exporter.export([_readable(span, resource) for span in batch]) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the spans")

    return Outlet("OTLP traces", take, exporter.shutdown, linger=LINGER)


class _Once(logging.Filter):
    """Keeps the exporter's first complaint only: it has one for every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        said, self._said = self._said, True
        return not said


_ONCE = _Once()


def _readable(span: Span, resource: object) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span_id: str) -> SpanContext:
        return SpanContext(
            int(span.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    return ReadableSpan(
        span.name,
        context(span.span_id),
        context(span.parent_id) if span.parent_id else None,
        resource,  # type: ignore[arg-type]
        dict(span.attributes),
        [Event(moment.name, dict(moment.attributes), moment.at) for moment in span.moments],
        kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=InstrumentationScope("perdure", version("perdure")),
    )
