"""When an idle lane is to be tried: the pure piece, its place in the governor, and around it."""

import contextlib
import threading

import pytest
from attrs import evolve
from core.governed import LIMITS as TIGHT
from core.governed import Governed
from core.hand_engine import HandEngine, held_up, lane, until

import boundedgen as b
from boundedgen._core import _events as ev
from boundedgen._core._idling import Idling
from boundedgen.abc import Tokenizer

LIMITS = b.Limits(progress=1e6, ack=1e6, reclaim=1e6, probe_idle=30)


def test_it_is_due_after_a_whole_period_and_after_each_further_one() -> None:
    idling = Idling(10.0)
    due = [at for at in range(100, 145) if idling.due(True, at)]
    assert due == [110, 120, 130, 140]
    assert idling.next() == 150


def test_what_happens_in_between_puts_it_off_by_a_whole_period() -> None:
    idling = Idling(10.0)
    idle = [True] * 9 + [False] + [True] * 20
    assert [at for at, now in enumerate(idle) if idling.due(now, at)] == [20]
    assert not idling.due(False, 29)
    assert idling.next() is None


def test_a_late_wake_probes_once() -> None:
    idling = Idling(10.0)
    assert not idling.due(True, 0)
    assert idling.due(True, 95)
    assert not idling.due(True, 95)
    assert idling.next() == 105


@pytest.mark.parametrize("idle", [True, False])
def test_without_a_period_it_is_never_due(idle: bool) -> None:
    idling = Idling(None)
    assert not any(idling.due(idle, at) for at in (0.0, 1e9))
    assert idling.next() is None


def test_its_wake_up_is_not_missed_by_a_rounding() -> None:
    """Else the driver would wake up at the instant, find nothing due, and spin."""
    for since in (0.1, 1 / 3, 12345.678, 2**31 + 0.7):
        for period in (1.1, 7 / 3, 59.9999):
            idling = Idling(period)
            idling.due(True, since)
            at = idling.next()
            assert at is not None
            assert idling.due(True, at)


def governed() -> Governed:
    return Governed(evolve(TIGHT, probe_idle=60.0, progress=1e6, reclaim=1e6))


def probed(g: Governed, later: float) -> int:
    """How often, if that much time passes, and it ticks when it wants to."""
    until, before = g.now + later, len(g.all(ev.Probe))
    while (at := g.governor.next_wakeup()) is not None and at <= until:
        g.tick(at - g.now)
    g.tick(until - g.now)
    return len(g.all(ev.Probe)) - before


def test_the_governor_has_a_ready_lane_probed_that_holds_nothing() -> None:
    g = governed()
    assert (probed(g, 59), probed(g, 2), probed(g, 121)) == (0, 1, 2)


def test_neither_what_waits_nor_what_has_not_left_yet_is_idle() -> None:
    g = governed()
    checked = g.submit(cleared=False)
    assert probed(g, 500) == 0
    g.governor.refuse(checked, "no", g.now)
    g.tick()
    assert (probed(g, 59), probed(g, 2)) == (0, 1)
    sequence, stay = g.running()
    g.governor.cancel(sequence, g.now)
    g.tick()
    g.step(stopping=(stay,))
    assert probed(g, 500) == 0, "it is answered, and still inside"
    g.step(released=(ev.Release(stay, 1, 0.1, 0),))
    assert (probed(g, 59), probed(g, 2)) == (0, 1)


def test_nothing_is_probed_while_an_engine_starts_or_after_the_end() -> None:
    g = Governed(evolve(TIGHT, probe_idle=60.0, boot=1e6), ready=False)
    assert probed(g, 500) == 0
    g.ready()
    assert (probed(g, 59), probed(g, 2)) == (0, 1)
    g.die()
    assert probed(g, 500) == 0
    g.governor.restart(None, g.now)
    assert probed(g, 500) == 0, "failed"


def test_where_no_block_could_be_set_aside_it_is_not_run_and_the_lane_stays_ready() -> None:
    engine = HandEngine()
    engine.facts = evolve(engine.facts, probe_blocks={})
    with lane(engine, limits=LIMITS) as (pipeline, _):
        engine.clock.skip(31)
        until(lambda: pipeline.stats().last_probe is b.ProbeVerdict.NOT_RUN)
        assert pipeline.health().ready
        assert engine.link.requests == {}


def test_a_probe_that_was_not_even_begun_tells_nothing() -> None:
    """The engine is ready, the tokenizer is not: that is STARTING, and no failure to be held against the lane later."""
    may_load, tried = threading.Event(), threading.Event()

    class Slow(HandEngine):
        def tokenizer(self) -> Tokenizer:
            assert may_load.wait(20)
            return super().tokenizer()

    engine = Slow()
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock, limits=LIMITS)
    with contextlib.closing(pipeline):
        until(lambda: pipeline._driver.snapshot.state == "ready")
        due = pipeline._driver.governor._idling.next
        before = due()
        engine.clock.skip(31)
        until(lambda: due() != before)
        until(lambda: pipeline._driver.snapshot.at > engine.now() - 20)
        pipeline._serving.beside(tried.set)
        assert tried.wait(20)
        may_load.set()
        pipeline.wait_ready(20)
        assert (pipeline.health().ready, pipeline.stats().last_probe) == (True, None)


def test_one_that_is_under_way_is_not_begun_again() -> None:
    with lane(limits=LIMITS) as (pipeline, engine):
        results: list[b.ProbeResult] = []
        caller = threading.Thread(target=lambda: results.append(pipeline.probe(20)))
        caller.start()
        engine.stay()
        tried = threading.Event()
        pipeline._probing.due()
        pipeline._serving.beside(tried.set)
        assert tried.wait(20)
        engine.say()
        engine.finish("length")
        caller.join(20)
        assert [result.verdict for result in results] == [b.ProbeVerdict.OK]
        pipeline.stats()
        assert len(engine.link.requests) == 1


def test_a_lane_that_closes_while_it_is_probed_closes_at_once() -> None:
    with lane(limits=LIMITS) as (pipeline, engine):
        engine.clock.skip(31)
        engine.stay()
        pipeline.close()
        assert pipeline.health().state is b.HealthState.CLOSED
        assert pipeline._driver.probe is bool, "or driver and pipeline would wait for the collector of cycles"


def test_a_driver_that_hangs_while_the_lane_is_idle_is_not_live() -> None:
    with lane(limits=LIMITS) as (pipeline, engine):
        until(lambda: pipeline._driver.snapshot.expected is not None)
        with held_up(engine):
            engine.clock.skip(29)
            assert pipeline.health().live
            engine.clock.skip(12)
            assert pipeline.stats().driver_lag_s > 10
            assert not pipeline.health().live
