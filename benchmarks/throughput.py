"""boundedgen beside the raw loop: same requests, same pipeline in the same process, interleaved.

    python benchmarks/throughput.py [--pairs 20] [--lives 5] [--sequences 16 1] [--small] [--json FILE]

Prints the median ratio with its interval of confidence and, for the asyncio loop in the embedding process, how late it
was while boundedgen worked; then the same lag with the raw loop stepping in a thread of that process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import tempfile
import time
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import engine_beside
from attrs import define, field
from raw_loop import RawLoop, load
from workload import Workload, small, smollm2

import boundedgen
from boundedgen._engine._host import GenAIHost
from boundedgen._text import GenAITokenizer

TICK = 0.02  #: seconds between two looks at the loop's clock; looking more often would itself cost throughput


class Contest:
    """A pipeline, and the raw loop in its engine's process."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name, "rounds"))
        os.environ[engine_beside.ADDRESS] = address
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
        )
        limits = boundedgen.Limits(running_max=work.sequences)
        with Listener(address) as listener:
            host = GenAIHost(
                work.model,
                work.scheduler(),
                "CPU",
                {},
                tokenizer_properties={},
                limits=limits,
                tokenizer=lambda: GenAITokenizer(work.model, {}),
                module=engine_beside.__name__,
            )
            self.pipeline = boundedgen.BoundedPipeline(None, engine=host, limits=limits)
            self._engine = listener.accept()
        self._pid = self._engine.recv()
        self.pipeline.wait_ready()

    def raw_round(self, prompts: list[list[int]]) -> float:
        """Tokens a second."""
        self._engine.send({"prompts": prompts, "new": self._work.new})
        os.kill(self._pid, signal.SIGUSR1)
        answer = self._engine.recv()
        return float(answer["tokens"] / answer["seconds"])

    def close(self) -> None:
        self.pipeline.close()
        self._engine.close()
        self._folder.cleanup()


async def consume(pipeline: boundedgen.BoundedPipeline, prompt: list[int], new: int, stream: bool) -> int:
    tokens = 0
    async with pipeline.submit(prompt, max_new_tokens=new, ignore_eos=True) as generation:
        if not stream:
            return (await generation).completion_tokens
        async for chunk in generation:
            tokens += len(chunk.token_ids)
    return tokens


async def lag(lags: list[float]) -> None:
    """How late the loop comes back, again and again."""
    while True:
        due = time.monotonic() + TICK
        await asyncio.sleep(TICK)
        lags.append(time.monotonic() - due)


async def bounded_round(
    pipeline: boundedgen.BoundedPipeline, work: Workload, prompts: list[list[int]], lags: list[float], stream: bool
) -> float:
    """Tokens a second; a coroutine for each sequence streams and detokenizes it, or waits for its completion."""
    watcher = asyncio.create_task(lag(lags))
    began = time.monotonic()
    tokens = sum(await asyncio.gather(*(consume(pipeline, prompt, work.new, stream) for prompt in prompts)))
    seconds = time.monotonic() - began
    watcher.cancel()
    return tokens / seconds


async def raw_round(contest: Contest, prompts: list[list[int]]) -> float:
    """Tokens a second, beside a loop that is watched as in the other rounds: looking costs up to a per cent."""
    watcher = asyncio.create_task(lag([]))
    rate = await asyncio.to_thread(contest.raw_round, prompts)
    watcher.cancel()
    return rate


@define
class Rates:
    """Tokens a second, pair by pair, and how late the parent's loop was meanwhile, in seconds."""

    raw: list[float] = field(factory=list)
    bounded: list[float] = field(factory=list)
    lags: list[float] = field(factory=list)


