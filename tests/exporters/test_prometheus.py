"""What Prometheus scrapes: every field, under the right name, in every state, and nothing that is nobody's business."""

import gc
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
from core.hand_engine import A, HandEngine, lane, until
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

import boundedgen as b
from boundedgen.exporters import _metrics as table
from boundedgen.exporters.prometheus import PipelineCollector
from boundedgen.testing import Simulation

LIMITS = b.Limits(progress=1e6, ack=1e6, reclaim=1e6)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(**pipelines: b.BoundedPipeline) -> tuple[str, Samples]:
    """As a server's registry gives it out, and read again by the library's own parser."""
    registry = CollectorRegistry()
    registry.register(PipelineCollector(pipelines))
    text = generate_latest(registry).decode()
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in prometheus(text)
        for sample in family.samples
    }
    return text, found


def sample(found: Samples, name: str, pipeline: str = "it", **labels: str) -> float | None:
    return found.get((f"boundedgen_{name}", frozenset({"pipeline": pipeline, **labels}.items())))


def values(found: Samples, name: str) -> list[float]:
    """Of all samples of this name."""
    return [value for (known, _), value in found.items() if known == f"boundedgen_{name}"]


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "metrics"), table.TABLES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_field_has_a_metric_or_a_reason_for_none(kind: type, metrics: Mapping[str, table.Metric]) -> None:
    fields = {field.name for field in attrs.fields(kind)}
    properties = {name for name, member in vars(kind).items() if isinstance(member, property)}
    untold = {name for its, name in table.UNTOLD if its is kind}
    assert fields - metrics.keys() == untold
    assert metrics.keys() - fields == properties


def test_a_name_is_given_once_and_carries_its_unit_and_each_has_a_help() -> None:
    rows = list(table.told())
    names = [metric.name for metric, _, _ in rows]
    assert len(names) == len(set(names))
    for metric, source, text in rows:
        assert text, metric
        field = source.partition(".")[2]
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        if field.endswith("_s") or metric.kind == "histogram":
            assert metric.name.endswith(("_seconds", "_per_second")), metric
        for unit in ("bytes", "blocks"):
            assert (unit in field) <= metric.name.endswith(f"_{unit}"), metric


def test_no_label_has_values_without_end() -> None:
    labels = {metric.label for metric, _, _ in table.told()}
    assert not labels & {"owner", "label", "id", "lease", "sequence", "generation", "prompt", "reason_text"}
    assert labels == {
        "", "adapter", "error", "reason", "bound", "event", "cause", "pool", "proof", "limit", "boundedgen_health",
        "boundedgen_last_probe",
    }  # fmt: skip


# --- a lane ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def used() -> Iterator[Simulation]:
    """Some have ended in one way or another, one waits, one runs; a probe was made."""
    bounds = b.Bounds(total=60, queued=30)
    with Simulation(limits=b.Limits(running_max=1, owner_max=5), bounds=bounds) as simulation:
        pipeline = simulation.pipeline
        pipeline.generate([5, 6, 7], max_new_tokens=9)
        pipeline.probe()
        pipeline.lease("ada", ttl=20)
        with pytest.raises(b.DeadlineExceeded):
            pipeline.generate([5], max_new_tokens=500, ignore_eos=True, bounds=b.Bounds(total=0.5))
        held = [pipeline.submit([5], max_new_tokens=500, ignore_eos=True, owner="bob", label="his") for _ in range(2)]
        simulation.advance(1.0)
        with pytest.raises(b.InvalidRequest):
            pipeline.submit([])
        yield simulation
        del held


def test_every_field_is_told_as_it_is(used: Simulation) -> None:
    pipeline = used.pipeline
    stats, health = pipeline.stats(), pipeline.health()
    _, found = scraped(it=pipeline)
    told = {**{f: (stats, m) for f, m in table.STATS.items()}, **{f: (health, m) for f, m in table.HEALTH.items()}}
    for field, (source, metric) in told.items():
        value, name = getattr(source, field), metric.name.removeprefix("boundedgen_")
        if value is None:
            assert values(found, name) == [], field
        elif isinstance(value, Mapping):
            assert {key: sample(found, name, **{metric.label: key}) for key in value} == value, field
        elif metric.kind == "stateset":
            states = {state.value: sample(found, name, **{metric.label: state.value}) for state in type(value)}
            assert states == {state.value: float(state is value) for state in type(value)}, field
        else:
            expected = len(value) if isinstance(value, tuple) else float(value)
            assert values(found, name) == pytest.approx([expected], abs=1e-3), field
    assert (sample(found, "running_sequences"), sample(found, "waiting_sequences")) == (1.0, 1.0)
    assert sample(found, "deadlines_total", bound="total") == 1.0
    assert sample(found, "rejected_total", error="InvalidRequest") == 1.0
    assert sample(found, "lease_events_total", event="granted") == 1.0


