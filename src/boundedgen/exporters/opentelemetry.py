"""Spans and metrics for OpenTelemetry, through its API only: without an SDK nothing happens. docs/telemetry.md has all.

Needs `pip install "boundedgen[opentelemetry]"`. Nothing else imports this.
"""

from __future__ import annotations

import time
import weakref
from typing import final

from boundedgen._arguments import kind_of
from boundedgen._flow import Ending, Flow
from boundedgen._following import Tell
from boundedgen._pipeline import BoundedPipeline

try:
    from opentelemetry.context import Context, get_current
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "boundedgen.exporters.opentelemetry needs opentelemetry-api; install it with: "
        "pip install 'boundedgen[opentelemetry]'"
    ) from missing

from boundedgen.exporters._instruments import Lane, Measures
from boundedgen.exporters._metrics import checked, readable
from boundedgen.exporters._spans import Spans, request_attributes

__all__ = ["Instrumentation", "instrument"]

PATIENCE = 1.0  #: seconds that `close` waits for what is on its way to the SDK
_W3C = TraceContextTextMapPropagator()


def instrument(
    pipeline: BoundedPipeline,
    *,
    name: str | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Instrumentation:
    """Have each generation that is submitted to `pipeline` from now on become a span, and its figures metrics.

    - `name`: of the pipeline, in what is told of it. None: its model's. ValueError: another one has it.
    - `tracer_provider`, `meter_provider`: of the SDK. None: the global ones, also those that are set later.

    The span's parent is the context that is current at `submit`, or `traceparent=`. It ends with the pipeline, or with
    `close`. RuntimeError: the pipeline is instrumented already.
    """
    if not isinstance(pipeline, BoundedPipeline):
        raise TypeError(f"pipeline must be a BoundedPipeline, not {kind_of(pipeline)}")
    model = readable(pipeline._driver.journal.model)
    name = checked(model or "pipeline" if name is None else name, "name")
    return Instrumentation(pipeline, name, model, tracer_provider, meter_provider)


@final
class Instrumentation:
    """What `instrument` returns. `with` closes it; so does the end of its pipeline, but for the metrics of that one.

    What an SDK does with a span, however long that takes, is done in a thread of its own. Generations that end while
    too many wait for it have no span, and are counted (`dropped`). No prompt or answer is in anything that it tells.
    """

    def __init__(
        self,
        pipeline: BoundedPipeline,
        name: str,
        model: str,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        self._model, self._name = model, name
        self._serving = weakref.ref(pipeline._serving)  # which knows this
        self._spans = Spans(tracer_provider)
        self._measures = Measures.of(meter_provider)
        self._following = pipeline._serving.follow(self._begin)
        self._lane = Lane(name, pipeline, self._following.dropped)
        try:
            self._measures.add(self._lane)
        except BaseException:
            pipeline._serving.unfollow(self._following)
            raise

    @property
    def dropped(self) -> int:
        """Generations that have ended and have no span: too many waited for the SDK, or the pipeline was over."""
        return self._following.dropped.total

    def close(self) -> None:
        """Tell of nothing new. Back once what has ended before is with the SDK, or in a second. Idempotent."""
        self._measures.remove(self._lane)
        self._following.close()
        if (serving := self._serving()) is not None:
            serving.unfollow(self._following)
        self._following.aside.join(PATIENCE)

    def __enter__(self) -> Instrumentation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self, flow: Flow) -> Tell | None:
        """In the thread of the caller, whose context it is."""
        spans, measures = self._spans, self._measures
        if not (spans.heard() or measures.heard()):
            return None
        context = _context(flow.traceparent)
        attributes = {**request_attributes(flow, self._model), "boundedgen.pipeline": self._name}
        submitted = flow.submission.submitted_at
        epoch = time.time_ns() - round((flow.now() - submitted) * 1e9)  # of wall time, which may be set meanwhile

        def tell(ending: Ending) -> None:
            within = context
            try:
                within = spans.tell(ending, context, attributes, lambda at: epoch + round((at - submitted) * 1e9))
            finally:  # of the SDK's spans: what fails there is no matter of its metrics
                measures.tell(ending, attributes, within)

        return tell


def _context(traceparent: str | None) -> Context:
    """That of the caller. A `traceparent` that says nothing is as if there were none, as W3C has it."""
    current = get_current()
    return current if traceparent is None else _W3C.extract({"traceparent": traceparent}, current)
