"""Reservation on the real engine: what fits, what never fits, and that the cache is never overrun."""

import time
from typing import Any

import pytest
from counts import happened
from genai.lanes import FULL, at_rest, fifty_newcomers_in_a_full_cache, ids, lane, sampled, until
from genai.witness import Ticks

import boundedgen as bg
from boundedgen import _scheduler_config

EIGHT = {"num_kv_blocks": 8}  #: 256 tokens
BLOCK = 32


def _inside(pipeline: bg.BoundedPipeline) -> tuple[int, int]:
    stats = pipeline.stats()
    return stats.submitted_total, stats.steps_total


# --- a full cache that is given back -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("caching", [False, True], ids=["no prefix caching", "prefix caching"])
def test_field_report_4_a_newcomer_gets_the_whole_cache_of_a_cancelled_one_fifty_times_of_fifty(caching: bool) -> None:
    with lane(scheduler={**EIGHT, "enable_prefix_caching": caching}) as pipeline:
        tries = fifty_newcomers_in_a_full_cache(pipeline, BLOCK)
        stats = at_rest(pipeline)
        assert stats.requeued_total == 0
        assert happened(stats.finished_total) == {"length": tries, "cancelled": 50}


# --- the boundary of what fits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "config"),
    [
        (256, {"max_new_tokens": 1}),
        (200, {"max_new_tokens": 57}),
        (1, {"max_new_tokens": 256}),
        (100, {"max_new_tokens": 29, "num_beams": 2}),
        (20, {"max_new_tokens": 45, "num_beams": 4, "num_return_sequences": 2}),
        (60, {"max_new_tokens": 69, "do_sample": True, "num_return_sequences": 2}),
    ],
)
def test_field_report_58_what_just_fits_finishes_and_one_token_more_never_reaches_the_engine(
    prompt: int, config: dict[str, Any]
) -> None:
    new = config["max_new_tokens"]
    with lane(scheduler=EIGHT) as pipeline:
        completion = pipeline.generate(ids(prompt), config, **FULL)
        assert completion.completion_tokens == new
        assert completion.finish_reason is bg.FinishReason.LENGTH
        at_rest(pipeline)
        before = _inside(pipeline)
        for longer in (
            {"prompt": ids(prompt + 1), "max_new_tokens": new},
            {"prompt": ids(prompt), "max_new_tokens": new + 1},
        ):
            with pytest.raises(bg.NeverFits) as caught:
                pipeline.submit(longer["prompt"], {**config, "max_new_tokens": longer["max_new_tokens"]}, **FULL)
            sequences = max(config.get("num_beams", 1), config.get("num_return_sequences", 1))
            assert caught.value.needed == {"kv": 8 + sequences}
            assert caught.value.available == {"kv": 8}
            assert caught.value.http_status_hint == 413
        time.sleep(0.05)
        assert _inside(pipeline) == before
        assert happened(pipeline.stats().rejected_total) == {"NeverFits": 2}


def test_field_report_58_a_giant_is_refused_at_once_and_nobody_waits_behind_it() -> None:
    limits = bg.Limits(running_max=4, max_new_tokens_default=100)
    with lane(scheduler={**EIGHT, "max_num_batched_tokens": 64}, limits=limits) as pipeline:
        running = pipeline.submit(ids(10), max_new_tokens=200, **FULL)
        assert until(pipeline, lambda stats: stats.running == 1).running == 1
        prompt = ids(601)
        with Ticks() as refusing, pytest.raises(bg.NeverFits):
            pipeline.submit(prompt, **FULL)
        assert refusing.own_s < 0.05
        with Ticks() as serving:
            assert pipeline.generate("hi", max_new_tokens=5, **FULL).completion_tokens == 5
        assert serving.own_s < 2
        with pytest.raises(bg.NeverFits):
            pipeline.submit(ids(200), **FULL)
        assert running.result(30).completion_tokens == 200


