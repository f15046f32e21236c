"""Metrics for OpenTelemetry: histograms of what has ended; all that `stats()` and `health()` tell, when it is asked.

An observable instrument cannot be taken back, so that each meter provider has one set for all of its pipelines.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, final

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

import boundedgen
from boundedgen._door import Count
from boundedgen._errors import FinishReason
from boundedgen._flow import Ending
from boundedgen._pipeline import BoundedPipeline
from boundedgen._stats import Health, SchedulerStats
from boundedgen.exporters import _metrics as table
from boundedgen.exporters._metrics import Metric
from boundedgen.exporters._spans import MODEL, OPERATION, SCOPE, Attributes, does_something, error_of

#: Histograms by the conventions: unit, bounds of the buckets, description.
GEN_AI: Final[Mapping[str, tuple[str, tuple[float, ...], str]]] = {
    "gen_ai.server.request.duration": (
        "s",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
        "Time from submit to the end, whatever it was.",
    ),
    "gen_ai.server.time_to_first_token": (
        "s",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        "Time from submit to the first token, of generations that ended normally.",
    ),
    "gen_ai.server.time_per_output_token": (
        "s",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
        "Mean time per token after the first one, of generations that ended normally.",
    ),
    "gen_ai.client.token.usage": (
        "{token}",
        tuple(float(4**power) for power in range(14)),
        "Tokens of the prompt and of the answer, of generations that were admitted.",
    ),
}
#: What the end of a name says.
UNITS: Final[Mapping[str, str]] = {
    "_seconds": "s",
    "_bytes": "By",
    "_ratio": "1",
    "_sequences": "{sequence}",
    "_stays": "{stay}",
    "_blocks": "{block}",
    "_tokens": "{token}",
    "_steps": "{step}",
}
DROPPED: Final = Metric("boundedgen_telemetry_dropped_total", "counter", help="ended, and have no span")
_SOURCES: Final[tuple[tuple[Mapping[str, Metric], Callable[[_Look], Iterable[tuple[object, Attributes]]]], ...]] = (
    (table.STATS, lambda look: ((look.stats, {}),)),
    (table.RECLAIM, lambda look: ((look.stats.reclaim, {}),)),
    (table.POOLS, lambda look: ((pool, {"pool": pool.name}) for pool in look.stats.pools)),
    (table.HEALTH, lambda look: ((look.health, {}),)),
    ({"dropped": DROPPED}, lambda look: ((look, {}),)),
)


def conventional(metric: Metric) -> tuple[str, str]:
    """Its name and unit. The name is that of the other exporter, unit included: one name, whoever is asked.

    Prometheus, which puts units into the names that it gets, leaves those that have them as they are.
    """
    name = metric.name.removesuffix("_total").removeprefix(table.PREFIX)
    return f"boundedgen.{name}", next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


class _Look:
    """A pipeline at one moment."""

    def __init__(self, pipeline: BoundedPipeline, dropped: int) -> None:
        self.stats: SchedulerStats = pipeline.stats()
        self.health: Health = pipeline.health()
        self.dropped: int = dropped


@final
class Lane:
    """A pipeline under its name, which does not live on for it."""

    def __init__(self, name: str, pipeline: BoundedPipeline, dropped: Count) -> None:
        self.name = name
        self._pipeline = weakref.ref(pipeline)
        self._dropped = dropped
        self._configured = list(table.configured(pipeline))
        self._look: _Look | None = None
        self._asked: set[str] = set()

    @property
    def gone(self) -> bool:
        return self._pipeline() is None

    @property
    def over(self) -> bool:
        pipeline = self._pipeline()
        return pipeline is None or pipeline._driver.over

    def _here(self) -> BoundedPipeline | None:
        """None: it is gone, or this is a fork, which would tell what its parent tells."""
        pipeline = self._pipeline()
        return None if pipeline is None or pipeline._driver.foreign else pipeline

    def configured(self, metric: str) -> Iterator[_Sample]:
        """What never changes."""
        if self._here() is not None:
            yield from ((value, labels) for one, labels, value in self._configured if one.name == metric)

    def look(self, metric: str) -> _Look | None:
        """The same for all metrics of one collection: a new one when any of them is asked for again."""
        if self._look is None or metric in self._asked:
            pipeline = self._here()
            if pipeline is None:
                return None
            self._asked.clear()
            self._look = _Look(pipeline, self._dropped.total)
        self._asked.add(metric)
        return self._look


@final
class Measures:
    """The instruments of one meter provider."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(SCOPE, boundedgen.__version__, meter_provider=provider)
        self.heard = functools.partial(_heard, None if provider is None else weakref.ref(provider))
        self._lanes: dict[str, Lane] = {}
        self._histograms = {
            name: meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=edges)
            for name, (unit, edges, text) in GEN_AI.items()
        }
        self._observe(meter)

    @classmethod
    def of(cls, provider: MeterProvider | None) -> Measures:
        """The one of `provider`; None: of the global one."""
        key = metrics.MeterProvider if provider is None else provider
        found = _known.get(key)
        if found is None:
            found = _known[key] = cls(provider)
        return found

    def add(self, lane: Lane) -> None:
        known = self._lanes.get(lane.name)
        self._lanes = {name: one for name, one in self._lanes.items() if not one.gone}
        if known is not None and not known.over:
            raise ValueError(f"name: there is a pipeline {lane.name!r} already; give each one a name of its own")
        self._lanes[lane.name] = lane

    def remove(self, lane: Lane) -> None:
        if self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    # --- histograms ----------------------------------------------------------------------------------------------

    def tell(self, ending: Ending, attributes: Attributes, within: Context) -> None:
        """`within`: the context of its span, for exemplars."""
        of_all = {name: value for name, value in attributes.items() if name in _KEPT}
        for name, value, more in _measured(ending):
            self._histograms[name].record(value, {**of_all, **more}, within)

    # --- observable ----------------------------------------------------------------------------------------------

    def _observe(self, meter: Meter) -> None:
        texts = {metric.name: text for metric, _, text in table.told()}

        def make(metric: Metric, callback: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
            name, unit = conventional(metric)
            of_kind = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            of_kind(name, [callback], unit, metric.help or texts.get(metric.name, ""))

        for metrics_of, parts in _SOURCES:
            for field, metric in metrics_of.items():
                if metric.kind in _FORMS:  # there are no observable histograms
                    make(metric, functools.partial(self._told, metric, field, parts))
        for metric in (table.INFO, table.BOUNDS, *table.LIMITS.values()):
            make(metric, functools.partial(self._told_once, metric))

    def _told(
        self,
        metric: Metric,
        field: str,
        parts: Callable[[_Look], Iterable[tuple[object, Attributes]]],
        _: CallbackOptions,
    ) -> Iterator[Observation]:
        for lane in list(self._lanes.values()):
            look = lane.look(metric.name)
            for source, attributes in parts(look) if look is not None else ():
                for value, more in _FORMS[metric.kind](metric, getattr(source, field)):
                    yield Observation(value, {"pipeline": lane.name, **attributes, **more})

    def _told_once(self, metric: Metric, _: CallbackOptions) -> Iterator[Observation]:
        for lane in list(self._lanes.values()):
            for value, attributes in lane.configured(metric.name):
                yield Observation(value, {"pipeline": lane.name, **attributes})


_known: weakref.WeakKeyDictionary[object, Measures] = weakref.WeakKeyDictionary()
_KEPT: Final = (OPERATION, "gen_ai.provider.name", MODEL, "boundedgen.pipeline")


def _measured(ending: Ending) -> Iterator[tuple[str, float, Attributes]]:
    """What there is to record, under which name, with which attributes of its own."""
    submission, error = ending.submission, error_of(ending)
    more = {"error.type": error} if error else {}
    yield "gen_ai.server.request.duration", ending.settled_at - submission.submitted_at, more
    if ending.admitted_at is not None:
        yield "gen_ai.client.token.usage", submission.prompt_tokens, {"gen_ai.token.type": "input"}
        yield "gen_ai.client.token.usage", ending.output_tokens, {"gen_ai.token.type": "output"}
    first = ending.first_token_at
    if first is None or submission.sequences != 1 or not FinishReason(ending.reason).normal:
        return
    yield "gen_ai.server.time_to_first_token", first - submission.submitted_at, {}
    if ending.output_tokens > 1:
        each = (ending.settled_at - first) / (ending.output_tokens - 1)
        yield "gen_ai.server.time_per_output_token", each, {}


def _heard(provider: weakref.ref[MeterProvider] | None) -> bool:
    """There is somebody who does anything with a measurement."""
    return does_something(metrics.get_meter_provider() if provider is None else provider())


_Sample = tuple[float, Attributes]


def _numbers(metric: Metric, value: Any) -> Iterator[_Sample]:
    """What is not known has none."""
    if isinstance(value, Mapping):
        yield from ((count, {metric.label: key}) for key, count in value.items())
    elif value is not None:
        yield (len(value) if isinstance(value, tuple) else value + 0), {}


def _states(metric: Metric, value: Enum | None) -> Iterator[_Sample]:
    if value is not None:
        yield from ((int(one is value), {metric.label: one.value}) for one in type(value))


def _info(metric: Metric, value: object) -> Iterator[_Sample]:
    """A text, or an error by its type."""
    if value is not None:
        yield 1, {metric.label: value if isinstance(value, str) else type(value).__name__}


_FORMS: Final[Mapping[str, Callable[[Metric, Any], Iterator[_Sample]]]] = {
    "gauge": _numbers,
    "counter": _numbers,
    "stateset": _states,
    "info": _info,
}