def test_a_histogram_has_its_buckets_its_count_and_its_sum(used: Simulation) -> None:
    stats = used.pipeline.stats()
    text, found = scraped(it=used.pipeline)
    told = {**{name: getattr(stats.times, name) for name in table.TIMES}, "reclaim": stats.reclaim}
    for name, histogram in told.items():
        assert sample(found, f"{name}_seconds_count") == histogram.count_total > 0
        assert sample(found, f"{name}_seconds_sum") == pytest.approx(histogram.sum_s)
        bucket = f"boundedgen_{name}_seconds_bucket"
        edges = {float(dict(labels)["le"]): n for (known, labels), n in found.items() if known == bucket}
        assert edges == histogram.buckets_s
    assert f'boundedgen_step_seconds_bucket{{le="+Inf",pipeline="it"}} {float(stats.steps_total)}' in text


def test_pools_are_told_by_name(used: Simulation) -> None:
    stats = used.pipeline.stats()
    _, found = scraped(it=used.pipeline)
    assert [pool.name for pool in stats.pools] == ["kv"]
    for field, metric in table.POOLS.items():
        name = metric.name.removeprefix("boundedgen_")
        assert sample(found, name, pool="kv") == getattr(stats.pools[0], field)


def test_what_the_lane_was_built_with_is_told(used: Simulation) -> None:
    _, found = scraped(it=used.pipeline)
    (info,) = [dict(labels) for name, labels in found if name == "boundedgen_info"]
    assert info == {
        "pipeline": "it", "boundedgen": b.__version__, "openvino": info["openvino"],
        "openvino_genai": info["openvino_genai"], "model": "", "device": "", "admission": "reserve", "resume": "fail",
    }  # fmt: skip
    assert sample(found, "bound_seconds", bound="total") == 60.0
    assert sample(found, "bound_seconds", bound="queued") == 30.0
    assert sample(found, "bound_seconds", bound="next_token") is None
    assert sample(found, "limit_sequences", limit="owner_max") == 5.0
    assert sample(found, "limit_seconds", limit="progress") == b.Limits().progress
    assert sample(found, "limit_seconds", limit="engine_age") is None
    assert sample(found, "limit_steps", limit="reclaim_steps") == b.Limits().reclaim_steps
    assert sample(found, "running_max_sequences") == 1.0


def test_nobody_is_named(used: Simulation) -> None:
    lease = used.pipeline.lease("carl", ttl=20)
    generation = used.pipeline.submit("a secret of a lighthouse", lease=lease, label="mine")
    text, _ = scraped(it=used.pipeline)
    for name in ("ada", "bob", "carl", "his", "mine"):
        assert f'"{name}"' not in text
    for secret in ("secret", "lighthouse", lease.id):
        assert secret not in text
    del generation


def test_the_text_can_be_read_as_openmetrics_too(used: Simulation) -> None:
    registry = CollectorRegistry()
    registry.register(PipelineCollector({"it": used.pipeline}))
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family for family in openmetrics(text)}  # type: ignore[no-untyped-call]
    assert families["boundedgen_health"].type == "stateset"
    assert families["boundedgen_finished"].type == "counter"
    assert families["boundedgen_step_seconds"].type == "histogram"
    assert families["boundedgen"].type == "info"
    kinds = {metric.name: metric.kind for metric, _, _ in table.told()}
    suffixes = {"counter": "_total", "info": "_info"}
    assert {name + suffixes.get(family.type, "") for name, family in families.items()} == kinds.keys()


def test_promtool_has_nothing_to_say(used: Simulation) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    text, _ = scraped(it=used.pipeline, other=used.pipeline)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- other states ----------------------------------------------------------------------------------------------------


def test_what_is_not_known_yet_has_no_sample() -> None:
    engine = HandEngine()
    engine.boots = False
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    try:
        _, found = scraped(it=pipeline)
    finally:
        pipeline.close()
    assert sample(found, "health", boundedgen_health="starting") == 1.0
    assert (sample(found, "ready"), sample(found, "live"), sample(found, "submitted_total")) == (0.0, 1.0, 0.0)
    unknown = ("kv_blocks", "cache_usage_ratio", "last_step_seconds", "last_probe", "pool_blocks", "engine_pid")
    assert [name for name in unknown if values(found, name)] == []
    assert values(found, "oldest_waiting_seconds") == []
    assert values(found, "reclaim_proof_info") == []


