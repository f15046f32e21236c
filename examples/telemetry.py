"""A generation in a trace, with its metrics. python examples/telemetry.py MODEL [DEVICE]

Wants boundedgen[opentelemetry] and opentelemetry-sdk; a server has an exporter for its collector here.
"""

import sys
from collections.abc import Mapping

import boundedgen as b
from boundedgen.exporters.opentelemetry import instrument


def answer(pipeline: b.BoundedPipeline, headers: Mapping[str, str], question: str) -> str:
    """A request's handler. The span's parent is the caller's; under instrumentation of the framework leave it out."""
    told = pipeline.generate(question, max_new_tokens=20, owner="me", traceparent=headers.get("traceparent"))
    return told.text


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    reader, tracers = InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))
    with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device) as pipeline, instrument(pipeline, name="chat"):
        answer(pipeline, {"traceparent": f"00-{'4bf92f35' * 4}-{'00f067aa' * 2}-01"}, "Hello")
        data = reader.get_metrics_data()
        found = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        print(*sorted(metric.name for scope in found for metric in scope.metrics))
    tracers.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
