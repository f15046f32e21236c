"""Neither side ever blocks in a write: long prompts for an engine in a long step, reports that nobody reads."""

from __future__ import annotations

import contextlib
import time

import pytest
from process.lanes import at_rest, engine_pid, simulated_lane, until, until_in_step

from boundedgen import Bounds, DeadlineExceeded, Limits

pytestmark = pytest.mark.timeout(60)

PROMPT = [5] * 30_000  #: four times what a pipe holds


def test_a_prompt_of_30000_tokens_is_submitted_at_once_while_the_engine_is_inside_a_long_step() -> None:
    with contextlib.closing(simulated_lane({"slow_at": 4, "slow_s": 4, "gil": True})) as lane:
        lane.wait_ready()
        with lane.submit([5], max_new_tokens=30_000, ignore_eos=True):
            until_in_step(lane, for_s=0.1)
            generations, took = [], []
            for _ in range(4):
                began = time.monotonic()
                generations.append(lane.submit(PROMPT, max_new_tokens=3, ignore_eos=True, bounds=Bounds(total=30)))
                took.append(time.monotonic() - began)
            print(f"\nsubmitted in {max(took) * 1e3:.0f} ms")
            assert max(took) < 0.5
            due = lane.submit(PROMPT, max_new_tokens=3, bounds=Bounds(total=1.0))
            with pytest.raises(DeadlineExceeded):
                due.result(10)
            assert due.partial.total_s < 1.1
            assert lane.stats().step_current_s > 1.0, "the step was to last longer"
            assert max(generation.result(30).completion_tokens for generation in generations) == 3
        at_rest(lane)
        assert lane.stats().restarts_total == 0


def test_an_engine_whose_reports_nobody_reads_goes_on_stepping_and_stops_what_is_due() -> None:
    """The driver is kept from its work for 3 s; the child's pipe is full long before."""
    limits = Limits(step=1.0, ack=1.0, progress=1.0, reclaim=1.0, running_max=16)
    with contextlib.closing(simulated_lane(limits=limits)) as lane:
        lane.wait_ready()
        generations = [
            lane.submit([number], max_new_tokens=10_000, ignore_eos=True, bounds=Bounds(total=1.0))
            for number in range(8)
        ]
        endless = [lane.submit([number], max_new_tokens=4_000, ignore_eos=True) for number in range(4)]
        until(lambda: all(g.partial.token_ids for g in generations))
        link = lane._driver.link
        assert link is not None
        lane._driver.post("clear", _Sleepy(3.0))
        time.sleep(0.2)
        steps = link.pulse().steps_ended
        time.sleep(1.5)
        assert link.pulse().steps_ended > steps + 100, "the engine stood still with its pipe"
        for generation in generations:
            with pytest.raises(DeadlineExceeded):
                generation.result(10)
        for generation in endless:
            assert generation.result(30).completion_tokens == 4_000
        at_rest(lane)
        assert (lane.stats().restarts_total, engine_pid(lane)) == (0, link.pid)


class _Sleepy(int):
    """A command's argument that keeps the driver busy: looking it up takes seconds."""

    def __new__(cls, seconds: float) -> _Sleepy:
        made = super().__new__(cls, 0)
        made.seconds = seconds
        return made

    seconds: float

    def __hash__(self) -> int:
        time.sleep(self.seconds)
        return 0


def test_an_engine_that_is_noisy_on_its_own_output_is_never_blocked_by_it() -> None:
    with contextlib.closing(simulated_lane({"flood_at": 3, "flood_bytes": 1 << 26})) as lane:
        lane.wait_ready()
        assert lane.generate([5], max_new_tokens=100, ignore_eos=True, timeout=30).completion_tokens == 100
        assert lane.stats().restarts_total == 0


def test_commands_beyond_the_outbox_wait_and_cost_nobody_anything() -> None:
    limits = Limits(outbox_bytes=1 << 16, running_max=16, step=100.0)
    fault = {"slow_at": 1, "slow_s": 2, "gil": True}
    with contextlib.closing(simulated_lane(fault, limits=limits)) as lane:
        lane.wait_ready()
        first = lane.submit([5], max_new_tokens=3)
        until_in_step(lane)
        others = [lane.submit(PROMPT, max_new_tokens=3, ignore_eos=True) for _ in range(10)]
        assert {g.result(30).completion_tokens for g in (first, *others)} == {3}
        assert lane.stats().restarts_total == 0
