"""Hybrid models (linear attention beside full attention) through a whole pipeline: two pools, both reserved."""

import random
from typing import Any

import pytest
from genai.lanes import FULL, HYBRID, at_rest, ids, lane, sampled, until
from genai.witness import Ticks
from hybrid.traffic import mixed_run

import boundedgen as bg

LEASE_S = 1.0


def test_the_slot_jam_is_served_within_the_lease_and_two_steps() -> None:
    """Two orphans of thousands of tokens hold both linear-attention blocks; the KV cache is nearly empty."""
    scheduler = {"num_kv_blocks": 512, "max_num_seqs": 2}
    with lane(HYBRID, scheduler, limits=bg.Limits()) as pipeline:
        lease = pipeline.lease("gone", ttl=LEASE_S)
        with Ticks() as ticks:
            orphans = [pipeline.submit(ids(20, seed), max_new_tokens=8000, lease=lease, **FULL) for seed in range(2)]
            assert until(pipeline, lambda stats: stats.running == 2).running == 2
            newcomer = pipeline.submit(ids(10), max_new_tokens=1, **FULL)
            linear = pipeline.stats().pools[1]
            assert (linear.name, linear.blocks_total, linear.blocks_free) == ("linear_attention", 2, 0)
            assert newcomer.result(30).completion_tokens == 1
        for orphan in orphans:
            with pytest.raises(bg.LeaseLost):
                orphan.result(5)
            assert orphan.wait_reclaimed(5).steps <= 2
        took = ticks.ended - ticks.began
        print(f"\nserved {took - LEASE_S:.3f} s after the lease's end, {ticks.own_s - LEASE_S:.3f} s without stalls")
        assert took >= LEASE_S - 0.1
        assert ticks.own_s < LEASE_S + 0.5


def test_the_three_greedy_requests_that_crash_the_raw_engine_all_finish() -> None:
    with lane(HYBRID, {"num_kv_blocks": 8}) as pipeline:
        for turn in range(5):
            lengths = ((60, 80), (100, 80), (100, 20))
            three = [pipeline.submit(ids(p, 10 * turn + p + n), max_new_tokens=n, **FULL) for p, n in lengths]
            assert [g.result(30).completion_tokens for g in three] == [80, 80, 20]


@pytest.mark.parametrize(
    ("prompt", "config", "scheduler", "pool"),
    [
        (200, {"max_new_tokens": 57}, {"num_kv_blocks": 8}, "kv"),
        (60, {"max_new_tokens": 69, "num_beams": 2}, {"num_kv_blocks": 8}, "kv"),
        (20, {"max_new_tokens": 45, "do_sample": True, "num_return_sequences": 4}, {"num_kv_blocks": 8}, "kv"),
    ],
)
def test_what_just_fits_the_kv_pool_finishes_and_one_token_more_is_refused(
    prompt: int, config: dict[str, Any], scheduler: dict[str, int], pool: str
) -> None:
    with lane(HYBRID, scheduler) as pipeline:
        assert pipeline.generate(ids(prompt), config, **FULL).completion_tokens == config["max_new_tokens"]
        before = at_rest(pipeline)
        with pytest.raises(bg.NeverFits) as caught:
            pipeline.submit(ids(prompt + 1), config, **FULL)
        assert caught.value.available == {pool: 8}
        after = pipeline.stats()
        assert (after.submitted_total, after.steps_total) == (before.submitted_total, before.steps_total)


def test_as_many_sequences_as_the_linear_attention_pool_has_blocks_fit_and_one_more_is_refused() -> None:
    with lane(HYBRID, {"num_kv_blocks": 64, "max_num_seqs": 3}) as pipeline:
        config = {"max_new_tokens": 8, "num_beams": 3, "num_return_sequences": 3}
        assert len(pipeline.generate(ids(20), config, **FULL).alternatives) == 2
        before = at_rest(pipeline)
        with pytest.raises(bg.NeverFits) as caught:
            pipeline.submit(ids(20), {**config, "num_beams": 4}, **FULL)
        assert caught.value.needed == {"linear_attention": 4}
        assert caught.value.available == {"linear_attention": 3}
        assert pipeline.stats().steps_total == before.steps_total


