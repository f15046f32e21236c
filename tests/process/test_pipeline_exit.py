"""What the supervisor of a server sees of a lane that has failed: a process that did not end well."""

from __future__ import annotations

import textwrap

import pytest
from process.lanes import said, script

pytestmark = pytest.mark.timeout(60)

SERVER = textwrap.dedent(
    """
    import sys, time
    from boundedgen import GenerationError, HealthState, RestartPolicy
    from process.lanes import simulated_lane

    budget = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 1)
    sys.excepthook = lambda kind, error, trace: print(kind.__name__, error)
    with simulated_lane({"raise_at": int(sys.argv[1])}, restart=budget) as lane:
        try:
            lane.generate([5], max_new_tokens=3, timeout=20)
        except GenerationError:
            while lane.health().state is HealthState.RECOVERING:
                time.sleep(0.01)
        print(lane.health().state, flush=True)
    """
)


def test_field_report_54_a_server_whose_lane_has_failed_does_not_exit_with_0() -> None:
    with script(SERVER, 1) as process:
        assert said(process) == "failed"
        assert said(process).startswith("EngineFailed the restart budget is used up; last: step_raised")
        assert process.wait(20) == 1


def test_a_server_whose_lane_has_not_failed_exits_with_0() -> None:
    with script(SERVER, 1000) as process:
        assert said(process) == "ready"
        assert process.wait(20) == 0
