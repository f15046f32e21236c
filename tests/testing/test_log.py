"""The log tells of each engine's end once, whoever ended it and whenever: on call, it is all that is left."""

import contextlib
import logging
from collections.abc import Mapping

import pytest

import boundedgen as b
from boundedgen.testing import Fault, Simulation
from boundedgen.testing._faults import BOOT_FAULTS, FaultKind

LIMITS = b.Limits(boot=10, first_step=0, step=2, step_per_token=0, step_per_attention=0, progress=5, ack=3, reclaim=2)
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
