"""The log tells of each engine's end once, whoever ended it and whenever: on call, it is all that is left."""

import contextlib
import logging
from collections.abc import Mapping

import pytest

import boundedgen as b
from boundedgen.testing import Fault, SimModel, Simulation
from boundedgen.testing._faults import BOOT_FAULTS, FaultKind

LIMITS = b.Limits(
    boot=10, first_step=0, new_shape=0, step=2, step_per_token=0, step_per_attention=0, progress=5, ack=3, reclaim=2
)
#: What the line says, by the fault that ends the engine.
ENDS: Mapping[FaultKind, str] = {
    FaultKind.STILLBORN: "did not become ready: not ready within 10 s",
    FaultKind.BOOT_FAILS: "did not become ready: simulated fault",
    FaultKind.BOOT_DIES: "died: the process died of signal 11",
    FaultKind.CRASH: "died: the process died of signal 11",
    FaultKind.WEDGE: "killed (step): step 2",
    FaultKind.RAISE: "killed (step_raised): simulated fault",
    FaultKind.GARBAGE: "killed (wire)",
    FaultKind.NO_PROGRESS: "killed (progress)",
}


@pytest.mark.parametrize("kind", ENDS)
def test_each_end_of_an_engine_is_one_error_line(kind: FaultKind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "boundedgen")
    fault = Fault(kind=kind, at_step=1 if kind in BOOT_FAULTS else 2)
    with contextlib.closing(Simulation(limits=LIMITS, faults=[fault])) as sim:
        sim.pipeline.wait_ready(30)
        if kind not in BOOT_FAULTS:
            with pytest.raises(b.EngineLost):
                sim.pipeline.generate("hello", max_new_tokens=100)
        assert sim.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3
        assert sum(sim.pipeline.stats().kills_total.values()) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    (line,) = errors
    assert line.startswith(f"engine 1 {ENDS[kind]}")
    assert "engine 2 ended: closed" in caplog.text


def test_health_tells_why_the_latest_start_failed_and_how_often_in_a_row() -> None:
    boots = {i: [Fault(kind="boot_fails", text=f"no device, {i}")] for i in (1, 2, 4, 5)}
    with contextlib.closing(Simulation(limits=LIMITS, faults=boots, model=SimModel(boot_s=4))) as sim:
        sim.advance(9)
        health = sim.pipeline.health()
        assert (health.state, health.reason) == ("starting", "boot: no device, 2 (2 in a row)")
        with pytest.raises(b.EngineUnavailable, match="no device, 2"):
            sim.pipeline.submit("hello")
        with pytest.raises(b.EngineUnavailable, match="no device, 2"):
            sim.pipeline.wait_ready(0)
        sim.pipeline.wait_ready()
        assert sim.pipeline.health().reason == ""
        sim.inject(Fault(kind="crash"))
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=100)
        assert "SIGSEGV" in sim.pipeline.health().reason
        sim.run_until(lambda: "no device, 5 (5 in a row)" in sim.pipeline.health().reason, within=30)


def test_a_lane_that_gives_up_says_why_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(Simulation(limits=LIMITS, faults=[Fault(kind="wedge"), Fault(kind="unkillable")])) as sim:
        sim.pipeline.wait_ready()
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=100)
        sim.advance(60)
        health = sim.pipeline.health()
        assert health.state is b.HealthState.FAILED
        assert health.reason == str(health.error)
        assert health.reason.startswith("the killed engine has not left within")
    (line,) = [r.getMessage() for r in caplog.records if "is failed" in r.getMessage()]
    assert line == f"the lane is failed ({health.reason})"


def test_while_it_is_replaced_an_engine_is_expected_after_the_time_that_the_last_boot_took() -> None:
    with Simulation(limits=LIMITS, faults=[Fault(kind="crash")], model=SimModel(boot_s=8)) as sim:
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=100)
        sim.advance(1)
        after = sim.pipeline.health().retry_after_s
        assert after is not None
        sim.advance(after - 0.1)
        assert not sim.pipeline.health().ready
        sim.advance(0.2)
        assert sim.pipeline.health().ready


def test_an_engine_that_was_killed_and_has_not_left_is_expected_back_after_a_boot() -> None:
    with Simulation(limits=LIMITS, faults=[Fault(kind="wedge")], model=SimModel(boot_s=8, exit_s=0.5)) as sim:
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=100)
        assert sim.pipeline.health().retry_after_s == pytest.approx(8, abs=0.1)
