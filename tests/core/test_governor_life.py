"""The engine's life as the governor leads it: deaths, restarts, giving up, closing, in every phase."""

import pytest
from attrs import evolve
from core.governed import LIMITS, Governed, facts

from boundedgen._bounds import Bounds
from boundedgen._core import _events as ev
from boundedgen._core._events import Cause, Finish, Output, Release


def released(stay: int) -> tuple[Release, ...]:
    return (Release(stay, 1, 0.01, 0),)


# --- the engine's life -----------------------------------------------------------------------------------------------


def test_running_ones_are_lost_with_the_engine_and_waiting_ones_keep_their_place() -> None:
    g = Governed()
    running, _ = g.running(prompt=29, new=4)
    first, second = g.submit(prompt=29, new=4), g.submit()
    g.die()
    assert (g.reason(running), g.reason(first), g.reason(second)) == ("engine_lost", None, None)
    assert [p.proof for p in g.all(ev.Prove)] == ["died"]
    g.restarted()
    assert g.admitted() == [running, first]
    assert g.governor.tally.restarts == 1


def test_callers_are_answered_before_the_process_has_left() -> None:
    g = Governed()
    running, _ = g.running()
    g.hear(ev.StepRaised(1, 1, "boom"))
    assert g.reason(running) == "engine_lost"
    assert g.all(ev.Prove) == [], "and what it held is gone only with it"
    assert g.governor.ledger.held == 1
    g.die()
    assert len(g.all(ev.Prove)) == 1


def test_the_total_runs_on_while_the_engine_is_replaced_and_next_token_does_not() -> None:
    g = Governed()
    g.running(prompt=29, new=4)
    total = g.submit(prompt=29, new=4, bounds=Bounds(total=20.0))
    first = g.submit(bounds=Bounds(total=600, first_token=3.0))
    g.die()
    g.tick(19.0)
    assert (g.reason(total), g.reason(first)) == (None, None)
    g.tick(1.0)
    assert (g.reason(total), g.reason(first)) == ("deadline", None)
    g.restarted()
    g.tick(2.9)
    assert g.reason(first) is None
    g.tick(0.2)
    assert g.reason(first) == "deadline"


def test_the_policy_is_asked_once_a_death_with_the_failures_in_a_row() -> None:
    g = Governed()
    g.die()
    g.restarted()
    g.die()
    assert [(d.failures, d.incarnation) for d in g.all(ev.DecideRestart)] == [(1, 1), (2, 2)]
    g.governor.restart(5.0, g.now)
    g.governor.restart(None, g.now)
    g.governor.restart(0.0, g.now)
    assert g.tick(4.9) == []
    assert [type(effect) for effect in g.tick(0.1)] == [ev.Spawn], "the first answer counts"


def test_giving_up_settles_everybody_and_whoever_comes_after() -> None:
    g = Governed()
    g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    g.die()
    g.governor.restart(None, g.now)
    g.tick()
    assert g.state() == "failed"
    assert g.reason(waits) == "engine_failed"
    assert g.reason(g.submit()) == "engine_failed"
    assert g.governor.next_wakeup() is None


def test_failures_are_forgotten_after_serving_for_a_while_and_not_by_a_mere_boot() -> None:
    g = Governed(forget_after=10.0)
    g.die()
    g.restarted()
    g.tick(60.0)
    g.die()
    g.restarted()
    assert [d.failures for d in g.all(ev.DecideRestart)] == [1, 2]
    _sequence, stay = g.running()
    g.now += 10.0
    g.step(outputs=(Output(stay, (1,)),))
    g.die()
    assert [d.failures for d in g.all(ev.DecideRestart)] == [1, 2, 1]


def test_a_boot_failure_that_cannot_heal_is_final() -> None:
    g = Governed(ready=False)
    waits = g.submit()
    g.hear(ev.BootFailed(1, "model", "no such file", True))
    assert g.kills() == [Cause.BOOT]
    g.die(1)
    assert g.state() == "failed"
    assert g.all(ev.DecideRestart) == []
    assert g.reason(waits) == "engine_failed"


