"""What being looked at costs: tokens a second with and without 1,000 scrapes a second, in interleaved rounds.

    python benchmarks/scrapes.py [--rounds 20] [--rate 1000] [--models small SmolLM2] [--ways "stats()"] [--short]
        [--json FILE]

A thread of the server's process calls `stats()`, or makes all metrics (`collect()`), or the whole page of text that
Prometheus gets, so many times a second; or it does nothing, which shows what waking up so often costs. Pages cannot
come as often on every machine: the notes say how often they did, and what one took. With "one thread" the engine
leaves a processor to the server, as an engine on a GPU does.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import figures
from attrs import define, field
from figures import Figure
from prometheus_client import CollectorRegistry, generate_latest
from workload import Workload, on_small, on_smollm2

import boundedgen
from boundedgen.exporters.prometheus import PipelineCollector

PART = "scrapes"
MODELS: dict[str, Callable[[], Workload]] = {
    "small": partial(on_small, 16),
    "SmolLM2": partial(on_smollm2, 16, new=48),
    "small, one thread": partial(on_small, 16, threads=1),
    "SmolLM2, one thread": partial(on_smollm2, 16, new=48, threads=1),
}
SHORT = {"small": partial(on_small, 4, prompt=16, new=32)}


WAYS = ("nothing", "stats()", "collect()", "/metrics")


def ways(pipeline: boundedgen.BoundedPipeline) -> dict[str, Callable[[], object]]:
    """To look at it: those of WAYS."""
    registry, collector = CollectorRegistry(), PipelineCollector({"it": pipeline})
    registry.register(collector)
    return {
        "nothing": lambda: None,
        "stats()": pipeline.stats,
        "collect()": lambda: deque(collector.collect(), maxlen=0),
        "/metrics": lambda: generate_latest(registry),
    }


@define
class Scrapes:
    took: list[float] = field(factory=list)  #: microseconds, each
    lasted: float = 0.0  #: seconds, all rounds

    def note(self) -> str:
        per_s = len(self.took) / self.lasted
        return f"{per_s:.0f} a second; one took {statistics.median(self.took):.1f} us at the median"


@contextlib.contextmanager
def scraped(look: Callable[[], object], rate: float, into: Scrapes) -> Iterator[None]:
    """Meanwhile. One that takes longer than its share of the time is followed by the next at once."""
    over = threading.Event()

    def go_on() -> None:
        due = time.perf_counter()
        while not over.wait(max(0.0, due - time.perf_counter())):
            began = time.perf_counter()
            look()
            into.took.append(1e6 * (time.perf_counter() - began))
            due = max(due + 1 / rate, began)

    thread, began = threading.Thread(target=go_on), time.perf_counter()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        into.lasted += time.perf_counter() - began


def tokens_per_s(pipeline: boundedgen.BoundedPipeline, work: Workload, seed: int) -> float:
    began = time.perf_counter()
    done = pipeline.generate_many(work.prompts(seed), max_new_tokens=work.new, ignore_eos=True)
    return sum(answer.completion_tokens for answer in done) / (time.perf_counter() - began)


def compare(name: str, work: Workload, rounds: int, rate: float, asked: Sequence[str]) -> list[Figure]:
    """Who is looked at first, and in which way, changes from round to round."""
    limits = boundedgen.Limits(running_max=work.sequences)
    alone: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    with boundedgen.BoundedPipeline(work.model, work.scheduler(), "CPU", work.properties(), limits=limits) as pipeline:
        looks = {way: look for way, look in ways(pipeline).items() if way in asked}
        found = {way: Scrapes() for way in looks}
        tokens_per_s(pipeline, work, 0)
        for round_ in range(rounds):
            for way, look in looks.items():
                for watched in (round_ % 2 == 0, round_ % 2 == 1):
                    with scraped(look, rate, found[way]) if watched else contextlib.nullcontext():
                        (beside if watched else alone).setdefault(way, []).append(
                            tokens_per_s(pipeline, work, 1 + round_)
                        )
    targets = {"stats()": ">= 0.99"}
    return [
        figures.ratios(
            PART,
            f"{name}: {rate:g} {way} a second / none",
            beside[way],
            alone[way],
            target=targets.get(way, ""),
            note=scrapes.note(),
        )
        for way, scrapes in found.items()
    ]


def measure(given: argparse.Namespace) -> list[Figure]:
    models = SHORT if given.short else {name: MODELS[name] for name in given.models}
    rounds = 2 if given.short else given.rounds
    return [figure for name, work in models.items() for figure in compare(name, work(), rounds, given.rate, given.ways)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=figures.count, default=20)
    parser.add_argument("--rate", type=figures.rate, default=1000.0, help="scrapes a second")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
