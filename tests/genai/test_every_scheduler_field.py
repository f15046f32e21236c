"""Every field of the installed SchedulerConfig: taken, with its effect on the real engine, or refused. See
test_every_field.py.
"""

from collections.abc import Callable
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from genai.lanes import FULL, HYBRID, PLAIN, ids, lane, until
from genai.raw import attributes

import boundedgen as bg
from boundedgen._refused_fields import REFUSED_OF_SCHEDULER
from boundedgen._scheduler_config import TAKEN, scheduler_fields


def _pools(scheduler: dict[str, Any], model: str = PLAIN) -> dict[str, tuple[int, int | None]]:
    """Of each pool: blocks, and tokens a block."""
    with lane(model, scheduler) as pipeline:
        assert pipeline.generate(ids(20), max_new_tokens=2, **FULL).completion_tokens == 2
        return {pool.name: (pool.blocks_total, pool.tokens_per_block) for pool in pipeline.stats().pools}


def _steps(scheduler: dict[str, Any], *lengths: int) -> list[int]:
    """That a token after the same prompt takes, cut to each of the lengths; or one more, which settles it."""
    with lane(PLAIN, scheduler) as pipeline:
        took = []
        for length in lengths:
            before = until(pipeline, lambda stats: not stats.stopping).steps_total
            pipeline.generate(ids(length), max_new_tokens=1, **FULL)
            took.append(until(pipeline, lambda stats: not stats.stopping).steps_total - before)
        return took


def num_kv_blocks() -> None:
    assert _pools({"num_kv_blocks": 37}) == {"kv": (37, 32)}


def cache_size() -> None:
    with lane(PLAIN, {"cache_size": 1, "num_kv_blocks": None}) as pipeline:
        told = pipeline.stats().cache_bytes
        assert told is not None
        assert 0.9 * 2**30 < told <= 2**30


def max_num_batched_tokens() -> None:
    (few,), (many,) = (_steps({"max_num_batched_tokens": tokens}, 256) for tokens in (256, 32))
    assert many - few == pytest.approx(7, abs=1)


def max_num_seqs() -> None:
    with lane(PLAIN, {"max_num_seqs": 2}, limits=bg.Limits()) as pipeline:
        many = [pipeline.submit(ids(5, n), max_new_tokens=60, **FULL) for n in range(6)]
        assert until(pipeline, lambda stats: stats.running > 0).running <= 2
        assert all(one.result().completion_tokens == 60 for one in many)
        assert pipeline.stats().running_max == 2


def dynamic_split_fuse() -> None:
    with lane(PLAIN, {"dynamic_split_fuse": False, "max_num_batched_tokens": 64, "max_num_seqs": 4}) as pipeline:
        assert pipeline.generate(ids(64), max_new_tokens=2, **FULL).completion_tokens == 2
        with pytest.raises(bg.InvalidRequest, match="65 tokens; with dynamic_split_fuse off"):
            pipeline.submit(ids(65))


def enable_prefix_caching() -> None:
    small = {"max_num_batched_tokens": 32}
    first, again = _steps({**small, "enable_prefix_caching": True}, 256, 256)
    assert first - again > 5, "the prompt was there already"
    first, again = _steps({**small, "enable_prefix_caching": False}, 256, 256)
    assert first == pytest.approx(again, abs=1)


def num_linear_attention_blocks() -> None:
    pools = _pools({"num_kv_blocks": 64, "num_linear_attention_blocks": 5}, HYBRID)
    assert pools == {"kv": (64, 32), "linear_attention": (5, None)}


def cache_interval_multiplier() -> None:
    cached = {"num_kv_blocks": 64, "enable_prefix_caching": True, "unsafe_prefix_caching": True}
    pools = _pools({**cached, "cache_interval_multiplier": 4}, HYBRID)
    assert pools == {"kv": (64, 32), "linear_attention": (16, 4 * 32)}


@pytest.mark.parametrize("field", TAKEN)
def test_a_field_of_the_scheduler_that_is_taken_does_what_it_says(field: str) -> None:
    check: Callable[[], None] = globals()[field]
    check()


@pytest.mark.parametrize("field", REFUSED_OF_SCHEDULER)
def test_a_refused_field_of_the_scheduler_is_refused_with_its_reason_and_the_way_out(field: str) -> None:
    refused = REFUSED_OF_SCHEDULER[field]
    with pytest.raises(ValueError, match=f"scheduler_config.{field} is refused") as error:
        scheduler_fields({field: True})
    assert refused.why in str(error.value)
    assert refused.instead in str(error.value)


def test_every_field_of_the_installed_scheduler_config_is_known() -> None:
    there, known = attributes(genai.SchedulerConfig), {*TAKEN, *REFUSED_OF_SCHEDULER}
    assert there == known, (
        "measure what the engine makes of it, then put it into _scheduler_config or REFUSED_OF_SCHEDULER"
    )
