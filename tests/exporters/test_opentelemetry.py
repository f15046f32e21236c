"""Each generation is one span, whatever its end, with its true times and no text: as the SDK's own exporter has it."""

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity
from attrs import evolve
from exporters.sdk import Sdk, about, sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from testing.test_field_reports import ENDS, LIMITS

import boundedgen as b
from boundedgen._errors import ERROR_OF
from boundedgen.exporters.opentelemetry import instrument
from boundedgen.testing import Fault, SimModel, Simulation

__all__ = ["sdk"]  # a fixture

MODEL = SimModel(boot_s=1, step_s=0.5, token_s=0)
CONTINUE = b.RestartPolicy(wait=tenacity.wait_none(), resume="continue")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def seconds(span: ReadableSpan) -> dict[str, float]:
    """From its start to each event, and to its end."""
    assert span.start_time is not None
    assert span.end_time is not None
    instants = {event.name: event.timestamp for event in span.events} | {"end": span.end_time}
    return {name: round((at - span.start_time) / 1e9, 6) for name, at in instants.items()}


# --- what a span tells -----------------------------------------------------------------------------------------------


def test_a_generation_is_a_span_with_its_true_times(sdk: Sdk) -> None:
    with Simulation(model=MODEL, limits=b.Limits(running_max=1)) as sim, sdk.instrument(sim.pipeline):
        first = sim.pipeline.submit("hello", max_new_tokens=4)
        second = sim.pipeline.submit([7, 8], max_new_tokens=3, owner="me", label="a job", priority=-1)
        answers = [first.result(), second.result()]
        spans = sdk.spans(sim)
    for span, answer in zip(spans, answers, strict=True):
        assert answer.first_token_s is not None
        assert seconds(span) == pytest.approx(
            {
                "boundedgen.queued": 0.0,
                "boundedgen.prefill": answer.queued_s,
                "boundedgen.decode": answer.first_token_s,
                "end": answer.total_s,
            }
        )
        assert span.kind is SpanKind.CLIENT
        assert span.status.status_code is StatusCode.UNSET
        assert span.parent is None
        assert span.name == "text_completion"
    assert answers[1].queued_s == pytest.approx(answers[0].total_s, abs=0.6), "the second one has waited"
    assert about(spans[1]) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "openvino",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": answers[1].first_token_s,
        "boundedgen.pipeline": "pipeline",
        "boundedgen.id": second.id,
        "boundedgen.owner": "me",
        "boundedgen.label": "a job",
        "boundedgen.priority": -1,
        "boundedgen.prompt": "tokens",
        "boundedgen.ending": "length",
        "boundedgen.incarnations": (1,),
        "boundedgen.resumed": 0,
    }


def test_what_was_asked_of_the_sampler_is_told_by_the_conventions_and_chats_are_chats(sdk: Sdk) -> None:
    asked = {"do_sample": True, "temperature": 0.5, "top_k": 7, "top_p": 0.5, "rng_seed": 3, "num_return_sequences": 2}
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline, name="the lane"):
        sim.pipeline.generate([{"role": "user", "content": "hello"}], max_new_tokens=2, **asked)
        sim.pipeline.generate("hello", max_new_tokens=2, rng_seed=3)
        sampled, greedy = map(about, sdk.spans(sim))
    assert sampled["gen_ai.operation.name"] == "chat"
    assert sampled["boundedgen.prompt"] == "chat"
    assert sampled["boundedgen.pipeline"] == "the lane"
    assert sampled["gen_ai.request.temperature"] == 0.5
    assert sampled["gen_ai.request.top_k"] == 7.0
    assert isinstance(sampled["gen_ai.request.top_k"], float)
    assert sampled["gen_ai.request.seed"] == 3
    assert sampled["gen_ai.request.choice.count"] == 2
    assert sampled["gen_ai.response.finish_reasons"] == ("length", "length")
    assert sampled["gen_ai.usage.output_tokens"] == 4, "of both"
    assert "gen_ai.response.time_to_first_chunk" not in sampled, "it shows nothing until the end"
    assert "gen_ai.request.seed" not in greedy
    assert greedy["boundedgen.prompt"] == "text"


