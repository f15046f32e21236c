"""Stats and health for Prometheus, in the registry of the server that has the pipelines. docs/metrics.md: every name.

Needs `pip install "boundedgen[prometheus]"`. Nothing else imports this.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, final

from boundedgen._arguments import kind_of
from boundedgen._pipeline import BoundedPipeline
from boundedgen._stats import PLACES, ReclaimStats, TimeHistogram
from boundedgen.exporters import _metrics as table
from boundedgen.exporters._metrics import Metric

try:
    from prometheus_client import core
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ImportError(
        "boundedgen.exporters.prometheus needs prometheus-client; install it with: pip install 'boundedgen[prometheus]'"
    ) from missing

__all__ = ["PipelineCollector"]

logger = logging.getLogger(__name__)


@final
class PipelineCollector(Collector):
    """All that `stats()` and `health()` tell of some pipelines, each under its name in the label `pipeline`.

    `REGISTRY.register(PipelineCollector({"chat": pipeline}))`. One collector for all pipelines of a registry: two would
    have the same metrics twice. A scrape waits for nothing, raises nothing and starts nothing, in every state of a
    pipeline; a closed one tells its health and its counters for as long as somebody holds it, which this does not.
    """

    def __init__(self, pipelines: Mapping[str, BoundedPipeline] | None = None) -> None:
        """`pipelines`: by name; the names are yours. TypeError, ValueError: no name, or no pipeline."""
        self._lanes: dict[str, _Lane] = {}
        self._rows = [(metric, _plain(metric), text) for metric, _, text in table.told()]
        for name, pipeline in (pipelines or {}).items():
            self.add(name, pipeline)

    def add(self, name: str, pipeline: BoundedPipeline) -> None:
        """From now on it is told of, under `name`, and no longer any other that had this name."""
        plain = table.checked(name, "the name of a pipeline")
        if not isinstance(pipeline, BoundedPipeline):
            raise TypeError(f"pipeline must be a BoundedPipeline, not {kind_of(pipeline)}")
        self._lanes[plain] = _Lane(plain, pipeline)

    def remove(self, name: str) -> None:
        """No longer. Nothing happens if there is none of this name."""
        self._lanes.pop(name, None)

    def describe(self) -> list[core.Metric]:
        """Every metric, without samples: a registry looks whether it has one of these names already."""
        return [core.Metric(name, text, metric.kind) for metric, name, text in self._rows]

    def collect(self) -> list[core.Metric]:
        """Every metric of every pipeline, now."""
        families = self.describe()
        places = {metric.name: family.samples for (metric, _, _), family in zip(self._rows, families, strict=True)}
        for name, lane in list(self._lanes.items()):
            try:
                found = list(lane.samples())
            except Exception:  # a bug of ours must not take the server's own metrics with it
                text, extra = "the metrics of pipeline %r could not be made", {"event": "metrics_failed"}
                logger.exception(text, name, extra={**extra, "pipeline": name})
                continue
            for metric, sample in found:
                places[metric].append(sample)
        return families


_Sample = tuple[str, core.Sample]  #: the metric's name, and one of its samples


class _Lane:
    """One pipeline. What never changes is found out once."""

    def __init__(self, name: str, pipeline: BoundedPipeline) -> None:
        self._pipeline = weakref.ref(pipeline)
        self._label = {"pipeline": name}
        self._edges = [{**self._label, "le": "+Inf" if math.isinf(edge) else str(edge)} for edge in PLACES]
        self._kinds: Mapping[str, Callable[[Metric, Any, str], Iterator[_Sample]]] = {
            "gauge": self._number,
            "counter": self._number,
            "histogram": self._histogram,
            "stateset": self._states,
            "info": self._info,
        }
        self._constant = [
            (metric.name, core.Sample(metric.name, {**self._label, **labels}, value))
            for metric, labels, value in table.configured(pipeline)
        ]

    def samples(self) -> Iterator[_Sample]:
        pipeline = self._pipeline()
        if pipeline is None or pipeline._driver.foreign:  # in a fork, which would tell what its parent tells
            return
        stats, health = pipeline.stats(), pipeline.health()
        yield from self._constant
        yield from self._each(table.HEALTH, health)
        yield from self._each(table.STATS, stats)
        yield from self._each(table.TIMES, stats.times)
        yield from self._each(table.RECLAIM, stats.reclaim)
        for pool in stats.pools:
            yield from self._each(table.POOLS, pool, pool.name)

    def _each(self, metrics: Mapping[str, Metric], source: object, label: str = "") -> Iterator[_Sample]:
        """What is not known has no sample."""
        for field, metric in metrics.items():
            value = source if field == "buckets_s" else getattr(source, field)
            if isinstance(value, Mapping):
                for key, count in value.items():
                    yield from self._kinds[metric.kind](metric, count, key)
            elif value is not None:
                yield from self._kinds[metric.kind](metric, value, label)

    # --- a value, by the kind of its metric ----------------------------------------------------------------------

    def _number(self, metric: Metric, value: Any, label: str) -> Iterator[_Sample]:
        """Of several things, how many there are."""
        labels = {**self._label, metric.label: label} if metric.label else self._label
        yield metric.name, core.Sample(metric.name, labels, len(value) if isinstance(value, tuple) else float(value))

    def _histogram(self, metric: Metric, value: TimeHistogram | ReclaimStats, _: str) -> Iterator[_Sample]:
        bucket = f"{metric.name}_bucket"
        for labels, count in zip(self._edges, value.buckets_s.values(), strict=True):
            yield metric.name, core.Sample(bucket, labels, count)
        yield metric.name, core.Sample(f"{metric.name}_count", self._label, value.count_total)
        yield metric.name, core.Sample(f"{metric.name}_sum", self._label, value.sum_s)

    def _states(self, metric: Metric, value: Enum, _: str) -> Iterator[_Sample]:
        for one in type(value):
            yield metric.name, core.Sample(metric.name, {**self._label, metric.label: one.value}, float(one is value))

    def _info(self, metric: Metric, value: Any, _: str) -> Iterator[_Sample]:
        """A text, or an error by its type."""
        text = value if isinstance(value, str) else type(value).__name__
        yield metric.name, core.Sample(metric.name, {**self._label, metric.label: text}, 1.0)


def _plain(metric: Metric) -> str:
    """The name without what the format adds to it."""
    return metric.name.removesuffix({"counter": "_total", "info": "_info"}.get(metric.kind, ""))
