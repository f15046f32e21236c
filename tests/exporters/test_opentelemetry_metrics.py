"""What `stats()` and `health()` tell is told to OpenTelemetry too, under names that Prometheus turns into its own."""

import re
from typing import Any

import pytest
from counts import happened
from exporters.sdk import Sdk, sdk
from opentelemetry.sdk.metrics import MeterProvider
from testing.test_field_reports import CRASH, conserved

import boundedgen as b
from boundedgen._door import Count
from boundedgen.exporters import _metrics as table
from boundedgen.exporters._instruments import Lane, conventional
from boundedgen.exporters.opentelemetry import instrument
from boundedgen.testing import Fault, SimModel, Simulation
from deploy import expected

__all__ = ["sdk"]  # a fixture

MODEL = SimModel(boot_s=1, step_s=0.5, token_s=0)


def by(points: list[Any], attribute: str) -> dict[str, int]:
    return {point.attributes[attribute]: point.value for point in points}


def test_a_collection_tells_what_stats_and_health_do(sdk: Sdk) -> None:
    with Simulation(model=MODEL, limits=b.Limits(running_max=2)) as sim, sdk.instrument(sim.pipeline, name="lane"):
        held = [sim.pipeline.submit("hello", max_new_tokens=100) for _ in range(3)]
        sim.advance(1)
        late = sim.pipeline.submit("hello", max_new_tokens=100, bounds=b.Bounds(queued=2))
        sim.advance(3)
        with pytest.raises(b.NeverFits):
            sim.pipeline.submit("hello" * 1000, max_new_tokens=8000)
        stats, told = sim.pipeline.stats(), sdk.metrics()
        assert late.finish_reason is b.FinishReason.DEADLINE
        del held
    assert by(told["boundedgen.waiting_sequences"], "pipeline") == {"lane": stats.waiting}
    assert by(told["boundedgen.running_sequences"], "pipeline") == {"lane": 2}
    assert by(told["boundedgen.oldest_waiting_seconds"], "pipeline")["lane"] == pytest.approx(stats.oldest_waiting_s)
    assert by(told["boundedgen.submitted"], "pipeline") == {"lane": 4}
    assert happened(by(told["boundedgen.finished"], "reason")) == happened(stats.finished_total)
    assert happened(by(told["boundedgen.deadlines"], "bound")) == {"queued": 1}
    assert happened(by(told["boundedgen.rejected"], "error")) == {"NeverFits": 1}
    assert by(told["boundedgen.pool_free_blocks"], "pool") == {"kv": stats.blocks_free}
    assert happened(by(told["boundedgen.health"], "boundedgen_health")) == {"ready": 1}
    assert by(told["boundedgen.live"], "pipeline") == {"lane": 1}
    assert by(told["boundedgen.telemetry_dropped"], "pipeline") == {"lane": 0}
    assert "boundedgen.engine_rss_bytes" not in told, "what is not known is not told"


def test_each_collection_is_of_one_moment(sdk: Sdk) -> None:
    """Whatever is asked first: the sum of the ends, of what waits and of what runs is what was submitted."""
    model = SimModel(boot_s=1, step_s=0.02, token_s=0)
    with Simulation(model=model, faults=[Fault(kind="crash", at_step=40)]) as sim, sdk.instrument(sim.pipeline):
        sim.watch(lambda: conserved(sim.pipeline))
        held = []
        for turn in range(60):
            held.append(sim.pipeline.submit("hello", max_new_tokens=1 + turn % 7))
            sim.advance(0.03)
            told = sdk.metrics()
            waiting, running = (told[f"boundedgen.{name}_sequences"][0].value for name in ("waiting", "running"))
            ended = sum(point.value for point in told["boundedgen.finished"])
            assert told["boundedgen.submitted"][0].value == turn + 1 == waiting + running + ended
            assert told["boundedgen.submitted"][0].value == sim.pipeline.stats().submitted_total, "not an older one"


def test_what_happens_during_a_collection_is_of_the_next_one() -> None:
    with Simulation(model=MODEL) as sim:
        lane = Lane("lane", sim.pipeline, Count())
        looks = [lane.look("one")]
        held = sim.pipeline.submit("hello")
        sim.advance(0)
        looks += [lane.look("another"), lane.look("one"), lane.look("another")]
        del held
    assert [look and look.stats.submitted_total for look in looks] == [0, 0, 1, 1]