def test_every_name_of_the_conventions_is_one_of_them(sdk: Sdk) -> None:
    """As opentelemetry-semantic-conventions has them, but for what is newer than its latest release."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
    from opentelemetry.semconv.attributes import error_attributes

    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        sim.pipeline.generate("hello", max_new_tokens=3, do_sample=True, num_return_sequences=2)
        sim.pipeline.generate("hello", max_new_tokens=3)
        sim.pipeline.submit("hello", max_new_tokens=9).cancel()
        names = {name for span in sdk.spans(sim) for name in about(span)}
        metrics = sdk.metrics()
    names |= {name for points in metrics.values() for point in points for name in point.attributes}
    foreign = {name for name in (*names, *metrics) if name.startswith(("gen_ai.", "error.")) and name not in known}
    assert foreign <= {"gen_ai.response.time_to_first_chunk"}
    assert {name for name in metrics if name.startswith("gen_ai.")} == {
        "gen_ai.client.token.usage",
        "gen_ai.server.request.duration",
        "gen_ai.server.time_per_output_token",
        "gen_ai.server.time_to_first_token",
    }


# --- one for each ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ENDS)
def test_every_end_is_one_span_and_its_failure_the_span_s(reason: b.FinishReason, sdk: Sdk) -> None:
    act, faults = ENDS[reason]
    model = SimModel(natural_length=lambda _: 20 if reason is b.FinishReason.STOP else None)
    restart = b.RestartPolicy(wait=tenacity.wait_none(), resume="continue")
    limits = evolve(LIMITS, unread=2, lease_grace=0)
    with Simulation(model=model, limits=limits, faults=faults, restart=restart) as sim, sdk.instrument(sim.pipeline):
        ended = act(sim)
        sim.advance(5)
        del ended
        (span,) = sdk.spans(sim)
        metrics = sdk.metrics()
    assert about(span)["boundedgen.ending"] == reason.value
    assert ("gen_ai.response.finish_reasons" in about(span)) is reason.normal
    assert span.status.is_ok is reason.normal
    assert about(span).get("error.type") == (None if reason.normal else ERROR_OF[reason].__name__)
    assert about(span).get("boundedgen.bound") == ("total" if reason is b.FinishReason.DEADLINE else None)
    (took,) = metrics["gen_ai.server.request.duration"]
    assert took.count == 1
    assert took.attributes.get("error.type") == about(span).get("error.type")
    assert ("gen_ai.server.time_to_first_token" in metrics) is reason.normal


def test_the_status_of_a_failure_is_in_our_words_and_quotes_nobody(sdk: Sdk) -> None:
    faults = [Fault(kind="refuse", text="a secret grammar")]
    with Simulation(model=MODEL, faults=faults) as sim, sdk.instrument(sim.pipeline):
        refused = sim.pipeline.submit("hello")
        sim.advance(1)
        late = sim.pipeline.submit("hello", bounds=b.Bounds(total=3), max_new_tokens=500)
        sim.advance(4)
        spans = {about(span)["boundedgen.id"]: span for span in sdk.spans(sim)}
    assert spans[refused.id].status.description == "rejected"
    assert spans[late.id].status.description == "reached its bound 'total'"


def test_a_handle_that_is_dropped_and_one_whose_pipeline_is_closed_have_theirs(sdk: Sdk) -> None:
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        sim.pipeline.submit("hello", max_new_tokens=500)
        sim.advance(5)
        inside = sim.pipeline.submit("hello", max_new_tokens=500)
        sim.pipeline.close()
        assert [about(span)["boundedgen.ending"] for span in sdk.spans(sim)] == ["cancelled", "shutdown"]
        del inside


def test_what_the_next_engine_goes_on_with_is_one_span_that_names_both(sdk: Sdk) -> None:
    faults = {1: [Fault(kind="crash", at_step=3)]}
    with Simulation(model=MODEL, restart=CONTINUE, faults=faults) as sim, sdk.instrument(sim.pipeline):
        answer = sim.pipeline.generate("hello", max_new_tokens=6)
        (span,) = sdk.spans(sim)
    assert answer.resumed == 1
    assert about(span)["boundedgen.incarnations"] == (1, 2)
    assert about(span)["boundedgen.resumed"] == 1
    assert seconds(span)["end"] == pytest.approx(answer.total_s)


def test_all_of_many_are_spans_and_a_probe_and_what_is_refused_are_none(
    sdk: Sdk, caplog: pytest.LogCaptureFixture
) -> None:
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        with sdk.tracer.start_as_current_span("request") as server:
            sim.pipeline.generate_many(["hello", "you", "there"], max_new_tokens=2)
        assert sim.pipeline.probe().ok
        with pytest.raises(b.InvalidRequest):
            sim.pipeline.submit([])
        with pytest.raises(b.InvalidRequest):
            sim.pipeline.generate_many(["hello", []])
        sim.advance(10)
        spans = sdk.spans(sim)
    assert len(spans) == 3
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "nor has a follower failed"
    assert {span.parent.span_id for span in spans if span.parent} == {server.get_span_context().span_id}


# --- its parent ------------------------------------------------------------------------------------------------------


def parents(sdk: Sdk, *, inside: bool, traceparent: str | None) -> tuple[ReadableSpan, int]:
    """The span, and the id of the server's."""
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        with sdk.tracer.start_as_current_span("request") as server:
            within = trace.use_span(trace.INVALID_SPAN) if not inside else trace.use_span(server)
            with within:
                generation = sim.pipeline.submit("hello", max_new_tokens=2, traceparent=traceparent)
        generation.result()
        (span,) = sdk.spans(sim)
    return span, server.get_span_context().span_id


