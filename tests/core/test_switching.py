"""Other adapters, as the core sees them: an engine that is built otherwise, and who is served by which."""

import random
from collections.abc import Iterator

import pytest
from attrs import evolve
from core.governed import LIMITS, Governed, facts

from boundedgen import Bounds, FinishReason, HealthState, Limits
from boundedgen._core import _events as ev
from boundedgen._core._events import Cause, Finish, Refusal, Release
from boundedgen._core._recording import INPUTS, Recorded, portrait, replay
from boundedgen._core._switching import SWITCHES, WAITS
from boundedgen.testing import SimModel, Simulation

EXACT = evolve(facts(), exact=True, canary=(1, 2, 3))
OTHER = evolve(facts(), exact=True, canary=(7, 8, 9))


def switch(g: Governed, number: int = 1, drain: float = 10.0) -> None:
    g.governor.exchange(number, drain, g.now)
    g.tick()


def leaves(g: Governed, stay: int) -> None:
    g.step(finished=(Finish(stay, "length"),), released=(Release(stay, 0, 0.0, 0),))


def outcomes(g: Governed) -> list[tuple[int, str]]:
    return [(effect.number, effect.outcome) for effect in g.all(ev.Switched)]


def equipped(g: Governed) -> list[int]:
    return [effect.number for effect in g.all(ev.Equip)]


# --- when ------------------------------------------------------------------------------------------------------------


def test_an_engine_that_holds_nothing_is_exchanged_at_once_and_in_order() -> None:
    g = Governed()
    switch(g)
    assert [type(effect) for effect in g.fresh] == [ev.Equip, ev.Lost, ev.Became, ev.Kill]
    assert (g.kills(), g.governor.reason()) == ([Cause.RECYCLE], SWITCHES)
    g.die()
    assert outcomes(g) == []
    g.ready()
    assert (outcomes(g), equipped(g), g.incarnation) == ([(1, "done")], [1], 2)
    assert (g.governor.tally.restarts, g.governor.life.failures, g.governor.reason()) == (0, 0, "")


def test_the_engine_is_equipped_before_the_next_one_is_started() -> None:
    g = Governed()
    switch(g)
    g.die()
    order = [type(effect) for effect in g.effects if isinstance(effect, ev.Equip | ev.Spawn)]
    assert order == [ev.Spawn, ev.Equip, ev.Spawn]


def test_who_was_there_before_is_served_before_and_who_came_since_after() -> None:
    g = Governed(evolve(LIMITS, running_max=1))
    _, stay = g.running()
    before = g.submit()
    switch(g)
    since = g.submit(priority=9)
    assert (g.state(), g.governor.reason()) == ("ready", WAITS)
    leaves(g, stay)
    assert g.admitted()[-1] == before, "in the engine that it was submitted to"
    assert since not in g.admitted()
    leaves(g, g.stay_of(before))
    assert g.kills() == [Cause.RECYCLE]
    g.die()
    g.ready()
    assert (g.admitted()[-1], outcomes(g)) == (since, [(1, "done")])


def test_what_is_stopped_is_waited_for_until_its_release_is_proved() -> None:
    g = Governed()
    sequence, stay = g.running()
    switch(g)
    g.governor.cancel(sequence, g.now)
    g.tick()
    assert g.kills() == []
    g.step(stopping=(stay,), released=(Release(stay, 1, 0.0, 0),))
    assert g.kills() == [Cause.RECYCLE]


def test_one_whose_grammar_is_being_checked_was_there_before() -> None:
    g = Governed()
    waits = g.submit(cleared=False)
    switch(g)
    since = g.submit(cleared=False)
    g.governor.clear(since, g.now)
    g.tick()
    assert g.kills() == []
    assert g.admitted() == []
    g.governor.clear(waits, g.now)
    g.tick()
    assert g.admitted() == [waits]
    leaves(g, g.stay_of(waits))
    g.die()
    g.ready()
    assert g.admitted() == [waits, since]


def test_a_probe_passes_while_those_from_before_are_served() -> None:
    g = Governed()
    _, stay = g.running()
    switch(g)
    probe = g.submit(probe=True, new=1)
    assert probe in g.admitted()
    leaves(g, stay)
    assert g.kills() == [], "it is held like anything else"
    leaves(g, g.stay_of(probe))
    assert g.kills() == [Cause.RECYCLE]


def test_before_the_first_engine_is_ready_it_waits_for_that() -> None:
    g = Governed(ready=False)
    switch(g)
    assert equipped(g) == []
    g.ready()
    assert g.kills() == [Cause.RECYCLE]