def test_a_boot_failure_that_may_heal_is_tried_again() -> None:
    g = Governed(ready=False)
    g.hear(ev.BootFailed(1, "memory", "not now", False))
    g.die(1)
    assert len(g.all(ev.DecideRestart)) == 1
    g.restarted()
    assert g.state() == "ready"


def test_an_engine_whose_canary_differs_is_killed_before_anybody_reaches_it() -> None:
    g = Governed(ready=False)
    g.ready(answering(1, 2))
    g.die()
    waits = g.submit()
    g.restarted(found=answering(1, 3))
    assert g.kills() == [Cause.CANARY]
    assert "[1, 3], that of an engine before as [1, 2]: token ids of" in g.all(ev.Kill)[-1].detail
    assert g.admitted() == []
    g.die()
    g.restarted(found=answering(1, 2))
    assert (g.state(), g.admitted()) == ("ready", [waits])


def test_two_engines_in_a_row_that_agree_are_believed_rather_than_the_one_before() -> None:
    g = Governed(ready=False)
    g.ready(answering(1, 2))
    for _ in range(2):
        g.die()
        g.restarted(found=answering(1, 3))
    assert g.state() == "ready"
    g.die()
    g.restarted(found=answering(1, 2))
    assert g.state() == "recovering"


def test_a_canary_of_settings_that_may_vary_only_has_to_come_back() -> None:
    g = Governed(ready=False)
    g.ready(answering(1, 2, exact=False))
    g.die()
    g.restarted(found=answering(1, 3, exact=False))
    assert g.state() == "ready"


def answering(*canary: int, exact: bool = True) -> ev.EngineFacts:
    return evolve(facts(), canary=canary, exact=exact)


@pytest.mark.parametrize("phase", ["starting", "up", "dying", "down", "waiting to start"])
def test_what_the_pipeline_cannot_do_without_fails_it_in_every_phase(phase: str) -> None:
    g = Governed(ready=phase != "starting")
    waits = g.submit(prompt=29, new=4)
    if phase == "dying":
        g.hear(ev.WireBroken(1, ""))
    if phase in ("down", "waiting to start"):
        g.die()
    if phase == "waiting to start":
        g.governor.restart(5.0, g.now)
    g.governor.give_up("model", "no tokenizer", g.now)
    g.tick()
    if phase not in ("down", "waiting to start"):
        g.die()
    g.tick(10.0)
    assert g.state() == "failed"
    assert "no tokenizer" in g.governor.failed_because
    assert g.reason(waits) in ("engine_failed", "engine_lost")
    assert len(g.all(ev.Spawn)) == 1


def test_a_killed_engine_that_does_not_leave_is_never_given_a_second_one_beside_it() -> None:
    g = Governed()
    running, _stay = g.running()
    g.hear(ev.WireBroken(1, ""))
    g.tick(LIMITS.reap - 0.01)
    assert g.state() == "recovering"
    g.tick(0.02)
    assert g.state() == "failed"
    assert g.reason(running) == "engine_lost"
    assert g.reason(g.submit()) == "engine_failed"


def test_what_an_engine_held_that_left_too_late_is_proved_gone_all_the_same() -> None:
    g = Governed()
    _, stay = g.running()
    g.hear(ev.WireBroken(1, ""))
    g.tick(LIMITS.reap + 0.1)
    assert g.all(ev.Prove) == []
    g.die()
    assert [(p.stay, p.proof) for p in g.all(ev.Prove)] == [(stay, "died")]
    assert g.state() == "failed"