def test_a_fork_tells_nothing_of_its_parent_s_pipeline(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent tells it already, under the same name."""
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        assert sdk.metrics()
        monkeypatch.setattr(sim.pipeline._driver, "foreign", "this pipeline lives in another process")
        assert sdk.metrics() == {}
        monkeypatch.undo()


def test_the_histograms_have_what_a_generation_s_completion_has(sdk: Sdk) -> None:
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        answer = sim.pipeline.generate("hello", max_new_tokens=5)
        with pytest.raises(b.DeadlineExceeded):
            sim.pipeline.generate("hello", max_new_tokens=50, bounds=b.Bounds(total=3))
        told = sdk.metrics()
    assert answer.first_token_s is not None
    ((first,), (each,)) = (told[f"gen_ai.server.time_{name}"] for name in ("to_first_token", "per_output_token"))
    assert (first.count, first.sum) == (1, pytest.approx(answer.first_token_s))
    assert (each.count, each.sum) == (1, pytest.approx((answer.total_s - answer.first_token_s) / 4))
    durations = {point.attributes.get("error.type"): point for point in told["gen_ai.server.request.duration"]}
    assert durations[None].sum == pytest.approx(answer.total_s)
    assert durations["DeadlineExceeded"].sum == pytest.approx(3)
    tokens = {point.attributes["gen_ai.token.type"]: point for point in told["gen_ai.client.token.usage"]}
    assert (tokens["input"].count, tokens["input"].sum) == (2, 2 * answer.prompt_tokens)
    assert tokens["output"].sum > 5
    assert dict(first.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "openvino",
        "boundedgen.pipeline": "pipeline",
    }
    assert first.explicit_bounds[0] == 0.001
    assert {len(set(point.explicit_bounds)) for point in durations.values()} == {14}


def test_labels_owners_and_ids_are_attributes_of_no_metric(sdk: Sdk) -> None:
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        lease = sim.pipeline.lease("somebody", ttl=600)
        sim.pipeline.generate("hello", max_new_tokens=5, label="some job", lease=lease)
        data = sdk.reader.get_metrics_data()
    assert data is not None
    for unsaid in ("somebody", "some job", lease.id):
        assert unsaid not in data.to_json()


def test_every_metric_that_is_scraped_is_told_under_a_name_that_comes_out_as_the_same(sdk: Sdk) -> None:
    """But histograms, of which there are no observable ones."""
    left_out = {metric.name for metric, _, _ in table.told() if metric.kind == "histogram"}
    scraped = {metric.name: metric for metric, _, _ in table.told() if metric.name not in left_out}
    kinds = {
        "counter": "create_observable_counter",
        **dict.fromkeys(("gauge", "stateset", "info"), "create_observable_gauge"),
    }
    made: dict[str, tuple[str, str]] = {}

    class Meters(MeterProvider):
        def get_meter(self, *arguments: Any, **keywords: Any) -> Any:
            return Meter()

    class Meter:
        def __getattr__(self, how: str) -> Any:
            def make(name: str, *about: Any, **_: object) -> None:
                unit, description = about[-2:]
                assert description, name
                made[name] = (how, unit)

            return make

    with Simulation(model=MODEL) as sim, instrument(sim.pipeline, meter_provider=Meters()):
        pass
    for metric in scraped.values():
        name, unit = conventional(metric)
        assert made.pop(name) == (kinds[metric.kind], unit)
        assert re.fullmatch(r"boundedgen\.[a-z_]+", name)
    assert set(made) == {
        "boundedgen.telemetry_dropped",
        "gen_ai.client.token.usage",
        "gen_ai.server.request.duration",
        "gen_ai.server.time_per_output_token",
        "gen_ai.server.time_to_first_token",
    }


def test_every_alert_rule_holds_for_what_opentelemetry_tells() -> None:
    """There are no observable histograms: no rule may ask for one."""
    told = {metric.name for metric, _, _ in table.told() if metric.kind != "histogram"}
    asked = {name for rule in expected.rules() for name in expected.names(rule["expr"])}
    assert asked <= told
    assert asked & {table.BOUNDS.name, *(metric.name for metric in table.LIMITS.values())}


def test_prometheus_has_the_same_from_either_exporter() -> None:
    """By the rules of opentelemetry-exporter-prometheus, which are the collector's."""
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="opentelemetry-exporter-prometheus is not there")
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import REGISTRY, CollectorRegistry

    from boundedgen.exporters.prometheus import PipelineCollector

    def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        found = [sample for family in registry.collect() for sample in family.samples]
        ours = [sample for sample in found if sample.name.startswith("boundedgen_")]
        return {
            (s.name, frozenset((key, value) for key, value in s.labels.items() if not key.startswith("otel_"))): s.value
            for s in ours
        }

    reader = PrometheusMetricReader()
    meters = MeterProvider([reader])
    try:
        with Simulation(model=MODEL, faults=[CRASH]) as sim:
            instrument(sim.pipeline, name="lane", meter_provider=meters)
            with pytest.raises(b.EngineLost):
                sim.pipeline.generate("hello", max_new_tokens=5)
            sim.pipeline.generate("hello", max_new_tokens=5)
            registry = CollectorRegistry()
            registry.register(PipelineCollector({"lane": sim.pipeline}))
            one, other = samples(REGISTRY), samples(registry)
    finally:
        meters.shutdown()
    apart = re.compile(r".*_(bucket|count|sum|created)$")
    expected = {key: value for key, value in other.items() if not apart.match(key[0])}
    found = {key: value for key, value in one.items() if key[0] != "boundedgen_telemetry_dropped_total"}
    assert len(expected) > 80
    assert found == expected
