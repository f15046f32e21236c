"""How late callers are answered at their deadlines, in every state of the engine; and how soon a stopped one has left.

    python benchmarks/lateness.py [--samples 1000] [--states NAME …] [--short] [--json FILE]

Some twenty generations wait for their deadlines at any time, ten milliseconds apart; a coroutine for each notes when it
is told. The parent does nothing else; then a state is measured again beside busy threads of Python. Real engines
decode and prefill; the others are real processes with a simulated engine, that hang, are stopped, boot or die.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import figures
from attrs import define, field
from figures import Figure
from workload import on_small, on_smollm2, small, smollm2

import boundedgen as b
from boundedgen._engine._host import GenAIHost
from boundedgen.testing import SimTokenizer
from boundedgen.testing._faulty_child import MODULE

sys.path.append(str(Path(__file__).parent.parent))

from deep.lateness import Lateness

PART = "lateness"
LIFE, EVERY = 0.2, 0.01  #: seconds: of a generation, and between two of them
FOREVER = 3600.0
PATIENT: dict[str, Any] = {"step": FOREVER, "step_max": FOREVER, "progress": FOREVER, "ack": FOREVER, "boot": FOREVER}
LONG: dict[str, Any] = {"max_new_tokens": 1000, "ignore_eos": True}
BUSY = (1, 3)  #: threads
BUSY_BESIDE = "hanging"
TARGET = "<= 5"


def simulated(**fault: Any) -> b.BoundedPipeline:
    limits = b.Limits(running_max=16, **PATIENT)
    host = GenAIHost(
        None,
        {"num_kv_blocks": 4096, "max_num_seqs": 16},
        "CPU",
        {},
        tokenizer_properties={},
        limits=limits,
        tokenizer=SimTokenizer,
        module=MODULE,
        fault=fault,
    )
    restart = b.RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)
    return b.BoundedPipeline(None, engine=host, limits=limits, restart=restart, admission=b.Admission(margin=None))


def real(model: str, **scheduler: Any) -> b.BoundedPipeline:
    settings = {"num_kv_blocks": 2048, "max_num_seqs": 16, **scheduler}
    return b.BoundedPipeline(
        model, settings, "CPU", limits=b.Limits(running_max=16), admission=b.Admission(margin=None)
    )


# --- states ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def beside(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def decoding() -> AsyncIterator[b.BoundedPipeline]:
    async with real(small()) as pipeline:
        yield pipeline


@contextlib.asynccontextmanager
async def prefilling() -> AsyncIterator[b.BoundedPipeline]:
    """Prompts of 1,500 tokens in steps of their own, one after the other, on all processors."""
    work = on_smollm2(1, 1500, 2)

    async def prompts(pipeline: b.BoundedPipeline) -> None:
        while True:
            await pipeline.agenerate(work.prompts(0)[0], max_new_tokens=work.new, ignore_eos=True)

    async with real(smollm2(), max_num_batched_tokens=work.prompt) as pipeline, beside(prompts(pipeline)):
        yield pipeline


@contextlib.asynccontextmanager
async def stepping() -> AsyncIterator[b.BoundedPipeline]:
    """Steps of 20 ms that take no processor, as on a device of its own."""
    async with simulated(step_s=0.02) as pipeline:
        yield pipeline


@contextlib.asynccontextmanager
async def hanging() -> AsyncIterator[b.BoundedPipeline]:
    async with simulated(hang_at=1) as pipeline:
        yield pipeline
        pipeline.close()  # without a drain


@contextlib.asynccontextmanager
async def stopped() -> AsyncIterator[b.BoundedPipeline]:
    async with simulated(step_s=0.001) as pipeline:
        os.kill(engine_pid(pipeline), signal.SIGSTOP)
        yield pipeline
        pipeline.close()


@contextlib.asynccontextmanager
async def booting() -> AsyncIterator[b.BoundedPipeline]:
    """Its engine was killed, and the next one takes for ever."""
    async with simulated(incarnations=[2], boot_s=FOREVER) as pipeline:
        os.kill(engine_pid(pipeline), signal.SIGKILL)
        yield pipeline
        pipeline.close()


@contextlib.asynccontextmanager
async def dying() -> AsyncIterator[b.BoundedPipeline]:
    """Each engine is killed as soon as it serves."""

    async def kill(pipeline: b.BoundedPipeline) -> None:
        while True:
            with contextlib.suppress(b.BoundedGenError, ProcessLookupError, AssertionError):
                await pipeline.await_ready()
                os.kill(engine_pid(pipeline), signal.SIGKILL)
            await asyncio.sleep(0.05)

    async with simulated(step_s=0.001) as pipeline, beside(kill(pipeline)):
        yield pipeline


STATES = {state.__name__: state for state in (decoding, prefilling, stepping, hanging, stopped, booting, dying)}


def engine_pid(pipeline: b.BoundedPipeline) -> int:
    pid = pipeline.stats().engine_pid
    assert pid is not None
    return pid


# --- samples -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy(threads: int) -> Iterator[None]:
    """So many threads of Python that compute."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    started = [threading.Thread(target=compute) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in started:
            thread.join()


