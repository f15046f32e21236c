"""Tokens a second: raw, in-process and boundedgen, the same requests, on one pipeline in one process, interleaved.

    python benchmarks/throughput.py [--pairs 20] [--lives 4] [--rows SmolLM2-16 small-16-stream …] [--json FILE]

Readers of boundedgen wait for completions beside the raw loop, which reads its tokens; in a row "-stream" a coroutine
for each request streams and detokenizes it, beside an asyncio server that does the same in the engine's process.
Meanwhile the asyncio loops are watched: how late do they come back?
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import figures
from attrs import define, field
from contest import Contest
from figures import Figure
from loop_lag import watched
from workload import Workload, on_small, on_smollm2

import boundedgen

PART = "throughput"
TICK = 0.0125  #: seconds between two looks at the loop's clock: enough for a 99th percentile, and no load
#: Many sequences are short, so that a round takes seconds.
ROWS: dict[str, Callable[[], Workload]] = {
    "SmolLM2-1": partial(on_smollm2, 1),
    "SmolLM2-4": partial(on_smollm2, 4),
    "SmolLM2-16": partial(on_smollm2, 16, new=48),
    "SmolLM2-64": partial(on_smollm2, 64, prompt=16, new=24),
    "small-16": partial(on_small, 16),
    "SmolLM2-16-stream": partial(on_smollm2, 16, new=48),
    "small-16-stream": partial(on_small, 16),
    "small-16-one-thread": partial(on_small, 16, threads=1),  # an engine that leaves the others a processor
}
SHORT = {name: partial(on_small, 4, prompt=16, new=32) for name in ("small-4", "small-4-stream")}


async def consume(pipeline: boundedgen.BoundedPipeline, prompt: list[int], new: int, stream: bool) -> int:
    tokens = 0
    async with pipeline.submit(prompt, max_new_tokens=new, ignore_eos=True) as generation:
        if not stream:
            return (await generation).completion_tokens
        async for chunk in generation:
            tokens += len(chunk.token_ids)
    return tokens


@define
class Rates:
    """Tokens a second, and how late the contestants' loops were, in milliseconds, round by round."""

    raw: list[float] = field(factory=list)
    in_process: list[float] = field(factory=list)
    bounded: list[float] = field(factory=list)
    lags: list[list[float]] = field(factory=list)
    lags_in_process: list[list[float]] = field(factory=list)


async def bounded_round(contest: Contest, work: Workload, seed: int, stream: bool, into: Rates) -> None:
    async with watched(TICK) as lags:
        began = time.monotonic()
        readers = (consume(contest.pipeline, prompt, work.new, stream) for prompt in work.prompts(seed))
        tokens = sum(await asyncio.gather(*readers))
        into.bounded.append(tokens / (time.monotonic() - began))
    into.lags.append([1000 * lag for lag in lags])


async def raw_round(contest: Contest, work: Workload, seed: int, into: Rates) -> None:
    """Beside a loop that is watched as in the other rounds: looking costs up to a per cent."""
    async with watched(TICK):
        answer = await asyncio.to_thread(contest.ask, "raw", prompts=work.prompts(seed), new=work.new)
    into.raw.append(answer["tokens"] / answer["seconds"])


async def in_process_round(contest: Contest, work: Workload, seed: int, into: Rates) -> None:
    answer = await asyncio.to_thread(contest.ask, "in_process", prompts=work.prompts(seed), new=work.new, tick=TICK)
    into.in_process.append(answer["tokens"] / answer["seconds"])
    into.lags_in_process.append([1000 * lag for lag in answer["lags"]])


def rounds(contest: Contest, work: Workload, stream: bool, seed: int, turn: int, into: Rates) -> None:
    """One of each contestant on the same requests; who goes first changes with `turn`."""
    contestants: list[Callable[[], Coroutine[Any, Any, None]]] = [
        lambda: raw_round(contest, work, seed, into),
        lambda: bounded_round(contest, work, seed, stream, into),
    ]
    if stream:
        contestants.append(lambda: in_process_round(contest, work, seed, into))
    first = turn % len(contestants)
    for round_ in contestants[first:] + contestants[:first]:
        asyncio.run(round_())


def live(work: Workload, pairs: int, stream: bool, life: int, into: Rates) -> None:
    """Interleaved rounds in a fresh engine process, after one of each to warm up."""
    limits = boundedgen.Limits(running_max=work.sequences)
    with contextlib.closing(Contest(work.model, work.scheduler(), limits, properties=work.properties())) as contest:
        rounds(contest, work, stream, 0, 0, Rates())
        for pair in range(pairs):
            rounds(contest, work, stream, 1 + life * pairs + pair, life + pair, into)


def compare(name: str, work: Workload, pairs: int, lives: int) -> list[Figure]:
    """Over `lives` fresh engine processes."""
    rates, stream = Rates(), name.endswith("-stream")
    for life in range(lives):
        live(work, -(-pairs // lives), stream, life, rates)
    enough = 0.99 if name.startswith("SmolLM2") else 0.92
    beside = figures.ratios(
        PART, f"{name}: boundedgen / raw", rates.bounded, rates.raw, target="" if stream else f">= {enough}"
    )
    if not stream:
        return [beside, _lag(name, "", rates.lags, "")]
    return [
        figures.ratios(PART, f"{name}: boundedgen / in-process", rates.bounded, rates.in_process, target="> 1.0"),
        beside,
        figures.ratios(PART, f"{name}: in-process / raw", rates.in_process, rates.raw),
        _lag(name, "", rates.lags, "<= 5"),
        _lag(name, ", in-process", rates.lags_in_process, ""),
    ]


def _lag(name: str, whose: str, lags: list[list[float]], target: str) -> Figure:
    looks = figures.flat(lags)
    note = f"p50 {figures.quantile(looks, 0.5):.2f} ms, {len(looks)} looks in {len(lags)} rounds"
    return figures.sampled(PART, f"{name}: loop lag{whose}, p99", lags, "ms", 0.99, target=target, note=note)


def measure(given: argparse.Namespace) -> list[Figure]:
    rows = SHORT if given.short else {name: ROWS[name] for name in given.rows}
    pairs, lives = (2, 1) if given.short else (given.pairs, given.lives)
    works = {name: work() for name, work in rows.items()}  # all, before any is measured
    return [figure for name, work in works.items() for figure in compare(name, work, pairs, lives)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=figures.count, default=20)
    parser.add_argument(
        "--lives", type=figures.count, default=4, help="engine processes over which the pairs are spread"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
