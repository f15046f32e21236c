"""Deadlines are kept whatever the engine does: measured to the driver's stamp and to the caller's wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from process.lanes import (
    AT_ONCE,
    MODELS,
    Stall,
    engine_pid,
    in_ms,
    percentile,
    pulse,
    simulated_lane,
    stopped,
    until_in_step,
)

from boundedgen import BoundedPipeline, Bounds, DeadlineExceeded, Limits

pytestmark = [pytest.mark.timeout(110), pytest.mark.slow]

GATE = 0.020
PATIENT = Limits(step=100.0, step_max=300.0, ack=100.0, reclaim=100.0, progress=100.0, running_max=16)
CALLERS = 20
TRIES = 5


class Lateness:
    """Of each deadline: seconds until the driver settled it, and until its caller had the answer."""

    def __init__(self) -> None:
        self.driver: list[float] = []
        self.caller: list[float] = []

    def note(self, lane: BoundedPipeline, within: float) -> None:
        generation = lane.submit([5, 6, 7], max_new_tokens=1000, ignore_eos=True, bounds=Bounds(total=within))
        with pytest.raises(DeadlineExceeded):
            generation.result(30)
        self._note(time.monotonic(), generation)

    async def anote(self, lane: BoundedPipeline, within: float) -> None:
        generation = lane.submit([5, 6, 7], max_new_tokens=1000, ignore_eos=True, bounds=Bounds(total=within))
        with pytest.raises(DeadlineExceeded):
            await generation
        self._note(time.monotonic(), generation)

    def _note(self, woken: float, generation: object) -> None:
        flow, due = generation._flow, generation.deadline.at  # type: ignore[attr-defined]
        self.driver.append(flow.settled_at - due)
        self.caller.append(woken - due)

    def show(self, title: str, stall: Stall) -> None:
        print(f"\n{title}: {len(self.driver)} deadlines")
        print(f"  driver  {in_ms(self.driver)}\n  caller  {in_ms(self.caller)}\n  machine {in_ms(stall.late)}")

    def excess(self, stall: Stall, count: int) -> float:
        """Seconds by which the worse p99 is over the gate, the machine's own lateness allowed for."""
        assert len(self.driver) == len(self.caller) == count
        assert min(self.driver) >= 0.0, "settled before its deadline"
        return max(percentile(self.driver, 0.99), percentile(self.caller, 0.99)) - GATE - stall.p99


def measured(lane: BoundedPipeline, count: int, longest: float = 0.4) -> Lateness:
    """`count` deadlines, from threads that each wait for one after the other."""
    lateness, draw = Lateness(), random.Random(7)
    waits = [[draw.uniform(0.02, longest) for _ in range(count // CALLERS)] for _ in range(CALLERS)]

    def caller(mine: list[float]) -> None:
        for within in mine:
            lateness.note(lane, within)

    threads = [threading.Thread(target=caller, args=(mine,)) for mine in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lateness


def gated(title: str, count: int, measure: Callable[[], Lateness]) -> None:
    """Measured at most TRIES times: whoever shares the machine's cores can spoil one measurement, not all."""
    excess = []
    for _ in range(TRIES):
        with Stall() as stall:
            lateness = measure()
        lateness.show(title, stall)
        excess.append(lateness.excess(stall, count))
        if excess[-1] <= 0:
            return
    raise AssertionError(f"{title}: p99 over the gate by {[f'{e * 1e3:.1f} ms' for e in excess]}")


async def measured_async(lane: BoundedPipeline, count: int, longest: float) -> Lateness:
    """`count` deadlines at once, each awaited by a coroutine of its own, between 0.8 and `longest` seconds."""
    lateness, draw = Lateness(), random.Random(11)
    await asyncio.gather(*(lateness.anote(lane, draw.uniform(0.8, longest)) for _ in range(count)))
    return lateness


@contextlib.contextmanager
def in_a_long_step() -> Iterator[BoundedPipeline]:
    """The engine has begun a step of a minute that holds its interpreter's lock."""
    with contextlib.closing(simulated_lane({"slow_at": 1, "slow_s": 60, "gil": True}, limits=PATIENT)) as lane:
        lane.wait_ready()
        with lane.submit([5], max_new_tokens=5):
            until_in_step(lane)
            yield lane


def test_deadlines_are_kept_within_20_ms_while_the_engine_is_inside_a_long_step() -> None:
    with in_a_long_step() as lane:
        begun = pulse(lane).steps_begun
        gated("inside a long step", 1000, lambda: measured(lane, 1000))
        assert pulse(lane).steps_begun == begun, "the step was to last longer than the measurement"
        assert lane.stats().restarts_total == 0


def test_deadlines_are_kept_within_20_ms_while_the_engine_is_stopped() -> None:
    with contextlib.closing(simulated_lane(limits=PATIENT)) as lane:
        lane.wait_ready()
        lane.generate([5], max_new_tokens=3)
        with stopped(engine_pid(lane)):
            gated("engine stopped", 1000, lambda: measured(lane, 1000))
        assert lane.stats().restarts_total == 0


def test_coroutines_are_answered_within_20_ms_of_their_deadlines_while_the_engine_is_inside_a_long_step() -> None:
    with in_a_long_step() as lane:
        gated("1000 coroutines", 1000, lambda: asyncio.run(measured_async(lane, 1000, 7.0)))


def test_deadlines_are_kept_within_20_ms_while_the_real_engine_works_through_a_prefill_of_seconds() -> None:
    """The prefill takes every core that the engine gets: the machine's own lateness is part of what is measured.

    As many deadlines as the loop can submit well before the first of them, also on half a core.
    """
    settings = {"num_kv_blocks": 1200, "max_num_batched_tokens": 40_000, "enable_prefix_caching": False}
    limits = Limits(running_max=4, step=100.0)
    with contextlib.closing(BoundedPipeline(MODELS / "plain", settings, "CPU", limits=limits, restart=AT_ONCE)) as lane:
        lane.wait_ready()

        def during_a_prefill() -> Lateness:
            with lane.submit([10] * 36_000, max_new_tokens=2) as long:
                until_in_step(lane, for_s=0.1)
                lateness = asyncio.run(measured_async(lane, 400, 1.2))
                assert pulse(lane).in_step, "the prefill was to last longer than the measurement"
            long.wait_reclaimed(60)
            return lateness

        gated("real prefill", 400, during_a_prefill)
        assert lane.stats().restarts_total == 0


@pytest.mark.parametrize("busy", [1, 3])
def test_deadlines_are_kept_and_their_lateness_printed_with_busy_threads_in_the_interpreter(busy: int) -> None:
    """Not gated at 20 ms: Python hands its lock over only every 5 ms, and to one thread after the other."""
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            sum(range(200))

    with in_a_long_step() as lane:
        burners = [threading.Thread(target=burn) for _ in range(busy)]
        for burner in burners:
            burner.start()
        try:
            with Stall() as stall:
                lateness = measured(lane, 300)
        finally:
            over.set()
            for burner in burners:
                burner.join()
    lateness.show(f"{busy} busy threads", stall)
    assert len(lateness.caller) == 300
    assert max(lateness.caller) < 5.0
