"""What many cost: the step rate beside a crowd that waits, `stats()`, memory of a generation, a million of them.

    python benchmarks/scale.py [--cycles 10] [--crowd 10000] [--leases 1000] [--generations N] [--short] [--json F]

The step rate is that of 16 clients in a closed loop on the small model, with and without the crowd, second by second in
turn. Memory and the million are those of the whole pipeline over a simulated engine, in simulated time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import figures
from attrs import define, field
from figures import Figure
from workload import Workload, on_small

import boundedgen as b
from boundedgen.testing import SimModel, Simulation

PART = "scale"
PROMPT = [5, 6, 7, 8]
WINDOW = 1.0  #: seconds
STATS = 500  #: calls, in each cycle
RESIDENT = 40_000  #: tokens of the one that is there all the time
PATIENCE = 60.0  #: seconds until all of the crowd waits, and until none does
MIB = 1 << 20


# --- beside a crowd ----------------------------------------------------------------------------------------------


class Lane:
    """Clients in a closed loop, and a crowd that can never enter beside them: each of it wants the whole cache."""

    def __init__(self, work: Workload, crowd: int, leases: int) -> None:
        self._work, self._crowd, self._leases = work, crowd, leases
        scheduler = work.scheduler()
        self._blocks = scheduler["num_kv_blocks"] + RESIDENT // 32 + 1
        scheduler |= {"num_kv_blocks": self._blocks, "max_num_seqs": work.sequences + 1}
        limits = b.Limits(running_max=work.sequences + 1, waiting_max=crowd + 100, leases_max=leases + 100)
        admission = b.Admission(margin=None, ageing=1e9)
        self.pipeline = b.BoundedPipeline(work.model, scheduler, "CPU", limits=limits, admission=admission)

    async def client(self, number: int) -> None:
        prompt = self._work.prompts(0)[number]
        while True:
            await self.pipeline.submit(prompt, max_new_tokens=self._work.new, ignore_eos=True, priority=10)

    def resident(self) -> b.Generation:
        """It is there all the time: all clients may end in one step, and there would be room for one of the crowd."""
        return self.pipeline.submit(PROMPT, max_new_tokens=RESIDENT, ignore_eos=True, priority=20)

    def crowd(self) -> tuple[list[b.Lease], list[b.Generation]]:
        leases = [self.pipeline.lease(f"owner {n}", ttl=600.0) for n in range(self._leases)]
        whole = 32 * (self._blocks - 1) - len(PROMPT)
        return leases, [
            self.pipeline.submit(PROMPT, max_new_tokens=whole, lease=leases[n % len(leases)])
            for n in range(self._crowd)
        ]

    async def rate(self, seconds: float) -> float:
        """Steps a second."""
        began, before = time.monotonic(), self.pipeline.stats().steps_total
        await asyncio.sleep(seconds)
        return (self.pipeline.stats().steps_total - before) / (time.monotonic() - began)

    async def until_waiting(self, least: int, most: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while not least <= self.pipeline.stats().waiting <= most:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@define
class Beside:
    alone: list[float] = field(factory=list)
    crowded: list[float] = field(factory=list)
    stats: dict[str, list[list[float]]] = field(factory=dict)  #: microseconds, by state, cycle by cycle


def stats_us(pipeline: b.BoundedPipeline) -> list[float]:
    taken = []
    for _ in range(STATS):
        began = time.perf_counter()
        pipeline.stats()
        taken.append(1e6 * (time.perf_counter() - began))
    return taken


async def beside_a_crowd(lane: Lane, sequences: int, crowd: int, cycles: int, window: float) -> Beside:
    found = Beside()
    async with lane.pipeline:
        for _ in range(cycles):
            found.stats.setdefault("idle", []).append(stats_us(lane.pipeline))
            await asyncio.sleep(window / cycles)
        clients = [asyncio.create_task(lane.client(number)) for number in range(sequences)]
        await asyncio.sleep(window)
        for _ in range(cycles):
            resident = lane.resident()
            found.alone.append(await lane.rate(window))
            found.stats.setdefault("serving", []).append(stats_us(lane.pipeline))
            leases, generations = lane.crowd()
            await lane.until_waiting(crowd, crowd + sequences)
            found.crowded += [await lane.rate(window), await lane.rate(window)]
            found.stats.setdefault("crowded", []).append(stats_us(lane.pipeline))
            for lease in leases:
                lease.revoke()
            await lane.until_waiting(0, sequences)
            del generations
            found.alone.append(await lane.rate(window))
            assert resident.finish_reason is None, "it was to be there all the time"
            resident.cancel()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return found


def crowded(given: argparse.Namespace) -> list[Figure]:
    work = on_small(4, 16, 64) if given.short else on_small(16)
    crowd, leases, cycles, window = (
        (100, 10, 1, 0.1) if given.short else (given.crowd, given.leases, given.cycles, WINDOW)
    )
    lane = Lane(work, crowd, leases)
    found = asyncio.run(beside_a_crowd(lane, work.sequences, crowd, cycles, window))
    lost = [100 * (1 - with_ / without) for with_, without in zip(found.crowded, found.alone, strict=True)]
    note = f"{statistics.median(found.alone):.0f} steps/s without, {len(lost)} pairs of {window:g} s"
    name = f"step rate lost beside {crowd} that wait and {leases} leases"
    return [
        figures.sampled(PART, name, lost, "%", target="< 2", note=note),
        *(
            figures.sampled(PART, f"stats(), {state}", taken, "us", target="<= 5")
            for state, taken in found.stats.items()
        ),
    ]


# --- memory ------------------------------------------------------------------------------------------------------


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def memory(many: int) -> list[Figure]:
    """Bytes of Python objects in the whole pipeline, with a prompt of four tokens; the engine's share is its own."""
    limits = b.Limits(running_max=16, waiting_max=many + 16, ended_kept=0, recorded=0)
    tracemalloc.start()
    with Simulation(limits=limits, admission=b.Admission(margin=None)) as simulation:
        _ended(simulation, 16)
        before = traced()
        held = [simulation.pipeline.submit(PROMPT, max_new_tokens=1) for _ in range(many)]
        simulation.advance(0)
        live = traced()
        simulation.run_until(lambda: simulation.pipeline.stats().running + simulation.pipeline.stats().waiting == 0)
        simulation.advance(1)
        ended = traced()
        assert all(generation.finish_reason is not None for generation in held)
        del held
        gone = traced()
    tracemalloc.stop()
    each = {"live, it waits": live, "ended, its handle is held": ended, "ended, nobody holds it": gone}
    return [
        Figure(PART, f"memory of a generation: {what}", (now - before) / many, "bytes", note=f"{many} of them")
        for what, now in each.items()
    ]