@pytest.mark.parametrize("cause", [Cause.STEP, Cause.BOOT, Cause.RECLAIM, Cause.PROGRESS, Cause.ACK])
def test_the_watch_s_verdict_kills_and_is_counted(cause: Cause) -> None:
    g = Governed(ready=cause is not Cause.BOOT)
    if cause is not Cause.BOOT:
        sequence = g.submit()
        if cause is not Cause.ACK:
            g.step(taken=(g.stay_of(sequence),))
        if cause is Cause.RECLAIM:
            g.governor.cancel(sequence, g.now)
            g.step(stopping=(g.stay_of(sequence),))
        if cause is Cause.STEP:
            g.governor.pulse(ev.Pulse(9, 8, g.now), g.now)
    for _ in range(30):
        g.tick(0.4)
    assert g.kills() == [cause]
    assert g.governor.tally.kills == {cause.value: 1}


# --- closing ---------------------------------------------------------------------------------------------------------


def closing_phase(phase: str) -> Governed:
    g = Governed(ready=phase != "starting")
    if phase in ("dying", "down", "respawning", "failed"):
        g.hear(ev.WireBroken(1, ""))
    if phase in ("down", "respawning", "failed"):
        g.die()
    if phase == "respawning":
        g.governor.restart(1.0, g.now)
    if phase == "failed":
        g.governor.restart(None, g.now)
    return g


PHASES = ["starting", "up", "dying", "down", "respawning", "failed"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("drain", [0.0, 5.0])
def test_close_ends_everything_in_every_phase(phase: str, drain: float) -> None:
    g = closing_phase(phase)
    sequence = g.submit()
    g.governor.close(drain, g.now)
    g.governor.close(100.0, g.now)
    late = g.submit()
    assert g.reason(late) in ("shutdown", "engine_failed")
    g.tick(drain)
    if phase in ("starting", "up", "dying"):
        g.die()
    g.tick()
    assert g.state() == "closed"
    assert g.reason(sequence) in ("shutdown", "engine_failed")
    assert not g.governor.sequences
    assert len(g.all(ev.Spawn)) == 1
    g.governor.close(0.0, g.now)
    g.hear(ev.Exited(1, 0, ""))
    assert g.governor.next_wakeup() is None


def test_a_drain_lets_what_is_inside_end_and_closes_when_the_last_has() -> None:
    g = Governed()
    running, stay = g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    g.governor.close(30.0, g.now)
    g.tick()
    assert g.state() == "draining"
    g.step(outputs=(Output(stay, (1,)),), finished=(Finish(stay, "stop"),), released=released(stay))
    assert g.reason(running) == "stop"
    stay = g.stay_of(waits)
    assert g.kills() == []
    g.step(outputs=(Output(stay, (1,)),), finished=(Finish(stay, "stop"),))
    assert g.reason(waits) == "stop"
    assert g.kills() == [Cause.CLOSE]


def test_a_later_close_can_only_shorten_the_drain() -> None:
    g = Governed()
    sequence, _ = g.running()
    g.governor.close(10.0, g.now)
    g.governor.close(50.0, g.now)
    g.governor.close(2.0, g.now)
    g.tick(1.9)
    assert g.reason(sequence) is None
    g.tick(0.1)
    assert g.reason(sequence) == "shutdown"


def test_deadlines_leases_and_watchdogs_go_on_while_it_drains() -> None:
    g = Governed()
    g.lease(ttl=1.0)
    leased, _ = g.running(lease="lease")
    bound, _ = g.running(bounds=Bounds(total=2.0))
    g.governor.close(30.0, g.now)
    g.tick(1.0)
    assert g.reason(leased) == "lease"
    g.tick(1.0)
    assert g.reason(bound) == "deadline"


def test_a_death_while_it_drains_is_not_followed_by_another_engine() -> None:
    g = Governed()
    running, _ = g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    g.governor.close(30.0, g.now)
    g.die()
    assert g.state() == "closed"
    assert {g.reason(running), g.reason(waits)} <= {"engine_lost", "shutdown"}
    assert len(g.all(ev.Spawn)) == 1


def test_an_engine_that_cannot_be_killed_does_not_hold_up_closing() -> None:
    g = Governed()
    g.running()
    g.governor.close(0.0, g.now)
    g.tick()
    g.tick(LIMITS.reap)
    assert g.state() == "closed"