def test_a_lost_engine_that_nobody_has_to_be_taken_up_by_is_not_started_again_as_it_was() -> None:
    g = Governed()
    _, stay = g.running()
    switch(g)
    g.die()
    assert equipped(g) == [1], "nobody from before is left"
    g.restarted()
    assert outcomes(g) == [(1, "done")]
    assert stay not in g.governor.stays


def test_a_lost_engine_is_started_again_as_it_was_for_those_from_before() -> None:
    g = Governed(evolve(LIMITS, running_max=1))
    g.running()
    before = g.submit()
    switch(g, drain=100.0)
    g.die()
    assert equipped(g) == []
    g.restarted()
    assert g.admitted()[-1] == before
    leaves(g, g.stay_of(before))
    assert equipped(g) == [1]


# --- when not --------------------------------------------------------------------------------------------------------


def test_what_takes_longer_than_the_drain_changes_nothing_and_throws_nobody_out() -> None:
    g = Governed()
    running, stay = g.running()
    switch(g, drain=10.0)
    since = g.submit()
    g.step()
    g.tick(5.0)
    g.step()
    g.tick(4.9)
    assert outcomes(g) == []
    g.step()
    g.tick(0.1)
    assert outcomes(g) == [(1, "late")]
    assert g.all(ev.Switched)[0].detail == "1 that were submitted before were not served yet"
    assert (equipped(g), g.kills(), g.governor.reason()) == ([], [], "")
    assert since in g.admitted(), "by the engine as it is"
    assert g.reason(running) is None
    assert stay in g.governor.stays


def test_a_drain_of_nothing_is_for_a_lane_that_is_empty() -> None:
    g = Governed()
    switch(g, drain=0.0)
    assert equipped(g) == [1]
    other = Governed()
    other.running()
    switch(other, drain=0.0)
    assert outcomes(other) == [(1, "late")]


def test_whoever_does_not_wait_for_it_any_more_drops_it() -> None:
    g = Governed()
    g.running()
    switch(g)
    since = g.submit()
    g.governor.keep(2, g.now)
    g.tick()
    assert since not in g.admitted(), "that is another one"
    g.governor.keep(1, g.now)
    g.tick()
    assert (outcomes(g), since in g.admitted()) == ([(1, "dropped")], True)


def test_once_the_engine_is_being_exchanged_it_cannot_be_dropped() -> None:
    g = Governed()
    switch(g)
    g.governor.keep(1, g.now)
    g.die()
    g.ready()
    assert outcomes(g) == [(1, "done")]


def test_there_is_one_at_a_time() -> None:
    g = Governed()
    g.running()
    switch(g)
    switch(g, 2)
    assert outcomes(g) == [(2, "busy")]


def test_bounds_hold_meanwhile_and_say_what_they_waited_for() -> None:
    g = Governed()
    running, _ = g.running()
    switch(g, drain=50.0)
    since = g.submit(bounds=Bounds(total=600, queued=3.0))
    g.step()
    g.tick(3.0)
    settled = g.settled(since)
    assert settled is not None
    assert (settled.reason, settled.bound) == ("deadline", "queued")
    assert "the lane was switching adapters" in settled.detail
    g.governor.cancel(running, g.now)
    g.step(stopping=(1,), released=(Release(1, 1, 0.0, 0),))
    assert g.kills() == [Cause.RECYCLE], "who came since and is gone does not count any more"


# --- engines that do not start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("permanent", [False, True])
def test_an_engine_that_does_not_start_is_followed_by_one_as_before_at_once(permanent: bool) -> None:
    g = Governed()
    switch(g)
    since = g.submit()
    g.die()
    g.hear(ev.BootFailed(g.incarnation, "model", "no such shape", permanent))
    assert outcomes(g) == [], "it is not gone yet"
    g.die(1)
    assert (equipped(g), outcomes(g)) == ([1, 0], [(1, "failed")])
    (told,) = g.all(ev.Switched)
    assert (told.kind, told.detail) == ("model", "boot: no such shape")
    assert g.all(ev.DecideRestart) == []
    assert g.incarnation == 3
    g.ready()
    assert g.admitted() == [since]
    assert (g.state(), g.governor.equipment) == ("ready", 0)


def test_one_that_is_killed_while_it_starts_is_followed_by_one_as_before() -> None:
    g = Governed()
    switch(g)
    g.die()
    g.die()
    assert (equipped(g), outcomes(g), g.incarnation) == ([1, 0], [(1, "failed")], 3)


def test_one_that_hangs_while_it_starts_is_killed_and_followed_by_one_as_before() -> None:
    g = Governed()
    switch(g)
    g.die()
    for _ in range(11):
        g.tick(LIMITS.boot / 10)
    assert g.kills() == [Cause.RECYCLE, Cause.BOOT]
    g.die()
    assert (equipped(g), outcomes(g)) == ([1, 0], [(1, "failed")])


