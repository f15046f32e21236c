"""A cache that is full, with reservation and without: field reports, on the real engine, by their number.

"reserve" is the high-water mark; with "adaptive" more are inside than fit at their longest, and some are paused; with
"engine" as many as may be are inside, and the engine takes blocks from one to give them to another.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from counts import happened
from genai.lanes import F32, FULL, PLAIN, at_rest, ids, lane, sampled
from genai.witness import Ticks

import boundedgen as bg
from boundedgen._text import GenAITokenizer

POLICIES = ["reserve", "adaptive", "engine"]
ENDINGS = list(range(3, 259, 12))  #: token ids that end an answer soon


@contextlib.contextmanager
def lane_of(policy: str, blocks: int, running_max: int = 16, **scheduler: Any) -> Iterator[bg.BoundedPipeline]:
    admission = bg.Admission(policy=policy, margin=None, covered=0.5)
    settings = {"num_kv_blocks": blocks, **scheduler}
    with lane(scheduler=settings, limits=bg.Limits(running_max=running_max), admission=admission) as pipeline:
        yield pipeline


@pytest.mark.slow
def test_field_report_2_random_traffic_in_a_cache_that_saturates_ends_in_order_and_leaves_nothing() -> None:
    """Half of it is stopped at a random step. Six seconds instead of 60: some hundreds of requests all the same."""
    ends: list[str] = []

    def client(seed: int, until_at: float, pipeline: bg.BoundedPipeline) -> None:
        rnd = random.Random(seed)
        while time.monotonic() < until_at:
            prompt, new = ids(rnd.randint(1, 90), rnd.randrange(1000)), rnd.randint(5, 200)
            with pipeline.submit(prompt, max_new_tokens=new, **FULL) as generation:
                last = rnd.randrange(new) if rnd.random() < 0.5 else new
                with contextlib.suppress(bg.CacheExhausted):
                    list(itertools.islice(generation, last))
                generation.cancel()
                generation.wait_reclaimed(30)
                ends.append(str(generation.finish_reason))

    with lane_of("engine", blocks=10) as pipeline, ThreadPoolExecutor(12) as clients:
        over = time.monotonic() + 6
        for done in [clients.submit(client, seed, over, pipeline) for seed in range(12)]:
            done.result(30)
        stats = at_rest(pipeline)
    print(f"\n{len(ends)} requests: {happened(stats.finished_total)}")
    assert len(ends) > 100
    assert set(ends) <= {"cancelled", "length", "cache_exhausted"}
    assert ends.count("cancelled") > 20
    assert stats.cache_usage_max == 1.0
    assert stats.blocks_free == stats.blocks_total == 10


@pytest.mark.parametrize("policy", POLICIES)
def test_field_report_60_four_that_fit_alone_but_not_together_do_not_die_together(policy: str) -> None:
    """There is no factor of overcommitment: "adaptive" goes by what answers were, "engine" lets all four in."""
    with lane_of(policy, blocks=8) as pipeline, sampled(pipeline) as samples:
        for seed in range(20 if policy == "adaptive" else 0):  # which it takes for what is to be expected
            pipeline.generate(ids(60, seed), max_new_tokens=150, stop_token_ids=ENDINGS)
        samples.clear()
        four = [pipeline.submit(ids(60, seed), max_new_tokens=150, **FULL) for seed in range(4)]
        assert four[0].result(30).completion_tokens == 150, "the oldest"
        shed = [error for generation in four[1:] if (error := _shed(generation)) is not None]
        assert all(error.retryable for error in shed)
        assert not shed or policy == "engine"
        stats = at_rest(pipeline)
    most = max(sample.running for sample in samples)
    print(f"\n{policy}: {most} at once, {happened(stats.finished_total)}, {stats.paused_total} times paused")
    assert most == 1 if policy == "reserve" else most > 1
    assert (stats.paused_total > 0) is (policy == "adaptive")
    assert (stats.cache_usage_max == 1.0) is (policy == "engine")


def _shed(generation: bg.Generation) -> bg.CacheExhausted | None:
    """None: it came to its full length."""
    try:
        assert generation.result(30).completion_tokens == 150
    except bg.CacheExhausted as error:
        return error
    return None


@pytest.mark.slow
def test_field_report_61_below_the_mark_nothing_is_computed_twice_and_above_it_much_is() -> None:
    """What is scheduled and brings no token was computed before, for the same sequence, and its blocks were taken.

    The small model computes 100 tokens as fast as one, so that this costs it next to nothing, and the time is printed
    only. Where tokens cost time: tests/testing/test_field_reports.py.
    """
    twice, took = {}, {}
    for policy in ("reserve", "engine"):
        with lane_of(policy, blocks=10, running_max=30) as pipeline:
            turns, began = _turns(pipeline), time.monotonic()
            outputs = pipeline.generate_many([ids(60, seed) for seed in range(30)], max_new_tokens=100, **FULL)
            took[policy] = time.monotonic() - began
            assert [output.completion_tokens for output in outputs] == [100] * 30
            stats = at_rest(pipeline)
        twice[policy] = sum(turns) - 30 * 100
        assert (stats.cache_usage_max == 1.0) is (policy == "engine")
        assert (stats.paused_total, stats.requeued_total) == (0, 0)
    print(f"\nscheduled in vain: {twice}; seconds: {took}")
    assert twice["reserve"] == 0
    assert twice["engine"] > 10


def _turns(pipeline: bg.BoundedPipeline) -> list[int]:
    """How many requests the engine scheduled, report by report, by its own word."""
    turns: list[int] = []
    governor = pipeline._driver.governor
    receive = governor.receive

    def receiving(report: Any, now: float) -> None:
        turns.append(getattr(report, "scheduled", 0))
        receive(report, now)

    governor.receive = receiving  # type: ignore[method-assign]
    return turns


@pytest.mark.parametrize("policy", ["reserve", "engine"])
def test_field_report_64_a_stream_only_ever_grows_under_a_full_cache(policy: str) -> None:
    """Preempted or not; that all five are equal is promised only if they are not."""
    tokenizer = GenAITokenizer(PLAIN)
    with lane_of(policy, blocks=8, max_num_batched_tokens=64) as pipeline:
        generations = [pipeline.submit(ids(30), max_new_tokens=60, **FULL) for _ in range(5)]
        outputs = []
        for generation in generations:
            chunks = list(generation)
            completion = generation.result()
            assert "".join(chunk.text for chunk in chunks) == completion.text
            assert tuple(itertools.chain(*(chunk.token_ids for chunk in chunks))) == completion.token_ids
            assert completion.text == tokenizer.decode(completion.token_ids)
            assert completion.completion_tokens == 60
            outputs.append(completion.token_ids)
        assert (at_rest(pipeline).cache_usage_max == 1.0) is (policy == "engine")
        assert len(set(outputs)) == 1 or policy == "engine"


# --- what is in the cache already, and what comes into it late ----------------------------------------------------


@pytest.mark.slow
def test_field_report_63_the_cache_of_prefixes_changes_no_greedy_answer_and_is_there_only_if_asked_for() -> None:
    """Lengths at and beside the edges of blocks; what comes a second and a third time is in the cache."""
    assert not genai.SchedulerConfig().enable_prefix_caching
    answers: dict[bool, list[tuple[int, ...]]] = {}
    for caching in (False, True):
        with lane(properties=F32, scheduler={"enable_prefix_caching": caching}) as pipeline:
            answers[caching] = [
                pipeline.generate(ids(length, seed=length), max_new_tokens=60, **FULL).token_ids
                for length in (31, 32, 33, 63, 64, 65, 127, 128, 129)
                for _ in range(3)
            ]
    assert answers[True] == answers[False]
    assert len(set(answers[False])) == 9


def test_field_report_65_a_larger_prompt_that_comes_later_has_room_already_and_its_step_stays_in_its_budget() -> None:
    """The cache does not grow, so that no step copies it. One that could is refused: see report 57."""
    limits = bg.Limits(step=1.0, step_per_token=0.0005, step_per_attention=0.0, first_step=0.0, new_shape=0.0)
    scheduler = {"num_kv_blocks": 200, "max_num_batched_tokens": 8192}
    with lane(scheduler=scheduler, limits=limits) as pipeline, sampled(pipeline) as samples:
        pipeline.generate(ids(50), max_new_tokens=5, **FULL)
        assert pipeline.generate(ids(4000), max_new_tokens=5, **FULL).completion_tokens == 5
    assert len({sample.cache_bytes for sample in samples}) == 1
    ages = [(sample.step_current_s, sample.step_budget_s) for sample in samples if sample.step_budget_s is not None]
    longest, budget = max(ages)
    print(f"\nlongest step {longest:.3f} s, of a budget of {budget:.2f} s")
    assert all(age < allowed for age, allowed in ages)
    assert max(allowed for _, allowed in ages) < 1.0 + 4100 * 0.0005


def test_field_report_67_a_long_prompt_holds_up_neither_who_is_read_nor_who_is_new() -> None:
    with lane(scheduler={"num_kv_blocks": 128, "max_num_batched_tokens": 256}) as pipeline, Ticks() as ticks:
        decoding = pipeline.submit(ids(10), max_new_tokens=1000, **FULL)
        stream = iter(decoding)
        next(stream)
        long = pipeline.submit(ids(2500), max_new_tokens=5, **FULL)
        tiny = pipeline.submit(ids(5), max_new_tokens=3, **FULL)
        gaps, last = [], time.monotonic()
        for _ in stream:
            now = time.monotonic()
            gaps.append(now - last)
            last = now
        assert decoding.result().completion_tokens == 1000
        assert long.finish_reason is not None, "it was computed in the meantime"
        waited = tiny.result().first_token_s
    assert waited is not None
    print(f"\nlongest gap {max(gaps) * 1e3:.0f} ms, the tiny one waited {waited * 1e3:.0f} ms")
    assert max(gaps) < 1.5 + ticks.longest_s
    assert waited < 2.0 + ticks.longest_s