def live(work: Workload, pairs: int, stream: bool, life: int, into: Rates) -> None:
    """Interleaved rounds in a fresh engine process; who goes first changes."""
    with contextlib.closing(Contest(work)) as contest:
        asyncio.run(raw_round(contest, work.prompts(0)))
        asyncio.run(bounded_round(contest.pipeline, work, work.prompts(0), [], stream))
        for pair in range(pairs):
            prompts = work.prompts(1 + life * pairs + pair)
            for bounded in (True, False) if (life + pair) % 2 else (False, True):
                if bounded:
                    rate = asyncio.run(bounded_round(contest.pipeline, work, prompts, into.lags, stream))
                    into.bounded.append(rate)
                else:
                    into.raw.append(asyncio.run(raw_round(contest, prompts)))


def compare(work: Workload, pairs: int, lives: int, stream: bool) -> dict[str, Any]:
    """Over `lives` fresh engine processes."""
    rates = Rates()
    for life in range(lives):
        live(work, -(-pairs // lives), stream, life, rates)
    ratios = [bounded / raw for bounded, raw in zip(rates.bounded, rates.raw, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "workload": work.name,
        "readers": "stream and detokenize" if stream else "await the completion",
        "pairs": len(ratios),
        "lives": lives,
        "raw_tokens_per_s": statistics.median(rates.raw),
        "tokens_per_s": statistics.median(rates.bounded),
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "ratio_interval": interval(ratios),
        "loop_lag_p50_ms": 1000 * statistics.median(rates.lags),
        "loop_lag_p99_ms": 1000 * statistics.quantiles(rates.lags, n=100)[98],
    }


def interval(ratios: list[float]) -> tuple[float, float]:
    """In which the median lies with 95 %, by resampling."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[49], medians[1949]


def lag_in_process(work: Workload) -> float:
    """p99 in ms of the same loop when the raw loop steps in a thread of its process."""
    loop = RawLoop(load(work.model, work.scheduler()))
    loop.round(work.prompts(0), work.new)
    lags: list[float] = []

    async def watch() -> None:
        watcher = asyncio.create_task(lag(lags))
        await asyncio.to_thread(loop.round, work.prompts(1), work.new)
        watcher.cancel()

    asyncio.run(watch())
    return 1000 * statistics.quantiles(lags, n=100)[98]


def show(row: dict[str, Any]) -> None:
    low, high = row["ratio_interval"]
    print(
        f"{row['workload']}, readers {row['readers']}: raw {row['raw_tokens_per_s']:.1f} tok/s, boundedgen "
        f"{row['tokens_per_s']:.1f} tok/s, median ratio {row['ratio']:.3f} (95 %: {low:.3f} to {high:.3f}) over "
        f"{row['pairs']} pairs in {row['lives']} engine processes; loop lag "
        f"p50 {row['loop_lag_p50_ms']:.1f} ms, p99 {row['loop_lag_p99_ms']:.1f} ms "
        f"(raw loop in a thread of the process: p99 {row['loop_lag_in_process_p99_ms']:.0f} ms)",
        flush=True,
    )


def machine() -> dict[str, Any]:
    import openvino_genai

    versions = {"python": platform.python_version(), "openvino_genai": openvino_genai.__version__}
    return {"cores": os.cpu_count(), "boundedgen": boundedgen.__version__, **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--lives", type=int, default=5, help="engine processes over which the pairs are spread")
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 1])
    parser.add_argument("--readers", choices=("await", "stream"), nargs="+", default=["await", "stream"])
    parser.add_argument("--small", action="store_true", help="the project's own small model instead of SmolLM2")
    parser.add_argument("--json", help="write the figures there")
    arguments = parser.parse_args()
    model, vocab, new = (small(), 259, 256) if arguments.small else (smollm2(), 40_000, 64)
    rows = []
    for sequences in arguments.sequences:
        name = f"{'small' if arguments.small else 'SmolLM2'}-{sequences}"
        work = Workload(name, model, sequences, 64, new, vocab)
        in_process = lag_in_process(work)
        for readers in arguments.readers:
            row = compare(work, arguments.pairs, arguments.lives, stream=readers == "stream")
            row["loop_lag_in_process_p99_ms"] = in_process
            rows.append(row)
            show(row)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