def test_the_one_as_before_that_does_not_start_either_is_a_matter_of_the_restart_policy() -> None:
    g = Governed()
    switch(g)
    g.die()
    g.die()
    g.die()
    assert [effect.failures for effect in g.all(ev.DecideRestart)] == [2]


def test_a_canary_is_compared_with_that_of_the_same_adapters_only() -> None:
    g = Governed(ready=False)
    g.ready(EXACT)
    switch(g)
    g.die()
    g.ready(OTHER)
    assert outcomes(g) == [(1, "done")]
    g.die()
    g.restarted(found=EXACT)
    assert g.kills()[-1] is Cause.CANARY, "other adapters than were asked for"


def test_after_going_back_the_canary_is_the_old_one() -> None:
    g = Governed(ready=False)
    g.ready(EXACT)
    switch(g)
    g.die()
    g.die()
    g.ready(OTHER)
    assert g.kills()[-1] is Cause.CANARY
    g.die()
    g.restarted(found=EXACT)
    assert g.state() == "ready"


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_close_while_those_from_before_are_served_ends_it_and_serves_all() -> None:
    g = Governed()
    _, stay = g.running()
    switch(g)
    since = g.submit()
    g.governor.close(30.0, g.now)
    g.tick()
    assert (outcomes(g), since in g.admitted()) == ([(1, "closed")], True)
    leaves(g, stay)
    leaves(g, g.stay_of(since))
    assert g.kills() == [Cause.CLOSE]


def test_a_close_while_the_engine_is_exchanged_serves_those_that_wait_by_the_new_one() -> None:
    g = Governed()
    switch(g)
    since = g.submit()
    g.governor.close(30.0, g.now)
    g.die()
    g.ready()
    assert (outcomes(g), g.admitted()) == ([(1, "done")], [since])


def test_closed_or_failed_there_is_nothing_to_switch() -> None:
    g = Governed()
    switch(g)
    g.governor.close(0.0, g.now)
    g.tick()
    g.die()
    assert (outcomes(g), g.state()) == ([(1, "closed")], "closed")
    other = Governed()
    other.governor.give_up("model", "gone", other.now)
    other.tick()
    other.die()
    switch(other)
    assert [(told.outcome, told.detail) for told in other.all(ev.Switched)] == [("closed", "gone")]


# --- others ----------------------------------------------------------------------------------------------------------


def test_one_that_supersedes_another_waits_for_the_new_engine_and_the_other_ends() -> None:
    g = Governed(evolve(LIMITS, running_max=1))
    _, stay = g.running()
    first = g.submit(owner="o", label="l")
    switch(g)
    second = g.submit(owner="o", label="l", supersede=True)
    assert g.reason(first) == "cancelled"
    leaves(g, stay)
    assert g.kills() == [Cause.RECYCLE]
    g.die()
    g.ready()
    assert g.admitted()[-1] == second


def test_an_engine_that_is_too_old_is_replaced_by_the_switch_alone() -> None:
    g = Governed(evolve(LIMITS, engine_age=20.0, recycle_drain=5.0))
    _, stay = g.running()
    g.step()
    g.tick(5.0)
    switch(g, drain=100.0)
    g.step()
    for _ in range(4):
        g.tick(5.0)
        g.step()
    assert g.governor.reason() == WAITS
    leaves(g, stay)
    assert g.kills() == [Cause.RECYCLE]


def test_the_record_replays_a_switch() -> None:
    assert {"exchange", "keep"} <= set(INPUTS)
    recorded = Recorded(LIMITS, forget_after=60.0, keep=100)
    recorded.start(1.0)
    recorded.tick(1.0)
    recorded.receive(ev.Ready(1, facts()), 2.0)
    recorded.exchange(1, 5.0, 3.0)
    recorded.tick(3.0)
    recorded.receive(ev.Exited(1, -9, ""), 4.0)
    recorded.tick(4.0)
    effects = recorded.poll()
    recorded.next_wakeup()
    again, repeated = replay(recorded.record())
    assert (portrait(again), repeated) == (portrait(recorded), effects)


# --- at random -------------------------------------------------------------------------------------------------------


