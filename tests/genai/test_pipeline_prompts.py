"""What a caller may pass, through a whole pipeline: prompts of every kind, configurations of every kind."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from genai.lanes import F32, FULL, PLAIN, ids, lane, nothing_left_behind
from genai.raw import laboratory

import boundedgen as bg

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def pipeline() -> Iterator[bg.BoundedPipeline]:
    with lane(limits=bg.Limits(running_max=4, max_new_tokens=100, max_new_tokens_default=20)) as opened:
        yield opened


def raw_greedy(prompts: list[list[int]], new: int) -> list[list[int]]:
    """In a process of its own: the engine's own tokens, all prompts at once."""
    from genai import raw

    pipe = raw.pipeline(PLAIN, num_kv_blocks=64)
    return raw.finish(pipe, *(raw.add(pipe, i, prompt, new) for i, prompt in enumerate(prompts)))


def test_greedy_tokens_equal_the_raw_engines() -> None:
    prompts = [ids(length, seed=length) for length in (1, 7, 31, 32, 33, 100, 300)]
    with laboratory() as lab:
        expected = lab.run(raw_greedy, prompts, 60)
    with lane() as fresh:
        completions = fresh.generate_many(prompts, max_new_tokens=60, **FULL)
        assert [list(completion.token_ids) for completion in completions] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)


def test_every_way_to_write_token_ids_is_the_same_prompt(pipeline: bg.BoundedPipeline) -> None:
    prompt = ids(12)
    forms: list[Any] = [prompt, tuple(prompt), np.array(prompt), np.array(prompt, dtype=np.int32), np.array([prompt])]
    outputs = {pipeline.generate(form, max_new_tokens=10, **FULL).token_ids for form in forms}
    assert len(outputs) == 1


@pytest.mark.parametrize("prompt", [[], [259], [-1], [1.5], np.zeros((2, 3), dtype=int), np.zeros(3), 7, None, [True]])
def test_a_prompt_that_the_engine_would_take_for_garbage_is_refused(
    pipeline: bg.BoundedPipeline, prompt: object
) -> None:
    submitted, steps = pipeline.stats().submitted_total, pipeline.stats().steps_total
    with pytest.raises(bg.InvalidRequest, match="prompt"):
        pipeline.submit(prompt)
    assert (pipeline.stats().submitted_total, pipeline.stats().steps_total) == (submitted, steps)


def test_a_str_goes_in_as_it_is_and_messages_go_through_the_template(pipeline: bg.BoundedPipeline) -> None:
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    as_is = pipeline.generate("hello", max_new_tokens=10, **FULL)
    messages = pipeline.generate([{"role": "user", "content": "hello"}], max_new_tokens=10, **FULL)
    wrapped = pipeline.generate("hello", max_new_tokens=10, apply_chat_template=True, **FULL)
    by_hand = pipeline.generate(rendered, max_new_tokens=10, **FULL)
    history = pipeline.generate(genai.ChatHistory([{"role": "user", "content": "hello"}]), max_new_tokens=10, **FULL)
    assert as_is.prompt_tokens == 5
    assert messages.prompt_tokens == wrapped.prompt_tokens == by_hand.prompt_tokens == history.prompt_tokens > 20
    assert messages.token_ids == wrapped.token_ids == by_hand.token_ids == history.token_ids
    assert messages.token_ids != as_is.token_ids


def test_tools_reach_the_template_and_are_refused_where_there_is_none(pipeline: bg.BoundedPipeline) -> None:
    messages = [{"role": "user", "content": "what time is it?"}]
    assert pipeline.generate(messages, tools=TOOLS, max_new_tokens=3, **FULL).completion_tokens == 3
    with pytest.raises(bg.InvalidRequest, match="tools"):
        pipeline.submit("what time is it?", tools=TOOLS)


@pytest.mark.parametrize(
    ("given", "length"),
    [({}, 20), ({"max_new_tokens": 7}, 7), ({"max_new_tokens": 5000}, 100), ({"max_length": 25}, 13)],
)
def test_field_report_80_every_generation_has_a_length(
    pipeline: bg.BoundedPipeline, given: dict[str, Any], length: int
) -> None:
    generation = pipeline.submit(ids(12), **given, **FULL)
    assert generation.max_new_tokens == length
    assert generation.bounds.total == 600, "and a time to end"
    completion = generation.result()
    assert completion.completion_tokens == length
    assert completion.finish_reason is bg.FinishReason.LENGTH


