"""No engine is killed for being slow or stopped, by limits with which a hang is found. deep/alarms.py does it long."""

import pytest
from process.lanes import MODELS

from deep import alarms
from deep.alarms import Plan

LIMITS = {
    "step": 2.0, "step_per_token": 0.002, "step_per_attention": 5e-7, "step_max": 20.0,
    "first_step": 3.0, "new_shape": 1.0, "progress": 4.0, "ack": 4.0, "boot": 60.0,
}  # fmt: skip
PLAN = Plan(str(MODELS / "plain"), LIMITS, prompt=4000, decoded=100, busy_s=2.0, stopped_s=4.0)


@pytest.mark.slow
def test_slow_and_stopped_engines_live_where_one_that_hangs_is_killed_in_its_time() -> None:
    """A first step with nothing cached, a long prompt in one chunk, a busy machine, both processes stopped."""
    found, hang = alarms.living_through(PLAN), alarms.caught(PLAN)
    print(f"\n{found}\n{hang}")
    assert alarms.broken(PLAN, found, hang) == []
