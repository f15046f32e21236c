"""A pipeline with nothing to do does nothing, and is there at once when there is something."""

from __future__ import annotations

import contextlib
import os
import time

import psutil
import pytest
from process.lanes import engine_pid, plain_lane, simulated_lane

from boundedgen import BoundedPipeline, FinishReason, LeaseLost

pytestmark = pytest.mark.timeout(110)

LOOKED_AT_FOR = 10.0


def cpu_s(*pids: int) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(t.user + t.system for t in times))


def served(lane: BoundedPipeline) -> float:
    """Seconds until a request of three tokens is answered."""
    began = time.monotonic()
    completion = lane.generate([5, 6, 7], max_new_tokens=3, ignore_eos=True, timeout=10)
    assert completion.finish_reason is FinishReason.LENGTH
    return time.monotonic() - began


@pytest.mark.slow
def test_field_report_81_an_idle_pipeline_uses_less_than_a_hundredth_of_a_core() -> None:
    """Parent and child together, after work, with a lease and a held handle; then it answers at once."""
    with contextlib.closing(plain_lane()) as lane:
        lane.wait_ready()
        handle = lane.submit([5, 6, 7], max_new_tokens=3)
        lease = lane.lease("somebody", ttl=3600)
        handle.wait_reclaimed(10)
        time.sleep(0.5)
        pids = (os.getpid(), engine_pid(lane))
        before, began = cpu_s(*pids), time.monotonic()
        time.sleep(LOOKED_AT_FOR)
        share = (cpu_s(*pids) - before) / (time.monotonic() - began)
        answered = served(lane)
        print(f"\nidle: {share:.2%} of a core; then answered in {answered * 1e3:.0f} ms")
        assert share < 0.01
        assert answered < 1.0
        assert lease.live


@pytest.mark.slow
def test_field_report_42_a_pipeline_answers_at_once_after_idleness_of_any_length() -> None:
    """The longest is a minute; the engine and everything else is where it was."""
    with contextlib.closing(plain_lane()) as lane:
        lane.wait_ready()
        pid = engine_pid(lane)
        served(lane)
        for idle in (1.0, 5.0, 61.0):
            time.sleep(idle)
            answered = served(lane)
            print(f"\nafter {idle:.0f} s: {answered * 1e3:.0f} ms")
            assert answered < 1.0
        assert engine_pid(lane) == pid
        assert lane.stats().restarts_total == 0


def test_field_report_81_a_lease_expires_on_time_while_the_engine_has_nothing_else_to_do() -> None:
    """The only other thing inside is asleep in a step of a minute, so that nothing wakes the driver but its timers."""
    with contextlib.closing(simulated_lane({"slow_at": 1, "slow_s": 60, "gil": True})) as lane:
        lane.wait_ready()
        with lane.lease("somebody", ttl=0.5) as lease:
            generation = lane.submit([5], max_new_tokens=3, lease=lease)
            began = time.monotonic()
            with pytest.raises(LeaseLost):
                generation.result(5)
            assert 0.4 < time.monotonic() - began < 1.5