def test_field_report_58_without_split_fuse_a_prompt_longer_than_a_step_is_refused() -> None:
    scheduler = {"num_kv_blocks": 64, "dynamic_split_fuse": False, "max_num_batched_tokens": 256}
    with lane(scheduler=scheduler) as pipeline:
        running = pipeline.submit(ids(10), max_new_tokens=300, **FULL)
        before = pipeline.stats().submitted_total
        with pytest.raises(bg.InvalidRequest, match="max_num_batched_tokens"):
            pipeline.submit(ids(257), max_new_tokens=5)
        assert pipeline.stats().submitted_total == before
        assert pipeline.generate(ids(255), max_new_tokens=5, **FULL).completion_tokens == 5
        assert running.result(30).completion_tokens == 300


# --- the number held, the cache's size, and its usage ------------------------------------------------------------


@pytest.mark.slow
def test_field_report_57_at_every_step_no_more_is_held_than_allowed_and_the_cache_keeps_its_size() -> None:
    scheduler = {"num_kv_blocks": 16, "max_num_seqs": 2}  # which the raw engine does not keep
    with (
        lane(scheduler=scheduler, limits=bg.Limits(running_max=4)) as pipeline,
        sampled(pipeline) as samples,
    ):
        held = _watch_held(pipeline)
        lengths = [30 + 37 * i % 271 for i in range(40)]
        generations = [pipeline.submit(ids(n, seed=n), max_new_tokens=100, **FULL) for n in lengths]
        for generation in generations:
            assert generation.result(60).completion_tokens == 100
        stats = at_rest(pipeline)
    assert happened(stats.finished_total) == {"length": 40}
    assert 2 <= max(held) <= 4
    assert len({sample.cache_bytes for sample in samples}) == 1
    assert samples[0].cache_bytes
    assert 0 < (stats.cache_usage_max or 0.0) <= 1.0
    assert all(sample.running + sample.stopping <= 4 for sample in samples)
    assert max(sample.running for sample in samples) >= 2
    for sample in samples:
        assert 0 <= (sample.blocks_reserved or 0) <= 16
        assert (sample.blocks_used or 0) <= 16
        assert (sample.cache_usage or 0.0) <= 1.0


def _watch_held(pipeline: bg.BoundedPipeline) -> list[int]:
    """How many stays the engine's own table and its scheduler have, by report (each at most one step)."""
    held: list[int] = [0]
    governor = pipeline._driver.governor
    receive = governor.receive

    def receiving(report: Any, now: float) -> None:
        held.extend([len(getattr(report, "held", None) or ()), getattr(report, "scheduled", 0)])
        receive(report, now)

    governor.receive = receiving  # type: ignore[method-assign]
    return held


def test_field_report_59_two_that_need_the_whole_cache_run_one_after_the_other() -> None:
    with lane(scheduler={**EIGHT, "max_num_batched_tokens": 64}) as pipeline, sampled(pipeline) as samples:
        both = [pipeline.submit(ids(161, seed), max_new_tokens=90, **FULL) for seed in range(2)]
        for generation in both:
            assert generation.result(30).completion_tokens == 90
    assert all(sample.running <= 1 for sample in samples)
    assert any(sample.running and sample.waiting for sample in samples)
    assert samples[-1].requeued_total == 0


@pytest.mark.parametrize("given", [{"cache_size": 1}, {}], ids=["in bytes", "not at all"])
def test_field_report_57_a_budget_in_bytes_or_none_at_all_is_known_to_the_block_and_kept(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With none a quarter of the memory that is free is taken, not as much as comes; here of 4 GB."""
    monkeypatch.setattr(_scheduler_config, "available_memory", lambda: 4 << 30)
    with lane(scheduler={"num_kv_blocks": 0, **given}) as pipeline:
        stats = pipeline.stats()
        assert stats.block_size == BLOCK
        assert stats.blocks_total is not None
        assert stats.cache_bytes is not None
        assert abs(stats.cache_bytes - (1 << 30)) < 1 << 20
        assert stats.blocks_total > 1000
        pipeline.generate(ids(2000), max_new_tokens=50, **FULL)
        assert pipeline.stats().cache_bytes == stats.cache_bytes
