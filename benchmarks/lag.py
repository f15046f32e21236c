"""How late the asyncio loop of the embedding process is while prompts of 1,500 tokens are prefilled: SmolLM2.

    python benchmarks/lag.py [--rounds 6] [--short] [--json FILE]

Beside it the loop of an asyncio server that steps in a thread of its own process. The same prompts at once, on one
engine that takes a whole prompt in a step, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import figures
from contest import Contest
from figures import Figure
from loop_lag import watched
from workload import Workload, on_small, on_smollm2

import boundedgen

PART = "lag"
TICK = 0.005


async def bounded(pipeline: boundedgen.BoundedPipeline, work: Workload, seed: int) -> list[float]:
    async def one(prompt: list[int]) -> None:
        async with await pipeline.asubmit(prompt, max_new_tokens=work.new, ignore_eos=True) as generation:
            async for _ in generation:
                pass

    async with watched(TICK) as lags:
        await asyncio.gather(*map(one, work.prompts(seed)))
    return lags


def measure(given: argparse.Namespace) -> list[Figure]:
    work = on_small(2, 300, 2) if given.short else on_smollm2(4, 1500, 2)
    rounds = 1 if given.short else given.rounds
    scheduler = {**work.scheduler(), "max_num_batched_tokens": work.prompt}
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    limits = boundedgen.Limits(running_max=work.sequences)
    with contextlib.closing(Contest(work.model, scheduler, limits)) as contest:
        for round_ in range(rounds):
            ours.append(asyncio.run(bounded(contest.pipeline, work, round_)))
            answer = contest.ask("in_process", prompts=work.prompts(round_), new=work.new, tick=TICK)
            theirs.append(answer["lags"])
    return [
        _late("boundedgen", work, ours, 0.99, "<= 5"),
        _late("boundedgen", work, ours, 1.0, ""),
        _late("in-process", work, theirs, 0.99, ""),
        _late("in-process", work, theirs, 1.0, ""),
    ]


def _late(whose: str, work: Workload, lags: list[list[float]], share: float, target: str) -> Figure:
    name = f"{whose}: loop lag while {work.sequences} prompts of {work.prompt} tokens are prefilled, "
    name += "p99" if share < 1 else "largest"
    late = [[1000 * lag for lag in round_] for round_ in lags]
    return figures.sampled(PART, name, late, "ms", share, target=target)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=figures.count, default=6)


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
