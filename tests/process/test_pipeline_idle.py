"""A pipeline with nothing to do does nothing, and is there at once when there is something."""

from __future__ import annotations

import contextlib
import os
import time

import psutil
import pytest
from process.lanes import engine_pid, gone, plain_lane, simulated_lane, stopped, until

from boundedgen import BoundedPipeline, FinishReason, HealthState, LeaseLost, Limits, ProbeVerdict

pytestmark = pytest.mark.timeout(110)


def cpu_s(*pids: int) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(t.user + t.system for t in times))


LONGEST_S = float(os.environ.get("BOUNDEDGEN_IDLE_S", "10"))  #: `nox -s deep` is idle for more than a minute


def served(lane: BoundedPipeline) -> float:
    """Seconds until a request of three tokens is answered."""
    began = time.monotonic()
    completion = lane.generate([5, 6, 7], max_new_tokens=3, ignore_eos=True, timeout=10)
    assert completion.finish_reason is FinishReason.LENGTH
    return time.monotonic() - began


@pytest.mark.slow
def test_field_reports_42_and_81_idleness_costs_no_core_and_no_time_afterwards() -> None:
    """Parent and child together, after work, with a lease and a handle that is held; then it answers at once."""
    with contextlib.closing(plain_lane()) as lane:
        lane.wait_ready()
        handle = lane.submit([5, 6, 7], max_new_tokens=3)
        lease = lane.lease("somebody", ttl=3600)
        handle.wait_reclaimed(10)
        pids, answers = (os.getpid(), engine_pid(lane)), []
        for idle in (1.0, 2.0, LONGEST_S):
            before, began = cpu_s(*pids), time.monotonic()
            time.sleep(idle)
            share = (cpu_s(*pids) - before) / (time.monotonic() - began)
            answered = served(lane)
            print(f"\n{idle:.0f} s: {share:.2%} of a core, then answered in {answered * 1e3:.0f} ms")
            answers.append(answered)
            assert answered < 1.0
        assert min(answers) < 0.2, "one may have met a stall of the machine's, not all"
        assert share < 0.01
        assert lease.live
        assert (engine_pid(lane), lane.stats().restarts_total) == (pids[1], 0)


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


def test_an_engine_that_stands_still_in_an_idle_lane_is_found_and_replaced_by_the_lane_itself() -> None:
    """SIGSTOP, and nobody asks for anything: within probe_idle + ack it is killed, and the next one answers."""
    limits = Limits(probe_idle=1.0, probe_timeout=0.5, ack=1.5)
    with contextlib.closing(simulated_lane(limits=limits)) as lane:
        lane.wait_ready()
        until(lambda: lane.stats().last_probe is ProbeVerdict.OK, 10.0)
        pid = engine_pid(lane)
        with stopped(pid):
            began = time.monotonic()
            until(lambda: lane.health().state is HealthState.STALLED, 10.0)
            assert lane.health().reason == "the last probe failed: no token within 0.5 s"
            gone(pid, 10.0)
            took = time.monotonic() - began
        assert took < 1.0 + 1.5 + 1.5
        lane.wait_ready(30)
        until(lambda: lane.stats().last_probe is ProbeVerdict.OK, 10.0)
        assert {cause: number for cause, number in lane.stats().kills_total.items() if number} == {"ack": 1}
        assert served(lane) < 1.0
        print(f"\nkilled {took:.2f} s after it was stopped")
