"""Limits.probe_idle: an idle lane tries itself, and finds out what hangs before a request does."""

from typing import Any

import pytest

import boundedgen as b
from boundedgen.testing import Fault, SimModel, Simulation

IDLE = 60.0
MODEL = SimModel(boot_s=1, step_s=0.5, token_s=0)


def limits(**others: float) -> b.Limits:
    rates = dict.fromkeys(("first_step", "new_shape", "step_per_token", "step_per_attention"), 0)
    tight: dict[str, Any] = {**rates, "step": 20, "ack": 15}
    return b.Limits(**{"probe_idle": IDLE, **tight, **others})


def shown(sim: Simulation) -> tuple[Any, Any, Any]:
    stats, health = sim.pipeline.stats(), sim.pipeline.health()
    found = (stats.last_probe, stats.last_probe_s, stats.last_probe_age_s)
    assert found == (health.last_probe, health.last_probe_s, health.last_probe_age_s)
    return found


def steps(sim: Simulation) -> int:
    return sim.pipeline.stats().steps_total


def test_an_idle_lane_is_probed_after_the_time_and_again_after_each_further_one() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        assert shown(sim) == (None, None, None)
        sim.advance(IDLE - 0.001)
        assert (steps(sim), shown(sim)) == (0, (None, None, None))
        sim.advance(0.001 + 0.5)
        assert shown(sim) == ("ok", pytest.approx(0.5), pytest.approx(0))
        sim.advance(30)
        assert shown(sim) == ("ok", pytest.approx(0.5), pytest.approx(30))
        done = steps(sim)
        sim.advance(29)
        assert steps(sim) == done
        sim.advance(5)
        assert steps(sim) > done
        assert shown(sim)[2] == pytest.approx(2.5, abs=1.1)
        sim.advance(10 * (IDLE + 1))
        stats = sim.pipeline.stats()
        assert (stats.submitted_total, stats.tokens_total, stats.restarts_total) == (0, 0, 0), "it is in no figure"


def test_without_the_limit_nothing_is_probed() -> None:
    with Simulation(model=MODEL) as sim:
        sim.advance(100_000)
        assert (steps(sim), shown(sim)) == (0, (None, None, None))
        assert sim.pipeline.stats().driver_lag_s == 0


def test_work_puts_it_off() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        for _ in range(4):
            sim.advance(IDLE - 1)
            sim.pipeline.generate("hello", max_new_tokens=2)
        assert shown(sim) == (None, None, None)
        g = sim.pipeline.submit("hello", max_new_tokens=1000, bounds=b.Bounds(total=300))
        sim.run_until(lambda: g.partial.token_ids)
        sim.advance(3 * IDLE)
        assert shown(sim) == (None, None, None), "a busy lane is none of its business"
        g.cancel()
        g.wait_reclaimed()
        sim.advance(IDLE + 1)
        assert shown(sim)[0] == "ok"


def test_an_engine_that_hangs_in_an_idle_lane_is_replaced_before_a_request_reaches_it() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.inject(Fault(kind="wedge"))
        sim.advance(IDLE + 10 - 0.001)  # Limits.probe_timeout
        assert sim.pipeline.health().ready
        sim.advance(0.002)
        health = sim.pipeline.health()
        assert (health.state, health.live, health.last_probe) == (b.HealthState.STALLED, True, "failed")
        assert health.reason == "the last probe failed: no token within 10.0 s"
        sim.advance(10)  # Limits.step is 20 s
        assert sim.pipeline.stats().kills_total["step"] == 1
        sim.pipeline.wait_ready(10)
        health = sim.pipeline.health()
        assert (health.state, health.incarnation, health.last_probe) == (b.HealthState.READY, 2, "failed")
        sim.advance(IDLE + 1)
        assert shown(sim)[0] == "ok"


def test_an_engine_that_takes_no_command_in_an_idle_lane_is_replaced() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.inject(Fault(kind="deaf"))
        sim.advance(IDLE + 15 + 5)  # Limits.ack
        assert {cause: n for cause, n in sim.pipeline.stats().kills_total.items() if n} == {"ack": 1}
        sim.pipeline.wait_ready(10)
        assert sim.pipeline.generate("hello", max_new_tokens=1).completion_tokens == 1


