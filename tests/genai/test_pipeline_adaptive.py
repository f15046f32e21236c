"""Admission "adaptive" on the real engine: long limits, short answers, a small cache, many at once."""

from typing import Any

import pytest
from genai.lanes import HYBRID, PLAIN, at_rest, ids, lane

import boundedgen as bg

CALLS, LIMIT = 36, 150
SMALL = {"num_kv_blocks": 16, "max_num_seqs": 24}  #: of 32 tokens; two or three worst cases
STOPS = list(range(3, 259, 12))  #: token ids that end an answer soon
Answer = tuple[tuple[int, ...], str]


def ends(seed: int) -> dict[str, Any]:
    """Short, as all of the first are; now and then one that goes on to the limit."""
    return {"ignore_eos": True} if seed > 20 and seed % 3 == 0 else {"stop_token_ids": STOPS}


def answers(policy: str, model: str = PLAIN, **config: Any) -> tuple[list[Answer], bg.SchedulerStats]:
    limits = bg.Limits(running_max=24, waiting_max=1024)
    admission = bg.Admission(policy=policy, covered=0.5)
    with lane(model, SMALL, limits=limits, admission=admission) as pipeline:
        held = [
            pipeline.submit(ids(5 + seed % 60, seed), max_new_tokens=LIMIT, **ends(seed), **config)
            for seed in range(CALLS)
        ]
        done = [generation.result(timeout=60) for generation in held]
        stats = at_rest(pipeline)
        said = [(completion.token_ids, str(completion.finish_reason)) for completion in done]
        return said, stats


def never_full(stats: bg.SchedulerStats) -> bool:
    """Not a single time was the last block in use, the probe's: the engine had nothing to make room for."""
    assert stats.cache_usage_max is not None
    smallest = min(pool.blocks_total + 1 for pool in stats.pools)
    return stats.cache_usage_max <= 1 - 1 / smallest + 1e-6 and stats.requeued_total == 0


@pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_all_answers_are_those_of_reserve_and_the_engine_never_has_to_make_room(model: str) -> None:
    reserved, _ = answers("reserve", model)
    adaptive, stats = answers("adaptive", model)
    assert adaptive == reserved
    assert {"stop", "length"} == {reason for _, reason in reserved}
    assert stats.paused_total > 0
    assert never_full(stats)


def test_stop_strings_that_hide_tokens_and_streams_that_are_paused() -> None:
    reserved, _ = answers("reserve", stop_strings=["zz", "#"])
    adaptive, stats = answers("adaptive", stop_strings=["zz", "#"])
    assert adaptive == reserved
    assert stats.paused_total > 0
    assert never_full(stats)


def test_what_samples_goes_on_validly() -> None:
    said, stats = answers("adaptive", do_sample=True, temperature=1.5)
    assert stats.paused_total > 0
    assert never_full(stats)
    for seed, (token_ids, reason) in enumerate(said):
        stops = [token in STOPS for token in token_ids]
        assert (reason == "length") is (len(token_ids) == LIMIT)
        assert "ignore_eos" in ends(seed) or not any(stops[:-1])