def test_the_parent_is_what_is_current_at_submit(sdk: Sdk) -> None:
    span, server = parents(sdk, inside=True, traceparent=None)
    assert span.parent is not None
    assert span.parent.span_id == server


@pytest.mark.parametrize("inside", [True, False])
def test_a_traceparent_comes_before_what_is_current(sdk: Sdk, inside: bool) -> None:
    span, _ = parents(sdk, inside=inside, traceparent=TRACEPARENT)
    assert span.parent is not None
    assert span.parent.is_remote
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize(
    "traceparent",
    ["", "x", TRACEPARENT.upper(), f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", TRACEPARENT * 50],
    ids=["empty", "short", "upper", "version", "zero", "long"],
)
def test_a_malformed_traceparent_is_as_if_there_were_none(sdk: Sdk, traceparent: str) -> None:
    span, server = parents(sdk, inside=True, traceparent=traceparent)
    assert span.parent is not None
    assert span.parent.span_id == server
    sdk.exporter.clear()
    span, _ = parents(sdk, inside=False, traceparent=traceparent)
    assert span.parent is None, "a new trace"


def test_what_is_no_str_is_refused_by_name_whoever_listens() -> None:
    with Simulation(model=MODEL) as sim, pytest.raises(b.InvalidRequest, match="traceparent must be a str, not bytes"):
        sim.pipeline.submit("hello", traceparent=TRACEPARENT.encode())  # type: ignore[arg-type]


def test_in_asyncio_each_task_has_its_own_parent(sdk: Sdk) -> None:
    async def request(sim: Simulation, number: int) -> int:
        with sdk.tracer.start_as_current_span(f"request {number}") as server:
            await sim.pipeline.agenerate("hello", max_new_tokens=2 + number, label=str(number))
            return server.get_span_context().span_id

    async def main(sim: Simulation) -> list[int]:
        return await asyncio.gather(*(request(sim, number) for number in range(4)))

    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        servers = sim.run(main(sim))
        found = {int(about(span)["boundedgen.label"]): span.parent for span in sdk.spans(sim)}
    assert [found[number].span_id for number in range(4)] == servers  # type: ignore[union-attr]


# --- what it does not tell -------------------------------------------------------------------------------------------


def test_no_text_of_a_prompt_or_of_an_answer_is_in_any_span_or_metric(sdk: Sdk) -> None:
    secret = "zyxwv"
    chat = [{"role": "user", "content": secret}]
    tools = [{"type": "function", "function": {"name": secret}}]
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        lease = sim.pipeline.lease("me", ttl=600)
        answers = [
            sim.pipeline.generate(secret, max_new_tokens=30, stop_strings=[secret], lease=lease),
            sim.pipeline.generate(chat, max_new_tokens=30, tools=tools, template_context={"who": secret}),
            sim.pipeline.generate([ord(letter) + 3 for letter in secret], max_new_tokens=30),
            sim.pipeline.generate("x", max_new_tokens=30, structured_output_config={"regex": secret}),
        ]
        with pytest.raises(b.GenerationError):
            sim.pipeline.generate(secret, max_new_tokens=500, bounds=b.Bounds(total=2))
        told = "".join(span.to_json() for span in sdk.spans(sim))
        data = sdk.reader.get_metrics_data()
        told += "" if data is None else data.to_json()
    assert len(sdk.spans()) == 5
    for answer in answers:
        words = json.dumps(answer.text)[1:-1]
        assert len(words) > 20
        assert words[:10] not in told
    for unsaid in (secret, lease.id, "stop_sequences", "input.messages", "tool.definitions"):
        assert unsaid not in told


# --- attaching and closing -------------------------------------------------------------------------------------------


def test_after_close_nothing_is_told_and_another_may_follow(sdk: Sdk) -> None:
    with Simulation(model=MODEL) as sim:
        telling = sdk.instrument(sim.pipeline)
        with pytest.raises(RuntimeError, match="already"):
            sdk.instrument(sim.pipeline, name="another")
        before = sim.pipeline.submit("hello", max_new_tokens=3)
        telling.close()
        telling.close()
        before.result()
        sim.pipeline.generate("hello", max_new_tokens=3)
        assert sdk.spans(sim) == []
        with sdk.instrument(sim.pipeline):
            sim.pipeline.generate("hello", max_new_tokens=3)
            assert len(sdk.spans(sim)) == 1
            (waiting,) = sdk.metrics()["boundedgen.waiting_sequences"]
            assert waiting.value == 0


def test_two_pipelines_need_two_names_and_an_ended_one_leaves_its_own(sdk: Sdk) -> None:
    with Simulation(model=MODEL) as one, Simulation(model=MODEL) as two:
        sdk.instrument(one.pipeline)
        with pytest.raises(ValueError, match="'pipeline' already"):
            sdk.instrument(two.pipeline)
        sdk.instrument(two.pipeline, name="two")
        two.pipeline.generate("hello", max_new_tokens=3)
        points = sdk.metrics()["boundedgen.submitted"]
        assert {point.attributes["pipeline"]: point.value for point in points} == {"pipeline": 0, "two": 1}
        one.pipeline.close()
        with Simulation(model=MODEL) as three:
            sdk.instrument(three.pipeline)
            assert len(sdk.metrics()["boundedgen.submitted"]) == 2


@pytest.mark.parametrize("name", ["", 7, "x" * 300])
def test_a_name_that_is_none_is_refused(name: Any, sdk: Sdk) -> None:
    with Simulation(model=MODEL) as sim, pytest.raises(ValueError, match="name must be a str"):
        sdk.instrument(sim.pipeline, name=name)


def test_only_a_pipeline_can_be_instrumented() -> None:
    with pytest.raises(TypeError, match="pipeline must be a BoundedPipeline, not SimpleNamespace"):
        instrument(SimpleNamespace())  # type: ignore[arg-type]


def test_a_sampler_or_a_processor_that_raises_harms_no_generation(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a sampler")

    monkeypatch.setattr(sdk.tracers.sampler, "should_sample", broken, raising=False)
    with Simulation(model=MODEL) as sim, sdk.instrument(sim.pipeline):
        assert sim.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3
        assert sdk.spans(sim) == []
        (duration,) = sdk.metrics()["gen_ai.server.request.duration"]
        assert duration.count == 1
    assert re.search("work beside the driver failed.*a sampler", caplog.text, re.DOTALL)