def _ended(simulation: Simulation, many: int) -> None:
    for generation in [simulation.pipeline.submit(PROMPT, max_new_tokens=1) for _ in range(many)]:
        generation.result()


# --- a million ---------------------------------------------------------------------------------------------------


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def a_million(generations: int) -> list[Figure]:
    """Short ones, in waves; what has grown from the second quarter of them to the last."""
    model = SimModel(running_max=64, step_s=0.001, token_s=0.0)
    wave, samples = 64, 40
    rss: list[float] = []
    objects: list[int] = []
    began = time.monotonic()
    limits = b.Limits(recorded=100)  # its pages fill and are turned, which is no growth: let them be small
    with Simulation(model=model, limits=limits, admission=b.Admission(margin=None)) as simulation:
        for _ in range(samples):
            for _ in range(max(1, generations // samples // wave)):
                _ended(simulation, wave)
            gc.collect()
            rss.append(rss_mib())
            objects.append(len(gc.get_objects()))
            assert simulation.pipeline.stats().submitted_total == simulation.pipeline.stats().finished_total["length"]
        done = simulation.pipeline.stats().submitted_total
    note = f"{done} generations in {time.monotonic() - began:.0f} s"
    return [
        Figure(PART, "grown over short generations: memory", _grown(rss), "MiB", target="<= 1", note=note),
        Figure(PART, "grown over short generations: objects", _grown(objects), "", target="<= 100", note=note),
    ]


def _grown(values: list[Any]) -> float:
    quarter = len(values) // 4
    return float(statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter]))


def measure(given: argparse.Namespace) -> list[Figure]:
    many, generations = (200, 2560) if given.short else (5000, given.generations)
    return crowded(given) + memory(many) + a_million(generations)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cycles", type=figures.count, default=10)
    parser.add_argument("--crowd", type=figures.count, default=10_000)
    parser.add_argument("--leases", type=figures.count, default=1000)
    parser.add_argument("--generations", type=figures.count, default=1_000_000)


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
