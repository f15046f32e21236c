"""A whole pipeline on the real GPU plugin, on an emulated device: the same code, blocks of 16 tokens.

It says nothing about real GPU hardware, its speed or its memory.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from counts import happened
from genai.lanes import F32, FULL, HYBRID, PLAIN, at_rest, fifty_newcomers_in_a_full_cache, ids, lane, until
from genai.witness import Ticks
from hybrid.traffic import mixed_run

import boundedgen as bg

BLOCK = 16
EIGHT = {"num_kv_blocks": 8}


@pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_greedy_tokens_equal_the_cpus(model: str, emulated_gpu: dict[str, str]) -> None:
    prompts = [ids(length, seed=length) for length in (1, 15, 16, 17, 100)]
    with lane(model, device="CPU", properties=F32) as on_cpu:
        expected = [c.token_ids for c in on_cpu.generate_many(prompts, max_new_tokens=20, **FULL)]
    with lane(model, device="GPU", properties=emulated_gpu) as on_gpu:
        assert on_gpu.stats().block_size == BLOCK
        assert [c.token_ids for c in on_gpu.generate_many(prompts, max_new_tokens=20, **FULL)] == expected
        assert on_gpu.probe(10).ok


@pytest.mark.slow
@pytest.mark.parametrize("caching", [False, True], ids=["no prefix caching", "prefix caching"])
def test_field_report_4_a_newcomer_gets_the_whole_cache_of_a_cancelled_one_fifty_times_of_fifty(
    caching: bool, emulated_gpu: dict[str, str]
) -> None:
    scheduler = {**EIGHT, "enable_prefix_caching": caching}
    with lane(PLAIN, scheduler, device="GPU", properties=emulated_gpu) as pipeline:
        tries = fifty_newcomers_in_a_full_cache(pipeline, BLOCK)
        stats = at_rest(pipeline)
        assert stats.requeued_total == 0
        assert happened(stats.finished_total) == {"length": tries, "cancelled": 50}


@pytest.mark.parametrize(
    ("prompt", "config"), [(100, {"max_new_tokens": 29}), (20, {"max_new_tokens": 45, "num_beams": 2})]
)
def test_what_just_fits_finishes_and_one_token_more_never_reaches_the_engine(
    prompt: int, config: dict[str, Any], emulated_gpu: dict[str, str]
) -> None:
    with lane(PLAIN, EIGHT, device="GPU", properties=emulated_gpu) as pipeline:
        assert pipeline.generate(ids(prompt), config, **FULL).completion_tokens == config["max_new_tokens"]
        before = at_rest(pipeline)
        with pytest.raises(bg.NeverFits):
            pipeline.submit(ids(prompt + 1), config, **FULL)
        after = pipeline.stats()
        assert (after.submitted_total, after.steps_total) == (before.submitted_total, before.steps_total)


def test_a_deadline_cuts_and_the_slot_comes_back(emulated_gpu: dict[str, str]) -> None:
    with lane(PLAIN, device="GPU", properties=emulated_gpu, limits=bg.Limits(running_max=1)) as pipeline:
        generation = pipeline.submit(ids(10), max_new_tokens=1000, bounds=bg.Bounds(total=0.3), **FULL)
        with Ticks() as ticks, pytest.raises(bg.DeadlineExceeded) as caught:
            generation.result()
        assert caught.value.partial is not None
        assert caught.value.partial.total_s >= 0.3
        assert ticks.own_s < 0.8
        assert generation.wait_reclaimed(5).steps <= 2
        assert pipeline.generate(ids(10), max_new_tokens=3, **FULL).completion_tokens == 3


def test_the_slot_jam_of_a_hybrid_is_served_within_the_lease(emulated_gpu: dict[str, str]) -> None:
    scheduler = {"num_kv_blocks": 1024, "max_num_seqs": 2}
    with lane(HYBRID, scheduler, device="GPU", properties=emulated_gpu, limits=bg.Limits()) as pipeline:
        lease = pipeline.lease("gone", ttl=1.0)
        orphans = [pipeline.submit(ids(20, seed), max_new_tokens=8000, lease=lease, **FULL) for seed in range(2)]
        assert until(pipeline, lambda stats: stats.running == 2).running == 2
        with Ticks() as ticks:
            assert pipeline.generate(ids(10), max_new_tokens=1, **FULL).completion_tokens == 1
        assert ticks.own_s < 1.5
        for orphan in orphans:
            assert orphan.wait_reclaimed(5).steps <= 2
            assert orphan.finish_reason is bg.FinishReason.LEASE


@pytest.mark.slow
def test_a_hybrid_keeps_its_engine_and_every_request_under_mixed_traffic(emulated_gpu: dict[str, str]) -> None:
    scheduler = {"num_kv_blocks": 16, "max_num_seqs": 4}
    with lane(HYBRID, scheduler, device="GPU", properties=emulated_gpu) as pipeline:
        lengths = ((30, 40), (50, 40), (50, 10))
        three = [pipeline.submit(ids(p, p + n), max_new_tokens=n, **FULL) for p, n in lengths]
        assert [generation.result(60).completion_tokens for generation in three] == [40, 40, 10]
        ends = [reason for seed in range(15) for reason in mixed_run(pipeline, random.Random(seed), block=BLOCK)]
        assert set(ends) <= {"length", "stop", "cancelled", "deadline", "lease"}
        stats = at_rest(pipeline)
        assert (stats.requeued_total, stats.ghosts_total, stats.forgotten_total) == (0, 0, 0)
        assert [pool.blocks_total for pool in stats.pools] == [16, 4]


@pytest.mark.skipif("BOUNDEDGEN_KILLS" not in os.environ, reason="compiles all kernels anew; nox -s deep sets it")
def test_field_report_39_the_start_after_one_that_failed_with_half_a_kernel_in_the_cache_is_ready(
    emulated_gpu: dict[str, str], tmp_path: Path
) -> None:
    with lane(PLAIN, EIGHT, device="GPU", properties=emulated_gpu):
        pass
    for kernels in Path(emulated_gpu["CACHE_DIR"]).glob("*.cl_cache"):
        (tmp_path / kernels.name).write_bytes(kernels.read_bytes()[: kernels.stat().st_size // 2])
    with bg.BoundedPipeline(PLAIN, EIGHT, "GPU", {**emulated_gpu, "CACHE_DIR": str(tmp_path)}) as pipeline:
        assert happened(pipeline.stats().kills_total) == {"boot": 1}
        assert any("was put aside" in finding for finding in pipeline.health().findings)
        assert pipeline.probe(10).ok