def test_a_closed_lane_goes_on_telling_its_health_and_its_counters() -> None:
    with lane() as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=4)
        engine.say(A)
        engine.finish()
        generation.result(20)
        pipeline.close()
        _, found = scraped(it=pipeline)
    assert sample(found, "health", boundedgen_health="closed") == 1.0
    assert (sample(found, "ready"), sample(found, "live")) == (0.0, 0.0)
    assert sample(found, "finished_total", reason="stop") == 1.0
    assert sample(found, "closes_total") == 1.0


def test_a_failed_lane_tells_by_which_error() -> None:
    with lane(restart=b.RestartPolicy(stop=lambda state: True)) as (pipeline, engine):
        engine.die()
        until(lambda: pipeline.health().state is b.HealthState.FAILED)
        _, found = scraped(it=pipeline)
    assert sample(found, "health", boundedgen_health="failed") == 1.0
    assert sample(found, "failure_info", error="EngineFailed") == 1.0
    assert sample(found, "kills_total", cause="died") == 1.0
    assert sample(found, "live") == 0.0


# --- several ---------------------------------------------------------------------------------------------------------


def test_several_lanes_are_told_apart_and_can_come_and_go() -> None:
    registry, collector = CollectorRegistry(), PipelineCollector()
    registry.register(collector)
    with lane() as (one, _), lane() as (two, _):
        collector.add("one", one)
        collector.add("two", two)
        generation = two.submit("x", max_new_tokens=4)

        def told(name: str) -> float | None:
            return registry.get_sample_value("boundedgen_submitted_total", {"pipeline": name})

        until(lambda: told("two") == 1.0)
        assert told("one") == 0.0
        collector.add("one", two)
        assert told("one") == 1.0
        collector.remove("one")
        collector.remove("one")
        assert told("one") is None
        del generation


def test_a_registry_takes_one_collector_of_these_names() -> None:
    registry = CollectorRegistry()
    registry.register(PipelineCollector())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(PipelineCollector())


def test_a_pipeline_that_nobody_holds_is_told_of_no_more() -> None:
    registry, collector = CollectorRegistry(), PipelineCollector()
    registry.register(collector)
    with lane() as (pipeline, _):
        collector.add("it", pipeline)
        assert registry.get_sample_value("boundedgen_live", {"pipeline": "it"}) == 1.0
    del pipeline, _
    gc.collect()
    assert registry.get_sample_value("boundedgen_live", {"pipeline": "it"}) is None


def test_a_bug_in_what_one_tells_takes_no_other_metrics_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lane() as (one, _), lane() as (two, _):
        stats = b.BoundedPipeline.stats

        def broken(self: b.BoundedPipeline, **options: Any) -> b.SchedulerStats:
            if self is one:
                raise ZeroDivisionError
            return stats(self, **options)

        monkeypatch.setattr(b.BoundedPipeline, "stats", broken)
        with caplog.at_level(logging.ERROR, "boundedgen"):
            _, found = scraped(one=one, two=two)
    assert (sample(found, "live", "one"), sample(found, "live", "two")) == (None, 1.0)
    assert "the metrics of pipeline 'one' could not be made" in caplog.text


def test_a_fork_tells_nothing_of_its_parent_s_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent tells it already, under the same name: a server's workers would have it closed, and counted twice."""
    with lane() as (pipeline, _):
        assert sample(scraped(it=pipeline)[1], "live") == 1.0
        monkeypatch.setattr(pipeline._driver, "foreign", "this pipeline lives in another process")
        assert scraped(it=pipeline)[1] == {}
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["", "x" * 300, 7, None, "gpu-\udc80"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with lane() as (pipeline, _), pytest.raises(ValueError, match="name of a pipeline"):
        PipelineCollector().add(name, pipeline)


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a BoundedPipeline, not str"):
        PipelineCollector({"it": "it"})  # type: ignore[dict-item]


# --- without the extra -----------------------------------------------------------------------------------------------


def test_without_the_client_library_the_extra_is_named() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import boundedgen.exporters.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == 1
    assert "pip install 'boundedgen[prometheus]'" in done.stderr
