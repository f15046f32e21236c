"""Generations that outlive their engine: the real one, killed at random instants, in f32."""

from __future__ import annotations

import random
import signal
from functools import partial
from typing import Any

import pytest
from attrs import evolve
from process.lanes import AT_ONCE, MODELS, at_rest, engine_pid, kill, until

from boundedgen import BoundedPipeline, Bounds, EngineLost, FinishReason, Generation, RestartPolicy

pytestmark = pytest.mark.timeout(170)

TOKENS = 400
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
PROMPTS = ([5, 6, 7], [40, 41, 42, 43, 44], list(range(30, 90)))
FOR_EVER = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False, resume="continue")


def lane(model: str = "plain", restart: RestartPolicy = FOR_EVER) -> BoundedPipeline:
    return BoundedPipeline(MODELS / model, {"num_kv_blocks": 256}, "CPU", EXACT, restart=restart)


@pytest.mark.parametrize(("model", "times"), [("plain", 20), ("hybrid", 6)])
def test_a_greedy_stream_that_was_cut_and_continued_is_the_uninterrupted_one(model: str, times: int) -> None:
    draw = random.Random(20261130)
    with lane(model) as pipeline:
        whole = [pipeline.generate(p, max_new_tokens=TOKENS, ignore_eos=True) for p in PROMPTS]
        equal = 0
        for _ in range(times):
            which, at = draw.randrange(len(PROMPTS)), draw.randrange(1, TOKENS - 40)
            generation = pipeline.submit(PROMPTS[which], max_new_tokens=TOKENS, ignore_eos=True)
            text = ""
            ids: list[int] = []
            for chunk in generation:
                text, ids = text + chunk.text, [*ids, *chunk.token_ids]
                if len(ids) >= at:
                    at = TOKENS + 1
                    kill(engine_pid(pipeline))
            found, wanted = generation.result(), whole[which]
            assert found.resumed == 1
            assert text == found.text
            assert tuple(ids) == found.token_ids
            assert (found.finish_reason, found.prompt_tokens) == (FinishReason.LENGTH, len(PROMPTS[which]))
            equal += (found.text, found.token_ids) == (wanted.text, wanted.token_ids)
        assert equal == times
        stats = pipeline.stats()
        assert (stats.restarts_total, stats.resumed_total, stats.quarantined_total) == (times, times, 0)
        assert stats.finished_total["length"] == times + len(PROMPTS)
        at_rest(pipeline)


def _shows(generation: Generation, tokens: int) -> bool:
    return len(generation.partial.token_ids) >= tokens


def test_with_stop_strings_and_a_repetition_penalty_it_ends_where_the_uninterrupted_one_does() -> None:
    draw = random.Random(20261201)
    with lane() as pipeline:
        for length, include, penalty in ((1, False, 1.0), (5, True, 1.3)):
            fields: dict[str, Any] = {"max_new_tokens": TOKENS, "repetition_penalty": penalty, "ignore_eos": True}
            plain = pipeline.generate(PROMPTS[0], **fields).text
            stop = next(s for at in range(150, 400) if plain.find(s := plain[at : at + length]) == at)
            fields |= {"stop_strings": [stop, "~ZQ~"], "include_stop_str_in_output": include}
            whole = pipeline.generate(PROMPTS[0], **fields)
            assert whole.text == plain[: plain.index(stop) + (len(stop) if include else 0)]
            at = draw.randrange(1, whole.completion_tokens - 40)
            generation = pipeline.submit(PROMPTS[0], **fields)
            until(partial(_shows, generation, at))
            kill(engine_pid(pipeline))
            found = generation.result(60)
            assert (found.resumed, found.finish_reason) == (1, FinishReason.STOP)
            assert (found.text, found.token_ids) == (whole.text, whole.token_ids)
        at_rest(pipeline)


def test_who_showed_nothing_starts_anew_and_who_cannot_be_continued_is_lost() -> None:
    with lane() as pipeline:
        beams = pipeline.submit([5, 6], max_new_tokens=300, num_beams=2, num_return_sequences=2, ignore_eos=True)
        punished = pipeline.submit([5, 7], max_new_tokens=6_000, presence_penalty=0.5, ignore_eos=True)
        sampled = pipeline.submit([5, 8], max_new_tokens=300, do_sample=True, rng_seed=7, ignore_eos=True)
        until(lambda: bool(punished.partial.token_ids and sampled.partial.token_ids) and beams.phase == "running")
        kill(engine_pid(pipeline))
        with pytest.raises(EngineLost) as caught:
            punished.result(60)
        assert caught.value.partial is not None
        assert caught.value.partial.token_ids
        assert [len(a.token_ids) for a in beams.result(60).alternatives] == [300]
        found = sampled.result(60)
        assert (found.resumed, found.completion_tokens, found.seed) == (1, 300, 7)


def test_it_is_answered_at_its_deadline_while_no_engine_is_there() -> None:
    slowly = evolve(FOR_EVER, wait=lambda state: 60.0)
    with lane(restart=slowly) as pipeline:
        generation = pipeline.submit([5, 6], max_new_tokens=6_000, bounds=Bounds(total=2), ignore_eos=True)
        until(lambda: len(generation.partial.token_ids) > 3)
        kill(engine_pid(pipeline), signal.SIGKILL)
        until(lambda: generation.phase == "waiting")
        until(lambda: generation.finish_reason is not None, 5)
        assert generation.finish_reason is FinishReason.DEADLINE
        assert generation.partial.token_ids
        assert generation.wait_reclaimed(5).proof == "died"


def test_without_it_those_inside_are_lost() -> None:
    with lane(restart=AT_ONCE) as pipeline:
        generation = pipeline.submit([5, 6], max_new_tokens=6_000, ignore_eos=True)
        until(lambda: bool(generation.partial.token_ids))
        kill(engine_pid(pipeline))
        with pytest.raises(EngineLost):
            generation.result(30)
