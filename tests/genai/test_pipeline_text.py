"""Text through a whole pipeline: what streams, what is withheld, what stands on errors."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import pytest
from counts import happened
from genai.lanes import FULL, ids, lane, until

import boundedgen as bg


@pytest.fixture(scope="module")
def pipeline() -> Iterator[bg.BoundedPipeline]:
    with lane() as opened:
        yield opened


def test_characters_that_span_tokens_arrive_whole_and_once(pipeline: bg.BoundedPipeline) -> None:
    grammar = {"regex": "[😀-🙏]{4}é中文[नी]{2}👩‍🔬x"}
    generation = pipeline.submit("say", max_new_tokens=100, structured_output_config=grammar)
    chunks = list(generation)
    text = generation.result().text
    assert "".join(chunk.text for chunk in chunks) == text
    assert text[4:7] == "é中文"
    assert text.endswith("👩‍🔬x")
    assert len(text) == 13
    assert "\ufffd" not in text
    assert generation.result().completion_tokens > 2 * len(text), "no character spans tokens"


def test_random_bytes_stream_as_they_decode_in_one_piece(pipeline: bg.BoundedPipeline) -> None:
    for seed in range(5):
        generation = pipeline.submit(ids(20, seed), max_new_tokens=150, **FULL)
        chunks = list(generation)
        completion = generation.result()
        assert "".join(chunk.text for chunk in chunks) == completion.text
        assert tuple(itertools.chain(*(chunk.token_ids for chunk in chunks))) == completion.token_ids
        assert len(completion.token_ids) == completion.completion_tokens == 150


def test_the_text_of_a_completion_does_not_depend_on_whether_it_was_streamed(pipeline: bg.BoundedPipeline) -> None:
    streamed = pipeline.submit(ids(20), max_new_tokens=80, **FULL)
    stream = iter(streamed)  # held: losing it would cancel
    assert next(stream).token_ids
    assert streamed.result().text == pipeline.generate(ids(20), max_new_tokens=80, **FULL).text


def _ascii_run(text: str, length: int) -> str:
    """A piece of `text` that stands in it once, away from its start."""
    for at in range(5, len(text) - length - 5):
        piece = text[at : at + length]
        if piece.isascii() and piece.isprintable() and text.find(piece) == at:
            return piece
    raise AssertionError("no printable run in this text")


def _text_with_a_run(pipeline: bg.BoundedPipeline, length: int = 3) -> tuple[list[int], str, str]:
    for seed in range(30):
        whole = pipeline.generate(ids(10, seed), max_new_tokens=80, **FULL).text
        try:
            return ids(10, seed), whole, _ascii_run(whole, length)
        except AssertionError:
            continue
    raise AssertionError("no prompt leads to a printable run")


@pytest.mark.parametrize("include", [False, True], ids=["withheld", "included"])
def test_field_report_72_a_stop_string_that_spans_tokens_ends_the_text_exactly(
    pipeline: bg.BoundedPipeline, include: bool
) -> None:
    prompt, whole, stop = _text_with_a_run(pipeline)
    generation = pipeline.submit(
        prompt, max_new_tokens=80, stop_strings={stop, "never in it"}, include_stop_str_in_output=include, **FULL
    )
    streamed = "".join(chunk.text for chunk in generation)
    completion = generation.result()
    assert completion.finish_reason is bg.FinishReason.STOP
    assert completion.text == streamed == whole[: whole.index(stop) + (len(stop) if include else 0)]


def test_a_stop_string_that_is_the_very_first_token_is_an_answer_that_reads_empty(pipeline: bg.BoundedPipeline) -> None:
    """Which is another thing than an answer without a token: that is the engine's error."""
    firsts = ((seed, pipeline.generate(ids(10, seed), max_new_tokens=1, **FULL).text) for seed in range(40))
    seed, first = next((seed, text) for seed, text in firsts if text.isascii() and text.isprintable() and text.strip())
    completion = pipeline.generate(ids(10, seed), max_new_tokens=20, stop_strings=[first], **FULL)
    assert (completion.finish_reason, completion.text) == (bg.FinishReason.STOP, "")
    assert completion.completion_tokens == 1


def test_field_report_72_the_start_of_a_stop_string_that_is_never_completed_is_flushed_once(
    pipeline: bg.BoundedPipeline,
) -> None:
    whole = pipeline.generate(ids(10), max_new_tokens=40, **FULL).text
    generation = pipeline.submit(ids(10), max_new_tokens=40, stop_strings=[whole[-3:] + "and more"], **FULL)
    assert "".join(chunk.text for chunk in generation) == whole
    assert generation.result().finish_reason is bg.FinishReason.LENGTH


@pytest.mark.parametrize("stops", [None, ["never in it at all"]], ids=["plain", "with stop strings"])
def test_a_cut_generation_keeps_its_text_on_the_error_and_in_the_stream(
    pipeline: bg.BoundedPipeline, stops: list[str] | None
) -> None:
    generation = pipeline.submit(ids(10), max_new_tokens=1900, stop_strings=stops, **FULL)
    stream = iter(generation)
    chunks = [next(stream)]
    generation.tighten(bg.Bounds(next_token=0))  # however fast the machine is: 1,900 tokens can take half a second
    with pytest.raises(bg.DeadlineExceeded) as caught:
        chunks.extend(stream)
    partial = caught.value.partial
    assert partial is not None
    assert partial.finish_reason is bg.FinishReason.DEADLINE
    assert partial.token_ids
    assert partial.text == "".join(chunk.text for chunk in chunks)
    with pytest.raises(bg.DeadlineExceeded) as again:
        generation.result()
    assert again.value is not caught.value
    assert again.value.partial == partial