def life(seed: int) -> Iterator[Governed]:
    """Submissions, ends, cancels, deaths, boots that fail, switches and time, in any order; the lane after each."""
    chance = random.Random(seed)
    g, number = Governed(evolve(LIMITS, running_max=2)), 0
    since: dict[int, int] = {}  # sequences -> switches that had begun when they were submitted
    for _ in range(120):
        stays = list(g.governor.stays.values())
        match chance.choice(["submit", "submit", "end", "end", "cancel", "switch", "die", "ready", "time", "keep"]):
            case "submit":
                since[g.submit(new=3, bounds=Bounds(total=chance.choice([2.0, 600.0])))] = number
            case "end" if stays:
                stay = chance.choice(stays)
                if stay.phase.value == "admitted":
                    leaves(g, stay.id)
                else:
                    g.step(released=(Release(stay.id, 1, 0.0, 0),))
            case "cancel" if g.governor.sequences:
                g.governor.cancel(chance.choice(list(g.governor.sequences)), g.now)
            case "switch":
                number += 1
                g.governor.exchange(number, chance.choice([0.0, 1.0, 50.0]), g.now)
            case "die":
                g.die(chance.choice([-9, 1, -11]))
                g.governor.restart(0.0, g.now)
            case "ready":
                g.ready(evolve(facts(), canary=(g.governor.equipment,), exact=True))
            case "keep":
                g.governor.keep(number, g.now)
            case _:
                g.tick(chance.choice([0.01, 0.3, 1.0]))
        g.tick()
        for stay in [s for s in g.governor.stays.values() if s.phase.value == "stopping" and chance.random() < 0.5]:
            g.step(stopping=(stay.id,), released=(Release(stay.id, 1, 0.0, 0),))
        yield g
    told = {effect.number for effect in g.all(ev.Switched)}
    running = set() if g.governor.switch is None else {g.governor.switch.number}
    assert told | running == set(range(1, number + 1)), "every one is told of"
    assert len(g.all(ev.Switched)) == len(told), "once"
    check_who_was_served_by_which(g, since)


def check_who_was_served_by_which(g: Governed, since: dict[int, int]) -> None:
    """Who was submitted before a switch is never in an engine of that switch, as long as it was not taken back."""
    in_force, done = 0, {effect.number for effect in g.all(ev.Switched) if effect.outcome == "done"}
    for effect in g.effects:
        if isinstance(effect, ev.Equip):
            in_force = effect.number
        elif isinstance(effect, ev.Admit) and effect.sequence in since and in_force in done:
            assert in_force <= since[effect.sequence], "it was submitted to another engine"


@pytest.mark.parametrize("seed", range(100))
def test_whatever_happens_a_switch_comes_to_an_end_and_nobody_is_lost(seed: int) -> None:
    for g in life(seed):
        governor = g.governor
        held = [s for s in governor.sequences.values() if s.later]
        assert len(held) == (0 if governor.switch is None else governor.switch.later)
        assert all(s.stay is None and s.phase.value == "waiting" for s in held)
    g.tick(60.0)
    for _ in range(40):
        for stay in list(g.governor.stays.values()):
            g.step(taken=(stay.id,), stopping=(stay.id,), released=(Release(stay.id, 1, 0.0, 0),))
        if g.governor.life.phase.value == "dying":
            g.die()
            g.governor.restart(0.0, g.now)
        g.tick()
        if g.governor.life.phase.value == "starting":
            g.ready(evolve(facts(), canary=(g.governor.equipment,), exact=True))
    assert (g.governor.switch, len(g.governor.sequences)) == (None, 0), g.governor.life


# --- the pipeline, in simulated time ---------------------------------------------------------------------------------


def test_health_says_so_and_who_came_since_is_served_after_it() -> None:
    with Simulation(model=SimModel(boot_s=4.0), limits=Limits(running_max=1)) as simulation:
        pipeline, driver = simulation.pipeline, simulation.pipeline._driver
        before = pipeline.submit([5, 6], max_new_tokens=50)
        simulation.advance(0.5)
        driver.post("exchange", 1, 100.0)
        since = pipeline.submit([5, 6], max_new_tokens=3)
        simulation.advance(0.01)
        health = pipeline.health()
        assert (health.state, health.reason) == (HealthState.READY, WAITS)
        before.result()
        assert since.phase == "waiting"
        simulation.advance(0.5)
        assert (pipeline.health().state, pipeline.health().reason) == (HealthState.RECOVERING, SWITCHES)
        assert since.result().finish_reason is FinishReason.LENGTH
        stats = pipeline.stats()
        assert (stats.recycled_total, stats.restarts_total, stats.incarnation) == (1, 0, 2)
        assert pipeline.health().reason == ""


def test_a_refusal_of_the_engine_is_no_stay_to_wait_for() -> None:
    g = Governed()
    sequence = g.submit()
    switch(g)
    g.step(refused=(Refusal(g.stay_of(sequence), "invalid", "no"),))
    assert (g.reason(sequence), g.kills()) == ("rejected", [Cause.RECYCLE])
