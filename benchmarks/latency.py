"""What boundedgen adds to the latency of the raw loop: until the first token, and between two tokens.

    python benchmarks/latency.py [--short] [--json FILE]

The raw loop's times are taken in the engine's process, when a token is read; boundedgen's in the parent, when a reader,
a thread or a coroutine, has the chunk, with its text. Requests come one at a time, or 16 at once; rounds are
interleaved on one engine. Figures are differences of quantiles, with intervals of rounds drawn anew: what comes at once
is late at once. The first token counts from `add_request`, or `submit`. Tokens that come together are one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import figures
from attrs import define, field, frozen
from contest import Contest
from figures import Figure
from workload import Workload, on_small, on_smollm2

import boundedgen

PART = "latency"
PAUSE = 0.005  #: seconds between rounds, in which everybody has gone to sleep
Times = list[list[float]]  #: of each request: when its tokens came, in seconds since it was asked for
Reader = Callable[[boundedgen.BoundedPipeline, Sequence[list[int]], int], Times]


@frozen
class Plan:
    make: Callable[[], Workload]
    rounds: int


#: Enough rounds for 1,000 first tokens of the small model, and for a 99th percentile of SmolLM2 that has an interval.
PLANS = (
    Plan(partial(on_small, 1, prompt=16, new=16), 1000),
    Plan(partial(on_small, 16, prompt=16, new=16), 60),
    Plan(partial(on_smollm2, 1, prompt=16, new=8), 370),
    Plan(partial(on_smollm2, 16, prompt=16, new=8), 25),
)
SHORT = (Plan(partial(on_small, 2, prompt=16, new=16), 4),)


def threads(pipeline: boundedgen.BoundedPipeline, prompts: Sequence[list[int]], new: int) -> Times:
    at: Times = [[] for _ in prompts]

    def read(generation: boundedgen.Generation, began: float, into: list[float]) -> None:
        into.extend(time.monotonic() - began for _ in generation)

    readers = []
    for prompt, into in zip(prompts, at, strict=True):
        began = time.monotonic()
        generation = pipeline.submit(prompt, max_new_tokens=new, ignore_eos=True)
        readers.append(threading.Thread(target=read, args=(generation, began, into)))
        if len(prompts) > 1:
            readers[-1].start()
        else:
            read(generation, began, into)
    for reader in readers:
        if reader.ident is not None:
            reader.join()
    return at


def coroutines(pipeline: boundedgen.BoundedPipeline, prompts: Sequence[list[int]], new: int) -> Times:
    async def read(prompt: list[int]) -> list[float]:
        began = time.monotonic()
        generation = pipeline.submit(prompt, max_new_tokens=new, ignore_eos=True)
        return [time.monotonic() - began async for _ in generation]

    async def all_of_them() -> Times:
        return list(await asyncio.gather(*map(read, prompts)))

    return asyncio.run(all_of_them())


READERS: dict[str, Reader] = {"thread": threads, "asyncio": coroutines}


@define
class Seen:
    """Milliseconds, round by round."""

    first: list[list[float]] = field(factory=list)
    between: list[list[float]] = field(factory=list)

    def add(self, times: Times) -> None:
        self.first.append([1000 * at[0] for at in times])
        self.between.append([1000 * (later - earlier) for at in times for earlier, later in itertools.pairwise(at)])


def compare(work: Workload, rounds: int) -> list[Figure]:
    raw, bounded = Seen(), {name: Seen() for name in READERS}
    limits = boundedgen.Limits(running_max=work.sequences)
    with contextlib.closing(Contest(work.model, work.scheduler(), limits)) as contest:
        for round_ in range(rounds + 2):
            prompts = work.prompts(round_)
            seen = {"raw": contest.ask("raw_times", prompts=prompts, new=work.new, pause=PAUSE)}
            for name, reader in READERS.items():
                time.sleep(PAUSE)
                seen[name] = reader(contest.pipeline, prompts, work.new)
            if round_ >= 2:  # those before were to warm up
                raw.add(seen.pop("raw"))
                for name, times in seen.items():
                    bounded[name].add(times)
    return [figure for name in READERS for figure in _added(f"{work.name}, {name}", bounded[name], raw)]


def _added(name: str, bounded: Seen, raw: Seen) -> list[Figure]:
    found = []
    for what, ours, theirs in (
        ("first token", bounded.first, raw.first),
        ("between tokens", bounded.between, raw.between),
    ):
        for label, share, target in (("p50", 0.5, "<= 0.3"), ("p99", 0.99, "<= 2")):
            found.append(figures.added(PART, f"{name}: {what}, {label}", ours, theirs, "ms", share, target=target))
    return found


def measure(given: argparse.Namespace) -> list[Figure]:
    plans = [(plan.make(), plan.rounds) for plan in (SHORT if given.short else PLANS)]  # all, before any is measured
    return [figure for work, rounds in plans for figure in compare(work, rounds)]


if __name__ == "__main__":
    figures.alone(__doc__, measure)
