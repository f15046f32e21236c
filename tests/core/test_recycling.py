"""An engine that is too old or too large is replaced at a moment at which it holds nothing, and nobody is harmed."""

import logging
import re
from pathlib import Path

import pytest
from attrs import evolve
from core.governed import LIMITS, Governed

from boundedgen import BoundedPipeline, Bounds, EngineUnavailable, FinishReason, HealthState, Limits
from boundedgen._core import _events as ev
from boundedgen._core._events import Cause, Finish, Release
from boundedgen.testing import SimModel, Simulation

OLD = evolve(LIMITS, engine_age=100.0, recycle_drain=5.0)
TOO_OLD = "recycling: older than 100 s (Limits.engine_age)"
LARGE = evolve(LIMITS, engine_rss_bytes=1_000, recycle_drain=5.0)


def leaves(g: Governed, stay: int) -> None:
    g.step(finished=(Finish(stay, "length"),), released=(Release(stay, 0, 0.0, 0),))


def recycled(g: Governed) -> bool:
    return g.governor.tally.kills["recycle"] > 0


# --- when ------------------------------------------------------------------------------------------------------------


def test_an_idle_engine_is_replaced_when_it_is_too_old_and_not_before() -> None:
    g = Governed(OLD)
    assert g.governor.next_wakeup() == g.now + 100.0
    g.tick(99.9)
    assert not recycled(g)
    assert [type(e) for e in g.tick(0.1)] == [ev.Lost, ev.Became, ev.Kill]
    assert g.kills() == [Cause.RECYCLE]
    assert g.governor.reason() == TOO_OLD


def test_without_a_limit_no_engine_is_ever_too_old_or_too_large() -> None:
    g = Governed()
    g.step(rss_bytes=1 << 50)
    g.tick(1e8)
    assert not recycled(g)
    assert g.governor.next_wakeup() is None


def test_an_engine_that_holds_something_is_not_replaced() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    running, stay = g.running()
    g.tick(10.0)
    assert not recycled(g)
    g.governor.cancel(running, g.now)
    g.tick()
    assert not recycled(g), "what is stopped is held until its release is proved"
    g.step(stopping=(stay,), released=(Release(stay, 1, 0.0, 0),))
    assert recycled(g)


def test_while_it_is_to_become_empty_nobody_is_admitted_but_a_probe() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    waits, probe = g.submit(), g.submit(probe=True, new=1)
    assert (waits in g.admitted(), probe in g.admitted()) == (False, True)
    assert (g.state(), g.governor.reason()) == ("ready", TOO_OLD)
    leaves(g, stay)
    leaves(g, g.stay_of(probe))
    g.die()
    g.ready()
    assert g.admitted()[-1] == waits


def test_what_does_not_end_in_time_puts_it_off_for_ten_times_as_long() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    first = g.submit()
    assert g.governor.next_wakeup() <= g.now + 5.0  # type: ignore[operator]
    g.tick(4.9)
    assert first not in g.admitted()
    g.tick(0.1)
    assert first in g.admitted(), "nobody is harmed by those who take their time"
    g.step(taken=(g.stay_of(first),))
    leaves(g, g.stay_of(first))
    g.tick(49.9)
    second = g.submit()
    assert second in g.admitted()
    g.step(taken=(g.stay_of(second),))
    leaves(g, g.stay_of(second))
    g.tick(0.1)
    third = g.submit()
    assert third not in g.admitted()
    leaves(g, stay)
    assert recycled(g)


def test_a_moment_at_which_nothing_is_held_is_taken_also_between_two_pauses() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    g.tick(5.0)
    leaves(g, stay)
    assert recycled(g)


def test_with_no_time_to_drain_nothing_is_held_back() -> None:
    g = Governed(evolve(OLD, recycle_drain=0.0))
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    other = g.submit()
    assert other in g.admitted()
    assert g.governor.next_wakeup() > g.now  # type: ignore[operator]
    leaves(g, stay)
    assert not recycled(g)
    leaves(g, g.stay_of(other))
    assert recycled(g)


def test_an_engine_is_replaced_when_it_is_too_large_and_not_within_ten_boots() -> None:
    g = Governed(LARGE, ready=False)
    g.now += 3.0
    g.ready()
    g.step(rss_bytes=1_000)
    g.tick(29.9)
    assert not recycled(g), "one that is too large from the start would do nothing but boot"
    g.tick(0.1)
    assert recycled(g)
    assert g.governor.reason() == "recycling: larger than 0 MB (Limits.engine_rss_bytes)"


def test_an_engine_that_has_become_smaller_again_stays() -> None:
    g = Governed(LARGE)
    _, stay = g.running()
    g.step(rss_bytes=1_000)
    waits = g.submit()
    assert waits not in g.admitted()
    g.step(rss_bytes=999)
    assert waits in g.admitted()
    leaves(g, stay)
    leaves(g, g.stay_of(waits))
    assert not recycled(g)
    assert g.governor.reason() == ""