def test_prefix_caching_is_switched_off_and_health_says_why() -> None:
    scheduler = {"num_kv_blocks": 64, "enable_prefix_caching": True, "max_num_seqs": 4}
    with lane(HYBRID, scheduler) as pipeline:
        (finding,) = (text for text in pipeline.health().findings if "prefix" in text)
        assert "turned off" in finding
        assert "other tokens for repeated prompts" in finding
        assert [(pool.name, pool.blocks_total, pool.tokens_per_block) for pool in pipeline.stats().pools] == [
            ("kv", 64, 32),
            ("linear_attention", 4, None),
        ]
        # The lengths that poison a raw pipeline with prefix caching: the same prompt again, n intervals and a token.
        for length in (257, 513):
            first, again = (pipeline.generate(ids(length), max_new_tokens=5, **FULL).token_ids for _ in range(2))
            assert first == again


def test_prefix_caching_stays_on_where_it_is_insisted_upon_and_health_says_so() -> None:
    scheduler = {"num_kv_blocks": 64, "enable_prefix_caching": True, "unsafe_prefix_caching": True}
    with lane(HYBRID, scheduler) as pipeline:
        assert any("kept on by request" in text for text in pipeline.health().findings)
        kv, linear = pipeline.stats().pools
        assert (kv.blocks_total, linear.tokens_per_block) == (64, 256)
        assert linear.blocks_total == 8
        assert pipeline.generate(ids(40), max_new_tokens=5, **FULL).completion_tokens == 5


def test_both_pools_are_exact_in_stats_while_work_is_inside() -> None:
    with lane(HYBRID, {"num_kv_blocks": 40, "max_num_seqs": 6}) as pipeline, sampled(pipeline) as samples:
        needs = {(100, 200): 10, (33, 32): 2, (1, 400): 13}  # blocks of 32 for prompt + new - 1 tokens
        generations = [pipeline.submit(ids(p), max_new_tokens=n, **FULL) for p, n in needs]
        generations.append(pipeline.submit(ids(20), max_new_tokens=100, num_beams=2, **FULL))
        rows = [row for row in pipeline.stats(sequences=True).sequences or () if row.phase == "running"]
        for generation in generations:
            generation.result(30)
    full = max(samples, key=lambda sample: sample.pools[0].blocks_reserved)
    assert [(pool.name, pool.blocks_total, pool.blocks_reserved) for pool in full.pools] == [
        ("kv", 40, 10 + 2 + 13 + 8),
        ("linear_attention", 6, 5),
    ]
    assert {row.blocks["linear_attention"] for row in rows} <= {1, 2}
    for sample in samples:
        assert all(0 <= pool.blocks_reserved <= pool.blocks_total for pool in sample.pools)
        assert (sample.cache_usage or 0.0) <= 1.0
        assert sample.blocks_used is None or sample.blocks_used <= 40


@pytest.mark.slow
def test_a_hundred_mixed_runs_lose_no_engine_and_no_request() -> None:
    """Beams, samples, stops, deadlines, leases; small pools, full all the time."""
    seeds = range(100)
    with lane(HYBRID, {"num_kv_blocks": 16, "max_num_seqs": 4}) as pipeline, sampled(pipeline, 0.005) as samples:
        reasons: dict[str, int] = {}
        for seed in seeds:
            for reason in mixed_run(pipeline, random.Random(seed)):
                reasons[reason] = reasons.get(reason, 0) + 1
        stats = at_rest(pipeline)
        print(f"\nseeds 0..99: {reasons}, {stats.steps_total} steps, reclaim {stats.reclaim.steps_max} steps at most")
        assert (stats.requeued_total, stats.ghosts_total, stats.forgotten_total) == (0, 0, 0)
        assert reasons.keys() <= {"length", "stop", "cancelled", "deadline", "lease"}
        assert reasons["length"] > 100
        assert stats.reclaim.steps_max <= 2
    for sample in samples:
        assert all(0 <= pool.blocks_reserved <= pool.blocks_total for pool in sample.pools)
