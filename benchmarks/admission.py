"""Long limits, short answers, a cache for few worst cases: the raw engine, admission "reserve" and "adaptive".

    python benchmarks/admission.py [--rounds 3] [--calls 64] [--limit 512] [--worst 6] [--small] [--json FILE]

All calls come at once and sample, each with a seed of its own: greedy answers of so small a model repeat themselves,
and never end. Each policy runs in a process of its own, with the raw loop beside it on the same pipeline, in turn with
it. Prints tokens a second, the time of the last token of a call (p50, p99), pauses, tokens that were computed twice for
them, and how full the cache was: below 100 % the engine had nothing to preempt for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from attrs import define, field, frozen
from contest import Contest
from workload import small, smollm2

import boundedgen
from boundedgen._core._events import Admit
from boundedgen._flow import Flow
from boundedgen.abc import Request

PROMPT = 32


@frozen
class Work:
    """`calls` at once. What stops them is common in the model's answers, so that most are far shorter than `limit`."""

    model: str
    vocab: int
    calls: int
    limit: int
    worst: int  #: worst cases that the cache holds

    @property
    def stops(self) -> list[int]:
        return random.Random(0).sample(range(20, self.vocab), self.vocab // 40)

    def scheduler(self) -> dict[str, Any]:
        blocks = self.worst * -(-(PROMPT + self.limit) // 32)
        return {"num_kv_blocks": blocks, "max_num_batched_tokens": 256, "max_num_seqs": self.calls}

    def seeds(self, seed: int) -> list[int]:
        return [1 + seed * self.calls + n for n in range(self.calls)]

    def prompts(self, seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(20, self.vocab) for _ in range(PROMPT)] for _ in range(self.calls)]


@define
class Twice:
    """Tokens that were sent to the engine once more, since their stay had been paused."""

    tokens: int = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        request = Flow.request

        def counted(flow: Flow, effect: Admit) -> Request:
            made = request(flow, effect)
            self.tokens += len(made.prompt) if effect.paused else 0
            return made

        with mock.patch.object(Flow, "request", counted):
            yield


@define
class Figures:
    tokens_per_s: list[float] = field(factory=list)
    last: list[float] = field(factory=list)  #: seconds until the last token of a call
    full: int = 0  #: steps with a full cache

    def row(self) -> dict[str, Any]:
        if not self.tokens_per_s:
            return {"died": True}
        p = statistics.quantiles(self.last, n=100)
        rate = statistics.median(self.tokens_per_s)
        return {"tokens_per_s": rate, "p50_s": p[49], "p99_s": p[98], "steps_with_full_cache": self.full}


def raw_round(contest: Contest, work: Work, seed: int, into: Figures) -> None:
    seeds = work.seeds(seed)
    answer = contest.ask("raw", prompts=work.prompts(seed), new=work.limit, stops=work.stops, seeds=seeds)
    into.tokens_per_s.append(answer["tokens"] / answer["seconds"])
    into.last += answer["last"]
    into.full += answer["full"]


def bounded_round(contest: Contest, work: Work, seed: int, into: Figures) -> None:
    began = time.monotonic()
    held = [
        contest.pipeline.submit(
            prompt, max_new_tokens=work.limit, stop_token_ids=work.stops, do_sample=True, rng_seed=number
        )
        for prompt, number in zip(work.prompts(seed), work.seeds(seed), strict=True)
    ]
    done = [generation.result() for generation in held]
    into.tokens_per_s.append(sum(one.completion_tokens for one in done) / (time.monotonic() - began))
    into.last += [one.total_s for one in done]


def compare(work: Work, policy: str, rounds: int, **admission: Any) -> dict[str, Any]:
    """Rounds in turn, after one of each to warm up, in which "adaptive" learns how long answers are.

    The raw loop may die of its own preemption, and the pipeline's engine with it: that is the last round then.
    """
    raw, bounded, warm, twice, died = Figures(), Figures(), Figures(), Twice(), False
    limits = boundedgen.Limits(running_max=work.calls, max_new_tokens=work.limit, max_new_tokens_default=1)
    chosen = boundedgen.Admission(policy=policy, **admission)
    with contextlib.closing(Contest(work.model, work.scheduler(), limits, chosen)) as contest:
        bounded_round(contest, work, 0, warm)
        for n in range(rounds + 1):
            if n:
                with twice.counting():
                    bounded_round(contest, work, n, bounded)
            stats = contest.pipeline.stats()
            try:
                if not died:
                    raw_round(contest, work, n, raw if n else warm)
            except (EOFError, ConnectionResetError):
                died = True
    ratios = [b / r for b, r in zip(bounded.tokens_per_s, raw.tokens_per_s, strict=False)]
    return {
        "policy": " ".join([policy, *(f"{name}={value}" for name, value in admission.items())]),
        **bounded.row(),
        "pauses": stats.paused_total,
        "turned_back": stats.requeued_total,
        "tokens_twice": twice.tokens,
        "tokens": stats.tokens_total,
        "cache_usage_max": stats.cache_usage_max,
        "engines_lost": sum(stats.kills_total.values()) - died,
        "raw": raw.row(),
        "of_raw": statistics.median(ratios) if ratios else None,
    }


def show(row: dict[str, Any]) -> None:
    raw, ratio = row["raw"], row["of_raw"]
    beside = (
        "raw died"
        if ratio is None
        else (
            f"raw {raw['tokens_per_s']:.0f} tok/s, p50 {raw['p50_s']:.2f} s, p99 {raw['p99_s']:.2f} s, "
            f"{raw['steps_with_full_cache']} steps with a full cache; ratio {ratio:.3f}"
        )
    )
    print(
        f"{row['policy']}: {row['tokens_per_s']:.0f} tok/s, p50 {row['p50_s']:.2f} s, p99 {row['p99_s']:.2f} s, "
        f"{row['pauses']} pauses, {row['turned_back']} turned back, {row['tokens_twice']} of {row['tokens']} tokens "
        f"computed twice, cache at most {row['cache_usage_max']:.1%} full, "
        f"{row['engines_lost']} engines lost; {beside}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument("--limit", type=int, default=512, help="max_new_tokens of each call")
    parser.add_argument("--worst", type=int, default=6, help="worst cases that the cache holds")
    parser.add_argument("--small", action="store_true", help="the project's own small model instead of SmolLM2")
    parser.add_argument("--covered", type=float, nargs="+", help='only "adaptive", with each of these')
    parser.add_argument("--json", help="write the figures there")
    arguments = parser.parse_args()
    model, vocab = (small(), 259) if arguments.small else (smollm2(), 40_000)
    work = Work(model, vocab, arguments.calls, arguments.limit, arguments.worst)
    rows = []
    shares = [{"covered": share} for share in arguments.covered or ()]
    for policy, more in [("adaptive", share) for share in shares] or [("reserve", {}), ("adaptive", {})]:
        rows.append(compare(work, policy, arguments.rounds, **more))
        show(rows[-1])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