def test_a_max_length_that_the_prompt_uses_up_is_refused(pipeline: bg.BoundedPipeline) -> None:
    with pytest.raises(bg.InvalidRequest, match="max_length"):
        pipeline.submit(ids(12), max_length=12)


def test_objects_and_mappings_of_a_configuration_mean_the_same(pipeline: bg.BoundedPipeline) -> None:
    config = genai.GenerationConfig()
    config.max_new_tokens = 9
    config.ignore_eos = True
    config.repetition_penalty = 1.5
    by_object = pipeline.generate(ids(12), config)
    by_mapping = pipeline.generate(ids(12), {"max_new_tokens": 9, "ignore_eos": True, "repetition_penalty": 1.5})
    by_keyword = pipeline.generate(ids(12), {"ignore_eos": True, "repetition_penalty": 1.5}, max_new_tokens=9)
    assert by_object.token_ids == by_mapping.token_ids == by_keyword.token_ids
    assert by_object.completion_tokens == 9


def test_a_scheduler_config_object_is_taken_over_as_it_is(nothing_left_behind: None) -> None:
    config = genai.SchedulerConfig()
    config.num_kv_blocks = 20
    config.cache_size = 0
    config.max_num_seqs = 3
    with bg.BoundedPipeline(PLAIN, config, "CPU", F32) as pipeline:
        assert pipeline.stats().blocks_total == 20
        assert pipeline.generate("hello", max_new_tokens=2, ignore_eos=True).completion_tokens == 2
        with pytest.raises(bg.NeverFits):
            pipeline.submit(ids(640), max_new_tokens=2)


def test_generate_many_answers_in_order(pipeline: bg.BoundedPipeline) -> None:
    prompts = [ids(5, seed) for seed in range(10)]
    many = pipeline.generate_many(prompts, max_new_tokens=8, **FULL)
    assert [c.token_ids for c in many] == [pipeline.generate(p, max_new_tokens=8, **FULL).token_ids for p in prompts]


def test_generate_many_submits_all_or_none(pipeline: bg.BoundedPipeline) -> None:
    before = pipeline.stats()
    with pytest.raises(bg.InvalidRequest, match="999"):
        pipeline.generate_many([ids(5), ids(6), [999], ids(7)], max_new_tokens=8)
    after = pipeline.stats()
    assert (after.submitted_total, after.steps_total) == (before.submitted_total, before.steps_total)
    assert pipeline.generate_many([ids(5)] * 4, max_new_tokens=2, **FULL)[3].completion_tokens == 2


def test_generate_many_can_put_errors_in_their_places(pipeline: bg.BoundedPipeline) -> None:
    grammars: list[Any] = ["[ab]", "(unclosed"]
    good, bad = (
        pipeline.generate_many(["x"], structured_output_config={"regex": regex}, return_errors=True)[0]
        for regex in grammars
    )
    assert isinstance(good, bg.Completion)
    assert good.text in ("a", "b")
    assert isinstance(bad, bg.InvalidRequest)


def test_unknown_settings_are_refused_by_name(pipeline: bg.BoundedPipeline) -> None:
    with pytest.raises(bg.InvalidRequest, match=r"max_tokens.*max_new_tokens"):
        pipeline.submit("x", max_tokens=5)
    for name, value in (("temperature", float("nan")), ("top_p", 2.0), ("num_beams", 0), ("rng_seed", -1)):
        with pytest.raises(bg.InvalidRequest, match=name):
            pipeline.submit("x", {"do_sample": True, name: value})


def test_pipelines_one_after_another_leave_not_even_a_file_of_the_model_open() -> None:
    with nothing_left_behind():
        for _ in range(3):
            with bg.BoundedPipeline(PLAIN, {"num_kv_blocks": 8}, "CPU", F32) as pipeline:
                assert pipeline.generate("hello", max_new_tokens=2, ignore_eos=True).text is not None
            del pipeline
