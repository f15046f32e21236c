"""What to build the pipeline with, from what was measured: each value with how it was come by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final, final

from attrs import frozen

from boundedgen._bounds import Limits
from boundedgen._core._pace import FIRST_STEPS, configured, shape_of
from boundedgen._doctor._asked import Asked
from boundedgen._doctor._finding import count, span
from boundedgen._doctor._trial import Step, Trial, at_once, how_many
from boundedgen._engine._devices import is_gpu
from boundedgen._engine._pools import KV, LINEAR

_DEFAULT_BATCHED: Final = 256  # SchedulerConfig.max_num_batched_tokens
#: How often a measured time fits into the limit that is made of it, and the least limit on a processor. A machine that
#: does something else meanwhile, or has cold files, takes several times as long.
BOOT, STEP, FIRST = 5, 10, 10
LEAST: Final = {"boot": 30.0, "first_step": 10.0, "new_shape": 5.0, "step": 10.0, "step_max": 20.0}


@final
@frozen
class Choice:
    """A value, and why."""

    value: Any
    why: str


@final
@frozen
class Recommendation:
    """`scheduler`: fields of SchedulerConfig; `limits`: of Limits."""

    scheduler: Mapping[str, Choice]
    limits: Mapping[str, Choice]


def advice(asked: Asked, trial: Trial) -> Recommendation | None:
    """None: the engine never became ready, so nothing was measured."""
    if trial.capacity is None or trial.facts is None or trial.load_s is None:
        return None
    fitting, sequences = how_many(trial.capacity, asked.tokens), at_once(trial.capacity, asked)
    scheduler = dict(_scheduler(asked, trial, sequences))
    limits = {"running_max": _running(asked, fitting, sequences), **_times(asked, trial)}
    return Recommendation(scheduler, limits)


def blocks_for(asked: Asked, trial: Trial, sequences: int) -> dict[str, int]:
    """Blocks by pool that so many sequences of the length asked for reserve."""
    capacity = trial.capacity
    assert capacity is not None
    needs = capacity.needs(asked.tokens - 1, 1, sequences)
    return {pool.name: need for pool, need in zip(capacity.pools, needs, strict=True)}


def cache_bytes_of(trial: Trial, kv_blocks: int) -> int | None:
    """About what a cache of so many KV blocks takes, by what the one that was tried took; None: it does not tell."""
    if trial.facts is None or not trial.cache_bytes:
        return None
    there = next(pool.blocks for pool in trial.facts.pools if pool.name == KV)
    return math.ceil(trial.cache_bytes / there * kv_blocks)


# --- the scheduler ---------------------------------------------------------------------------------------------------


def _scheduler(asked: Asked, trial: Trial, sequences: int) -> Iterator[tuple[str, Choice]]:
    assert trial.capacity is not None
    assert trial.facts is not None
    wanted = f"{count(sequences, 'sequence')} of {asked.tokens:,} tokens"
    given = {pool.name: pool.blocks for pool in trial.capacity.pools if asked.sized}  # by whoever has reasons for it
    needed = blocks_for(asked, trial, sequences)
    kept = given.get(KV, 0) > needed[KV]
    why = f"as given; {wanted} need {needed[KV]:,}" if kept else f"for {wanted}"
    yield "num_kv_blocks", Choice(max(needed[KV], given.get(KV, 0)), why)
    yield "max_num_seqs", Choice(sequences, "at once: running_max, below")
    settings = {**asked.scheduler.fields}
    for name in ("num_kv_blocks", "cache_size", "max_num_seqs"):
        settings.pop(name, None)
    if trial.facts.hybrid and not _caches(trial):
        settings.pop("num_linear_attention_blocks", None)  # one a sequence: max_num_seqs says how many
        settings["enable_prefix_caching"] = False
    elif trial.facts.hybrid:
        settings["num_linear_attention_blocks"] = max(needed[LINEAR], given.get(LINEAR, 0))
        settings["unsafe_prefix_caching"] = True
    for name, value in settings.items():
        yield name, Choice(value, "as given" if name in asked.scheduler.fields else "for a hybrid model")


def _caches(trial: Trial) -> bool:
    """Prefixes, on a hybrid model: then a block of linear attention is one of so many tokens."""
    assert trial.facts is not None
    return any(pool.name == LINEAR and pool.tokens_per_block is not None for pool in trial.facts.pools)


def _running(asked: Asked, fitting: int, sequences: int) -> Choice:
    told = f"{count(fitting, 'sequence')} of {asked.tokens:,} tokens fit at once"
    if asked.sequences is not None:
        return Choice(sequences, f"as asked for; in the cache that was tried {told}")
    return Choice(sequences, told if fitting == sequences else f"{told}; --sequences asks for other numbers")


# --- times -----------------------------------------------------------------------------------------------------------


def _times(asked: Asked, trial: Trial) -> dict[str, Choice]:
    """On a GPU the allowances for what is compiled are never lowered: a start that compiles all is far slower."""
    assert trial.load_s is not None
    steps, kept = trial.steps, is_gpu(asked.device)
    first = max((step.seconds for step in steps[:FIRST_STEPS]), default=0.0)
    return {
        "boot": _limit("boot", BOOT, trial.load_s, "the load", kept),
        "first_step": _limit("first_step", FIRST, first, f"the longest of the first {FIRST_STEPS} steps", kept),
        "new_shape": _limit("new_shape", FIRST, newness(steps), "what a first step of its size took longer", kept),
        "step": _limit("step", STEP, decoding(steps), "a step that decodes", kept=False),
        "step_max": _step_max(asked, steps),
    }


def _limit(name: str, times: int, measured: float, what: str, kept: bool) -> Choice:
    """`kept`: at least the default."""
    default = getattr(Limits(), name)
    least = default if kept else LEAST[name]
    why = f"{times} times {what} ({span(measured)}), at least {'the default' if kept else span(least)}"
    return Choice(max(least, rounded(times * measured)), why)


def _step_max(asked: Asked, steps: tuple[Step, ...]) -> Choice:
    """Never below what the limits themselves give to the fullest step there can be."""
    batch = int(asked.scheduler.fields.get("max_num_batched_tokens", _DEFAULT_BATCHED))
    slowest = max((step.seconds for step in steps), default=0.0)
    budget = configured(Limits(), batch, batch * asked.tokens)
    longest = rounded(max(STEP * slowest, budget))
    why = (
        f"{STEP} times the longest step ({span(slowest)}), at least the budget of {batch:,} tokens in a context of "
        f"{asked.tokens:,} ({span(budget)}) and {span(LEAST['step_max'])}"
    )
    return Choice(max(LEAST["step_max"], longest), why)


def decoding(steps: tuple[Step, ...]) -> float:
    """Seconds of an ordinary step of the largest crowd that was tried: of the size that most steps had, at the median.

    Prompts are computed in few steps, answers in many.
    """
    sizes = _by_size(steps)
    common = max(sizes.values(), key=len, default=[])
    return median(common) if common else 0.0


def newness(steps: tuple[Step, ...]) -> float:
    """Seconds by which the first step of a size took longer than those that followed; the worst of all sizes."""
    extra = [seconds[0] - median(seconds[1:]) for seconds in _by_size(steps).values() if len(seconds) > 1]
    return max([0.0, *extra])


def _by_size(steps: tuple[Step, ...]) -> dict[int, list[float]]:
    sizes: dict[int, list[float]] = {}
    for step in steps:
        sizes.setdefault(shape_of(step.tokens), []).append(step.seconds)
    return sizes


def rounded(seconds: float) -> float:
    """Up, to what a person would write: 5 s steps, from 100 s on 10 s."""
    grain = 5.0 if seconds <= 100 else 10.0
    return math.ceil(seconds / grain) * grain


def as_blocks(needed: Mapping[str, int], sequences: int) -> str:
    """The settings that make so many blocks. One of linear attention a sequence follows from max_num_seqs."""
    linear = needed.get(LINEAR, sequences)
    more = f", num_linear_attention_blocks={linear}" if linear != sequences else ""
    return f"num_kv_blocks={needed[KV]}, max_num_seqs={sequences}{more}"