@define
class Answers:
    """When each was due and its caller knew; those that ended otherwise are not among them."""

    at: list[tuple[float, float]] = field(factory=list)
    machine: Lateness = field(factory=Lateness)

    def late(self) -> list[float]:
        """Milliseconds."""
        return [1000 * (at - due) for due, at in self.at]

    def late_of_themselves(self) -> list[float]:
        """Without the time in which threads of this process were ready to run and had no processor."""
        return [1000 * max(0.0, at - due - self.machine.of(due, at)) for due, at in self.at]


async def answers(pipeline: b.BoundedPipeline, samples: int) -> Answers:
    found = Answers()

    async def one() -> None:
        generation = pipeline.submit([5, 6, 7, 8], bounds=b.Bounds(total=LIFE), **LONG)
        due = generation.deadline.at
        await generation.wait()
        at = time.monotonic()
        if generation.finish_reason is b.FinishReason.DEADLINE:
            found.at.append((due, at))

    with found.machine:
        async with asyncio.TaskGroup() as group:
            for _ in range(samples):
                group.create_task(one())
                await asyncio.sleep(EVERY)
    return found


async def measured(state: str, samples: int, threads: int) -> Answers:
    async with STATES[state]() as pipeline:
        await answers(pipeline, min(20, samples))
        with busy(threads):
            return await answers(pipeline, samples)


def at_deadlines(state: str, samples: int, threads: int = 0) -> list[Figure]:
    found = asyncio.run(measured(state, samples, threads))
    if not found.at:
        sys.exit(f"{PART}: engine {state}: none of {samples} was ended by its deadline")
    late, of_itself = found.late(), figures.quantile(found.late_of_themselves(), 0.99)
    beside_ = f", {threads} busy thread{'s' * (threads > 1)}" if threads else ""
    note = f"p50 {figures.quantile(late, 0.5):.2f} ms, largest {max(late):.2f} ms, {len(late)} samples"
    note += f"; p99 without waiting for a processor {of_itself:.2f} ms"
    target, together = "" if threads else TARGET, figures.blocks(late, round(LIFE / EVERY))
    return [figures.sampled(PART, f"engine {state}{beside_}: p99", together, "ms", 0.99, target=target, note=note)]


# --- releases ----------------------------------------------------------------------------------------------------


def releases(name: str, pipeline: b.BoundedPipeline, rounds: int) -> list[Figure]:
    """Eight at once are cancelled in mid-stream, one after the other."""
    proofs: list[b.Reclamation] = []
    with pipeline:
        for _ in range(rounds):
            held = [pipeline.submit([5, 6, 7, 8], **LONG) for _ in range(8)]
            for generation in held:
                next(iter(generation))
                generation.cancel()
            proofs += [generation.wait_reclaimed(30) for generation in held]
    steps = [float(proof.steps) for proof in proofs]
    note = f"{len(steps)} cancelled in mid-stream"
    return [
        figures.sampled(PART, f"{name}: stop to proved release, median", steps, "steps", target="<= 1", note=note),
        Figure(PART, f"{name}: stop to proved release, most", max(steps), "steps", target="<= 2", note=note),
    ]


def measure(given: argparse.Namespace) -> list[Figure]:
    if given.short:
        return at_deadlines("hanging", 20) + at_deadlines("hanging", 10, 1) + releases("small", real(small()), 1)
    found: list[Figure] = []
    for state in given.states:
        found += at_deadlines(state, given.samples)
    for threads in BUSY if BUSY_BESIDE in given.states else ():
        found += at_deadlines(BUSY_BESIDE, given.samples, threads)
    found += releases("small", real(on_small(1).model), 100)
    found += releases("SmolLM2", real(smollm2()), 10)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=figures.count, default=1000, help="of each state")
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))


if __name__ == "__main__":
    figures.alone(__doc__, measure, options)