def test_a_failed_probe_is_forgiven_at_the_next_progress() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.inject(Fault(kind="slow", seconds=14))  # legal: a step may take 20 s
        sim.advance(IDLE + 12)
        assert sim.pipeline.health().state is b.HealthState.STALLED
        sim.advance(4)
        health = sim.pipeline.health()
        assert (health.ready, health.last_probe, health.incarnation) == (True, "failed", 1)
        sim.advance(IDLE)
        assert shown(sim)[0] == "ok"


def test_callers_share_it_and_each_has_his_own_patience() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.inject(Fault(kind="slow", seconds=14))
        sim.advance(IDLE + 1)
        assert sim.pipeline.probe(2).verdict is b.ProbeVerdict.FAILED
        assert sim.pipeline.health().last_probe == "failed"
        assert len(sim.engine.held()) == 1, "one probe for both, which goes on without him"
        began = sim.now
        result = sim.pipeline.probe(60)  # the pipeline's own ends after 10 s
        assert result.verdict is b.ProbeVerdict.OK
        assert 11 < sim.now - began < 13, "as soon as the slow step is over"
        assert sim.pipeline.health().ready


def test_it_goes_on_when_a_caller_who_shares_it_gives_up() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.inject(Fault(kind="slow", seconds=8))
        sim.advance(IDLE + 1)
        assert sim.pipeline.probe(2).verdict is b.ProbeVerdict.FAILED
        assert sim.pipeline.health().state is b.HealthState.STALLED
        sim.advance(7)
        assert shown(sim)[:2] == ("ok", pytest.approx(8.5))


def test_the_latest_verdict_is_shown_whoever_asked() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        sim.advance(IDLE + 1)
        assert shown(sim)[0] == "ok"
        sim.inject(Fault(kind="slow", seconds=14))
        assert sim.pipeline.probe(2).verdict is b.ProbeVerdict.FAILED
        assert shown(sim)[0] == "failed"
        sim.advance(IDLE + 20)
        assert shown(sim)[0] == "ok"


def test_a_caller_s_verdict_is_shown_too_and_that_of_one_who_was_refused_is_not() -> None:
    with Simulation(model=MODEL, faults={2: [Fault(kind="stillborn")]}) as sim:
        assert sim.pipeline.probe().ok
        sim.advance(7)
        assert shown(sim) == ("ok", pytest.approx(0.5), pytest.approx(7))
    sim = Simulation(model=MODEL)
    refused = sim.pipeline.probe()
    assert (refused.verdict, shown(sim)) == (b.ProbeVerdict.FAILED, (None, None, None)), "not served yet"
    sim.pipeline.wait_ready()
    assert sim.pipeline.health().ready
    sim.close()
    assert sim.pipeline.probe().verdict is b.ProbeVerdict.FAILED
    assert shown(sim) == (None, None, None)


def test_nothing_is_probed_while_the_lane_is_not_ready_or_is_closing() -> None:
    with Simulation(limits=limits(boot=1000), model=SimModel(boot_s=900)) as sim:
        sim.advance(IDLE - 1)
        assert shown(sim) == (None, None, None)
        sim.pipeline.close(drain=500)
        assert (steps(sim), shown(sim)) == (0, (None, None, None))


def test_a_hung_driver_shows_while_the_lane_is_idle_since_a_wake_up_is_always_due() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:
        expected = sim.pipeline._driver.snapshot.expected
        assert expected is not None
        assert expected <= sim.now + IDLE


def test_it_is_probed_in_an_event_loop_too() -> None:
    with Simulation(limits=limits(), model=MODEL) as sim:

        async def main() -> b.ProbeResult:
            await sim.aadvance(IDLE + 0.1)
            return await sim.pipeline.aprobe(5)

        assert sim.run(main()).seconds == pytest.approx(0.5)
        assert len(sim.engines) == 1
        assert sim.pipeline.stats().steps_total <= 3


@pytest.mark.parametrize("wrong", [0, 0.99, -1, float("inf"), "soon"])
def test_the_limit_is_checked(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="probe_idle"):
        b.Limits(probe_idle=wrong)  # type: ignore[arg-type]
