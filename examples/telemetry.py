"""A generation in a trace, with its metrics. python examples/telemetry.py MODEL [DEVICE]

Wants boundedgen[opentelemetry] and opentelemetry-sdk.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

import boundedgen as b
from boundedgen.exporters.opentelemetry import instrument


def set_up(exporter: SpanExporter, reader: MetricReader) -> TracerProvider:
    """Once in a process; OTEL_SERVICE_NAME names it. `shutdown()` of what it gives sends what is left."""
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))
    return tracers


@contextmanager
def lane(model: str, device: str) -> Iterator[b.BoundedPipeline]:
    with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device) as pipeline, instrument(pipeline, name="chat"):
        yield pipeline


def answer(pipeline: b.BoundedPipeline, headers: Mapping[str, str], question: str) -> str:
    """A request's handler. The span's parent is the caller's; under instrumentation of the framework leave it out."""
    told = pipeline.generate(question, max_new_tokens=20, owner="me", traceparent=headers.get("traceparent"))
    return told.text


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    tracers = set_up(ConsoleSpanExporter(), reader)
    with lane(model, device) as pipeline:
        answer(pipeline, {"traceparent": f"00-{'4bf92f35' * 4}-{'00f067aa' * 2}-01"}, "Hello")
        data = reader.get_metrics_data()
        found = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        print(*sorted(metric.name for scope in found for metric in scope.metrics))
    tracers.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
