"""What boundedgen costs beside the engine: a step and a live sequence in the child, a token in the parent.

    python benchmarks/cost.py [--rounds 10] [--profile SECONDS] [--short] [--json FILE]

In the child the time between two steps is taken, of the raw loop and of boundedgen's, on one engine, with 1 to 64
sequences inside; what boundedgen's is longer by is fitted by a line: so much a step, so much a live sequence. The
parent is charged with its processor time. `--profile` samples both with py-spy, where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Sequence

import figures
import numpy as np
from attrs import define, field
from contest import Contest
from figures import Figure
from profiling import Profile
from throughput import Rates, bounded_round
from workload import Workload, on_small, on_smollm2

import boundedgen

PART = "cost"
SIZES = (1, 4, 16, 64)
NEW = 128


# --- in the child ------------------------------------------------------------------------------------------------


CLOCKS = ("processor time", "wall time")


@define
class Gaps:
    """Median microseconds between two steps, by sequences inside: one a round."""

    raw: dict[int, list[float]] = field(factory=dict)
    bounded: dict[int, list[float]] = field(factory=dict)

    def add(self, size: int, raw: Sequence[float], bounded: Sequence[float]) -> None:
        self.raw.setdefault(size, []).append(1e6 * statistics.median(raw))
        self.bounded.setdefault(size, []).append(1e6 * statistics.median(bounded))

    def lines(self) -> list[tuple[float, float]]:
        """(a live sequence, a step) that boundedgen costs beside raw, of each round."""
        sizes = sorted(self.raw)
        rounds = zip(*(zip(self.raw[size], self.bounded[size], strict=True) for size in sizes), strict=True)
        return [_line(sizes, [ours - theirs for theirs, ours in each]) for each in rounds]


def _line(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    slope, base = np.polyfit(sizes, values, 1)
    return float(slope), float(base)


def in_the_child(sizes: Sequence[int], rounds: int) -> list[Figure]:
    most = on_small(max(sizes), 16, NEW)
    found = {name: Gaps() for name in CLOCKS}
    with contextlib.closing(_contest(most)) as contest:
        contest.ask("time_gaps")
        for round_ in range(rounds + 1):
            for size in sizes:
                prompts = on_small(size, 16, NEW).prompts(round_)
                contest.ask("gaps")
                contest.ask("raw", prompts=prompts, new=NEW)
                raw = contest.ask("gaps")
                contest.pipeline.generate_many(prompts, max_new_tokens=NEW, ignore_eos=True)
                bounded = contest.ask("gaps")
                for name, column in (("wall time", 0), ("processor time", 1)):
                    if round_:  # the one before was to warm up
                        found[name].add(size, [gap[column] for gap in raw], [gap[column] for gap in bounded])
    return [figure for name, gaps in found.items() for figure in _of(name, gaps)]


def _contest(work: Workload) -> Contest:
    return Contest(work.model, work.scheduler(), boundedgen.Limits(running_max=work.sequences))


def _of(clock: str, gaps: Gaps) -> list[Figure]:
    slopes, bases = zip(*gaps.lines(), strict=True)
    found = [
        figures.sampled(PART, f"child, {clock}: a live sequence a step, more than raw", slopes, "us", target="<= 3"),
        figures.sampled(PART, f"child, {clock}: a step, more than raw", bases, "us", target="<= 60"),
    ]
    for size in gaps.raw:
        name, note = f"child, {clock}: between two steps, {size} inside", f"raw: {np.median(gaps.raw[size]):.1f} us"
        found.append(figures.sampled(PART, name, gaps.bounded[size], "us", note=note))
    return found


# --- in the parent -----------------------------------------------------------------------------------------------


def in_the_parent(work: Workload, rounds: int) -> list[Figure]:
    """Processor time of the whole process, readers included, for each token."""
    found = []
    with contextlib.closing(_contest(work)) as contest:
        for stream in (False, True):
            asyncio.run(bounded_round(contest, work, 0, stream, Rates()))
            spent = []
            for round_ in range(1, rounds + 1):
                began = time.process_time()
                asyncio.run(bounded_round(contest, work, round_, stream, Rates()))
                spent.append(1e6 * (time.process_time() - began) / work.tokens)
            readers = "that stream and detokenize" if stream else "that wait"
            found.append(figures.sampled(PART, f"parent: a token of {work.name}, readers {readers}", spent, "us"))
    return found


# --- profiles ----------------------------------------------------------------------------------------------------


def profiles(work: Workload, seconds: float, stream: bool) -> list[Figure]:
    """The functions that take most, of themselves: a step in the child, a token in the parent."""
    with contextlib.closing(_contest(work)) as contest:
        asyncio.run(bounded_round(contest, work, 0, stream, Rates()))
        before = contest.pipeline.stats()
        with Profile(contest.pid, seconds) as child, Profile(os.getpid(), seconds) as parent:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                asyncio.run(bounded_round(contest, work, 1, stream, Rates()))
        after = contest.pipeline.stats()
    how = f"{work.name}, {'stream' if stream else 'await'}"
    steps, tokens = after.steps_total - before.steps_total, after.tokens_total - before.tokens_total
    return child.figures(f"{how}: child, a step", steps) + parent.figures(f"{how}: parent, a token", tokens)


def measure(given: argparse.Namespace) -> list[Figure]:
    if given.short:
        return in_the_child((1, 4), 1) + in_the_parent(on_small(4, 16, 32), 1)
    found = in_the_child(SIZES, given.rounds)
    for work in (on_small(16), on_smollm2(16, new=32)):
        found += in_the_parent(work, given.rounds)
    if given.profile:
        for stream in (False, True):
            found += profiles(on_small(16), given.profile, stream)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=figures.count, default=10)
    parser.add_argument("--profile", type=float, default=0.0, help="seconds; 0: no profile")


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