def test_a_cancelled_generation_raises_and_keeps_what_there_was(pipeline: bg.BoundedPipeline) -> None:
    generation = pipeline.submit(ids(10), max_new_tokens=1900, label="mine", **FULL)
    stream = iter(generation)
    first = next(stream)
    assert generation.cancel()
    rest: list[bg.Chunk] = []
    with pytest.raises(bg.GenerationCancelled) as caught:
        rest.extend(stream)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "".join(chunk.text for chunk in (first, *rest))
    assert caught.value.generation_id == generation.id
    assert not generation.cancel()
    assert generation.wait_reclaimed(5).steps <= 2


def test_beams_give_the_best_first_and_exactly_the_others_asked_for(pipeline: bg.BoundedPipeline) -> None:
    completion = pipeline.generate(ids(10), max_new_tokens=12, num_beams=4, num_return_sequences=3, **FULL)
    assert len(completion.alternatives) == 2
    scores = [completion.score, *(other.score for other in completion.alternatives)]
    assert all(score is not None for score in scores)
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    outputs = {completion.token_ids, *(other.token_ids for other in completion.alternatives)}
    assert len(outputs) == 3
    assert all(len(output) == 12 for output in outputs)


def test_beams_of_which_one_result_is_asked_have_no_alternatives(pipeline: bg.BoundedPipeline) -> None:
    completion = pipeline.generate(ids(10), max_new_tokens=12, num_beams=4, **FULL)
    assert completion.alternatives == ()
    assert completion.completion_tokens == 12


def test_several_samples_come_in_one_piece_at_the_end(pipeline: bg.BoundedPipeline) -> None:
    generation = pipeline.submit(ids(10), max_new_tokens=20, do_sample=True, num_return_sequences=3, **FULL)
    chunks = list(generation)
    completion = generation.result()
    assert len(chunks) == 1
    assert chunks[0].text == completion.text
    assert len(completion.alternatives) == 2
    assert len({completion.token_ids, *(other.token_ids for other in completion.alternatives)}) == 3


def test_a_request_of_several_sequences_refuses_bounds_that_it_cannot_keep(pipeline: bg.BoundedPipeline) -> None:
    with pytest.raises(bg.InvalidRequest, match="first_token"):
        pipeline.submit(ids(5), max_new_tokens=5, num_beams=2, bounds=bg.Bounds(first_token=1))


def test_log_probabilities_are_one_a_token_and_only_when_asked(pipeline: bg.BoundedPipeline) -> None:
    generation = pipeline.submit(ids(10), max_new_tokens=30, logprobs=1, **FULL)
    chunks = list(generation)
    completion = generation.result()
    assert len(completion.logprobs) == 30
    assert all(value <= 0.0 for value in completion.logprobs)
    assert any(value < 0.0 for value in completion.logprobs)
    assert tuple(itertools.chain(*(chunk.logprobs for chunk in chunks))) == completion.logprobs
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    assert pipeline.generate(ids(10), max_new_tokens=5, **FULL).logprobs == ()


def test_sampled_calls_without_a_seed_differ_and_the_seed_they_drew_repeats_them(pipeline: bg.BoundedPipeline) -> None:
    sampling = {"do_sample": True, "temperature": 1.2, "max_new_tokens": 30, **FULL}
    first, second = (pipeline.generate(ids(10), sampling) for _ in range(2))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    assert pipeline.generate(ids(10), sampling, rng_seed=first.seed).token_ids == first.token_ids
    assert pipeline.generate(ids(10), max_new_tokens=3, **FULL).seed is None


def test_a_good_grammar_is_kept_and_a_bad_one_ends_its_own_generation_only(pipeline: bg.BoundedPipeline) -> None:
    neighbour = pipeline.submit(ids(10), max_new_tokens=600, **FULL)
    steps = pipeline.stats().steps_total
    bad = [
        pipeline.submit("x", max_new_tokens=9, structured_output_config={kind: text})
        for kind, text in (("json_schema", '{"type": "nonsense"}'), ("regex", "(unclosed"), ("grammar", "root ::= ("))
    ]
    good = pipeline.submit("x", max_new_tokens=9, structured_output_config={"regex": "[a-c]{3}d"})
    for generation in bad:
        with pytest.raises(bg.InvalidRequest, match="does not compile"):
            generation.result(60)
        assert generation.finish_reason is bg.FinishReason.REJECTED
        assert generation.wait_reclaimed(1).proof == "never_held"
    text = good.result(60).text
    assert len(text) == 4
    assert text[3] == "d"
    assert set(text[:3]) <= set("abc")
    assert neighbour.result(60).token_ids == pipeline.generate(ids(10), max_new_tokens=600, **FULL).token_ids
    stats = until(pipeline, lambda s: s.steps_total > steps)
    assert (stats.restarts_total, happened(stats.kills_total)) == (0, {})


def test_text_work_never_waits_for_a_busy_engine() -> None:
    """With OpenVINO's default threads one call of the tokenizer in a hundred took seconds (docs/engine-facts.md)."""
    with lane(scheduler={"num_kv_blocks": 700}) as pipeline, contextlib.ExitStack() as stack:
        short = pipeline.submit(ids(20), max_new_tokens=2, **FULL)
        short.result()
        for seed in range(4):
            stack.enter_context(pipeline.submit(ids(20, seed), max_new_tokens=5000, **FULL))
        times = []
        for _ in range(300):
            began = time.monotonic()
            short._flow._new_text().feed(short.partial.token_ids)
            times.append(time.monotonic() - began)
            time.sleep(0.005)
        assert pipeline.stats().running == 4
    print(f"\nlongest decode beside a busy engine: {1000 * max(times):.1f} ms")
    assert max(times) < 1.0