def test_what_an_engine_told_of_its_size_does_not_outlive_it() -> None:
    g = Governed(LARGE)
    g.running()
    g.step(rss_bytes=2_000)
    g.die()
    assert g.governor.life.rss_bytes is None
    g.restarted()
    g.tick(50.0)
    assert not recycled(g)


# --- what it is not --------------------------------------------------------------------------------------------------


def test_a_recycling_is_no_failure_and_the_next_engine_is_started_at_once() -> None:
    g = Governed(OLD)
    g.die()
    g.restarted()
    g.tick(100.0)
    effects = g.die()
    assert [type(e) for e in effects] == [ev.Spawn], "the restart policy is not asked"
    assert g.governor.life.failures == 1, "and what it knew is as it was"
    g.ready()
    assert (g.governor.tally.restarts, g.governor.tally.kills["recycle"]) == (1, 1)
    assert g.governor.reason() == ""


def test_failures_are_forgotten_also_where_engines_are_replaced_before_they_have_served_for_so_long() -> None:
    g = Governed(OLD, forget_after=250.0)
    g.die()
    g.restarted()
    for _ in range(3):
        assert g.governor.life.failures == 1
        _, stay = g.running()
        g.step(outputs=(ev.Output(stay, (7,)),))
        leaves(g, stay)
        g.tick(100.0)
        assert g.kills()[-1] is Cause.RECYCLE
        g.die()
        g.tick()
        g.ready()
    _, stay = g.running()
    g.step(outputs=(ev.Output(stay, (7,)),))
    assert g.governor.life.failures == 0


def test_an_engine_that_is_lost_after_a_recycling_is_a_loss() -> None:
    g = Governed(OLD)
    g.tick(100.0)
    g.die()
    g.hear(ev.BootFailed(g.incarnation, "other", "no", False))
    g.die(1)
    assert [d.failures for d in g.all(ev.DecideRestart)] == [1]
    g.restarted()
    assert g.governor.tally.restarts == 1


def test_leases_stand_still_while_it_is_replaced_and_have_their_grace() -> None:
    g = Governed(OLD)
    g.tick(99.0)
    lease = g.lease(ttl=5.0)
    g.tick(1.0)
    g.die()
    g.tick(9.0)
    g.ready()
    g.tick(4.9)
    assert g.governor.renew(lease, g.now, g.now), "4 s were left, and a grace of 2 s, up to its ttl"


def test_deadlines_run_on_while_it_becomes_empty_and_is_replaced() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    g.running()
    g.tick(10.0)
    total, queued = g.submit(bounds=Bounds(total=3.0)), g.submit(bounds=Bounds(total=60, queued=2.0))
    g.tick(2.0)
    assert (g.reason(total), g.reason(queued)) == (None, "deadline")
    g.tick(1.0)
    assert g.reason(total) == "deadline"


def test_a_pipeline_that_closes_recycles_no_more() -> None:
    g = Governed(OLD)
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    waits = g.submit()
    g.governor.close(30.0, g.now)
    g.tick()
    assert waits in g.admitted(), "what was accepted is served while it drains"
    leaves(g, stay)
    assert g.kills() == []
    g.step(taken=(g.stay_of(waits),))
    leaves(g, g.stay_of(waits))
    assert g.kills() == [Cause.CLOSE]


def held_back(g: Governed) -> int:
    """What waits while the engine is killed for its age."""
    g.tick(90.0)
    _, stay = g.running()
    g.tick(10.0)
    waits = g.submit()
    leaves(g, stay)
    assert g.kills() == [Cause.RECYCLE]
    return waits


@pytest.mark.parametrize("when", ["dying", "just gone", "starting"])
def test_those_that_a_recycling_held_back_are_served_by_the_next_engine_also_while_it_drains(when: str) -> None:
    g = Governed(OLD)
    waits = held_back(g)
    if when == "dying":
        g.governor.close(30.0, g.now)
        g.tick()
        g.die()
    elif when == "just gone":
        g.governor.receive(ev.Exited(g.governor.life.incarnation, -9, ""), g.now)
        g.governor.close(30.0, g.now)
        g.tick()
    else:
        g.die()
        g.governor.close(30.0, g.now)
        g.tick()
    assert (g.state(), g.reason(waits), len(g.all(ev.Spawn))) == ("draining", None, 2)
    g.ready()
    g.step(taken=(g.stay_of(waits),), outputs=(ev.Output(g.stay_of(waits), (7,)),))
    leaves(g, g.stay_of(waits))
    assert g.reason(waits) == "length"
    assert g.kills() == [Cause.RECYCLE, Cause.CLOSE]
    g.die()
    assert g.state() == "closed"


def test_a_drain_that_is_over_before_a_recycled_engine_has_left_is_over() -> None:
    g = Governed(OLD)
    waits = held_back(g)
    g.governor.close(0.5, g.now)
    g.tick(0.5)
    assert g.reason(waits) == "shutdown"
    g.die()
    assert (g.state(), len(g.all(ev.Spawn))) == ("closed", 1)


