"""OpenTelemetry's SDK for tests: what it has got, in memory. Who imports this is skipped where it is not installed."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import boundedgen as b
from boundedgen.exporters.opentelemetry import Instrumentation, instrument
from boundedgen.testing import Simulation


class Sdk:
    """Both providers, and what they have got."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.tracers.get_tracer("a server")

    def instrument(self, pipeline: b.BoundedPipeline, **settings: Any) -> Instrumentation:
        return instrument(pipeline, tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    def spans(self, sim: Simulation | None = None) -> list[ReadableSpan]:
        """Of generations, in the order of their ends."""
        if sim is not None:
            sim.advance(0)
        scopes = [(span, span.instrumentation_scope) for span in self.exporter.get_finished_spans()]
        return [span for span, scope in scopes if scope is not None and scope.name == "boundedgen"]

    def metrics(self) -> dict[str, list[Any]]:
        """The data points, by the metric's name."""
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else [s for resource in data.resource_metrics for s in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    made = Sdk()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def about(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes."""
    return dict(span.attributes or {})
