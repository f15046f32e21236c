"""STALLED, as health tells it before any watchdog has acted: a step over its budget, a driver that is late."""

import pytest
from core.hand_engine import held_up, lane, until

from boundedgen import HealthState, Limits
from boundedgen._core import _events as ev

FAMILIAR = Limits(progress=1e6, ack=1e6, reclaim=1e6, new_shape=0)  # no step is the first of its size


def test_a_step_over_its_budget_is_stalled_and_named() -> None:
    with lane(limits=FAMILIAR) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        with held_up(engine):
            begun = engine.now()
            engine.link.pulse = lambda: ev.Pulse(9, 8, begun)  # type: ignore[method-assign]
            assert pipeline.health().ready
            engine.clock.skip(10.5)  # Limits.step is 10 s
            health = pipeline.health()
            assert (health.state, health.ready, health.live) == (HealthState.STALLED, False, True)
            assert health.reason == "step 9 runs for longer than its budget of 10.0 s"
            engine.clock.skip(0.4)
            assert pipeline.health().reason == health.reason, "it says what is so, not for how long"
            assert pipeline.stats().step_current_s >= 10.5
            assert pipeline.stats().step_budget_s == 10.0
        generation.cancel()


def test_a_driver_that_does_not_come_to_its_wake_is_late_then_stalled_then_not_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with lane() as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        until(lambda: pipeline.stats().running)  # published, with the wake-up that is to be missed
        with held_up(engine):
            assert pipeline.health().ready
            engine.clock.skip(5)
            health = pipeline.health()
            assert (health.state, health.live) == (HealthState.STALLED, True)
            assert health.reason == "the driver is more than 1 s late"
            assert 3.0 < pipeline.stats().driver_lag_s < 6.0
            engine.clock.skip(10)
            assert not pipeline.health().live
            assert pipeline.stats().driver_lag_max_s > 10, "it is behind now"
        until(lambda: pipeline.stats().driver_lag_s == 0)
        assert 13 < pipeline.stats().driver_lag_max_s < 16, "it was behind"
        until(lambda: caplog.records)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("the driver woke 14."), "told once, when it woke"
        generation.cancel()