def test_a_recycled_engine_that_does_not_leave_while_it_drains_ends_the_drain() -> None:
    g = Governed(OLD)
    waits = held_back(g)
    g.governor.close(30.0, g.now)
    g.tick(OLD.reap)
    assert (g.reason(waits), g.state()) == ("shutdown", "closed")


def test_a_next_engine_that_does_not_start_while_it_drains_is_not_replaced() -> None:
    g = Governed(OLD)
    waits = held_back(g)
    g.governor.close(30.0, g.now)
    g.tick()
    g.die()
    g.die()
    assert g.reason(waits) == "shutdown"
    assert (g.state(), len(g.all(ev.Spawn))) == ("closed", 2)


def test_a_recycled_engine_that_closes_meanwhile_is_not_replaced() -> None:
    g = Governed(OLD)
    g.tick(100.0)
    g.governor.close(0.0, g.now)
    g.tick()
    g.die()
    assert g.state() == "closed"
    assert len(g.all(ev.Spawn)) == 1


@pytest.mark.parametrize("cause", Cause)
def test_only_a_close_and_a_recycling_are_orderly(cause: Cause) -> None:
    assert cause.orderly is (cause.value in ("close", "recycle"))


# --- the pipeline ----------------------------------------------------------------------------------------------------


def served(pipeline: BoundedPipeline) -> FinishReason | None:
    return pipeline.generate([5, 6], max_new_tokens=3).finish_reason


def test_health_and_stats_tell_of_a_recycling(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "boundedgen")
    with Simulation(model=SimModel(boot_s=4.0), limits=Limits(engine_age=60)) as simulation:
        pipeline = simulation.pipeline
        simulation.advance(60.01)
        health = pipeline.health()
        reason = "recycling: older than 60 s (Limits.engine_age)"
        assert (health.state, health.reason) == (HealthState.RECOVERING, reason)
        assert health.live
        assert served(pipeline) is FinishReason.LENGTH
        stats = pipeline.stats()
        assert (stats.recycled_total, stats.restarts_total, stats.incarnation) == (1, 0, 2)
        assert sum(stats.kills_total.values()) == 0
    assert pipeline.stats().closes_total == 1
    assert max(record.levelno for record in caplog.records) == logging.INFO, "an orderly end sets off no alarm"


def test_who_waits_while_it_is_replaced_meets_a_queued_bound_that_the_next_load_outlasts() -> None:
    """Which the handler that the README shows does not have."""
    example = Path(__file__).parents[2] / "examples" / "server_handler.py"
    shown = re.search(r"queued=(\d+)", example.read_text(encoding="utf-8"))
    assert shown is not None
    short, long = Bounds(queued=10.0), Bounds(queued=float(shown[1]))
    with Simulation(model=SimModel(boot_s=18.0), limits=Limits(engine_age=60)) as simulation:
        submit = simulation.pipeline.submit
        simulation.advance(59.9)
        inside = submit([5], max_new_tokens=100, ignore_eos=True)
        simulation.advance(0.2)
        waiting = [submit([5], max_new_tokens=3, ignore_eos=True, bounds=bounds) for bounds in (short, long)]
        simulation.run_until(lambda: not simulation.pipeline.health().ready)
        assert inside.finish_reason is FinishReason.LENGTH
        with pytest.raises(EngineUnavailable):
            submit([5], max_new_tokens=3, ignore_eos=True, bounds=short)
        waiting.append(submit([5], max_new_tokens=3, ignore_eos=True, bounds=long))
        simulation.advance(30)
        assert [one.finish_reason for one in waiting] == [
            FinishReason.DEADLINE,
            FinishReason.LENGTH,
            FinishReason.LENGTH,
        ]


def test_the_size_of_the_engine_is_shown_and_may_be_limited() -> None:
    model = SimModel(boot_s=1.0, rss_bytes=500_000_000)
    with Simulation(model=model, limits=Limits(engine_rss_bytes=900_000_000)) as simulation:
        pipeline = simulation.pipeline
        assert pipeline.stats().engine_rss_bytes == 500_000_000
        simulation.advance(20)
        simulation.engine.rss_bytes = 901_000_000
        assert served(pipeline) is FinishReason.LENGTH
        simulation.advance(0.01)
        assert pipeline.health().reason == "recycling: larger than 900 MB (Limits.engine_rss_bytes)"
        assert pipeline.stats().engine_rss_bytes is None
        simulation.advance(2)
        assert (pipeline.stats().engine_rss_bytes, pipeline.stats().recycled_total) == (500_000_000, 1)


def test_an_engine_that_does_not_tell_its_size_is_shown_without_one() -> None:
    with Simulation() as simulation:
        assert served(simulation.pipeline) is FinishReason.LENGTH
        assert simulation.pipeline.stats().engine_rss_bytes is None
