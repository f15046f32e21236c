"""Within one wake: what comes first, what is told first, and when the next one has to be."""

from typing import Any

import pytest
from core.governed import LIMITS, Governed

from boundedgen._bounds import Bounds
from boundedgen._core import _events as ev
from boundedgen._core._events import Finish, Output, Release
from boundedgen._core._times import RECLAIM

# --- what a report brings --------------------------------------------------------------------------------------------


def test_a_finish_wins_over_a_stop_in_the_same_report() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(outputs=(Output(stay, (5,)),), finished=(Finish(stay, "stop"),), stopping=(stay,))
    assert g.reason(sequence) == "stop"


@pytest.mark.parametrize(("late", "reason"), [(0.0, "stop"), (0.001, "deadline")])
def test_a_finish_counts_from_when_its_step_ended_however_late_it_is_heard(late: float, reason: str) -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=3.0))
    ended = g.now + 3.0 + late
    g.now += 10.0
    g.step(at=ended, outputs=(Output(stay, (5,)),), finished=(Finish(stay, "stop"),))
    assert g.reason(sequence) == reason


def test_steps_are_counted_once_over_all_incarnations_and_reports_without_one_count_nothing() -> None:
    g = Governed()
    g.step(), g.step()
    g.governor.receive(ev.Progress(1, 5, g.now, g.now, 3, 0.0, None), g.now)  # three steps in one report
    g.governor.receive(ev.Progress(1, 5, g.now, g.now, 0, 0.0, None), g.now)
    g.die()
    g.restarted()
    g.step()
    assert g.governor.tally.steps == 6


def test_what_a_stay_says_after_it_was_put_back_is_late_and_reaches_nobody() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(finished=(Finish(stay, "ignored"),))
    g.step(outputs=(Output(stay, (5, 6)),))
    assert g.all(ev.Emit) == []
    assert g.governor.tally.late_tokens == 2
    g.step(released=(Release(stay, 1, 0.01, 0),))
    assert g.admitted() == [sequence, sequence]


def test_of_two_deadlines_on_two_clocks_the_earlier_is_named() -> None:
    g = Governed()
    sequence, _ = g.running(bounds=Bounds(total=6.0, first_token=5.0))
    g.tick(7.0)
    settled = g.settled(sequence)
    assert settled is not None
    assert (settled.bound, settled.deadline) == ("first_token", 105.0)


def test_one_that_finished_has_to_be_released_like_one_that_was_stopped() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(outputs=(Output(stay, (5,)),), finished=(Finish(stay, "stop"),))
    assert g.reason(sequence) == "stop"
    for _ in range(LIMITS.reclaim_steps - 2):
        g.step()
    assert g.kills() == []
    g.step()
    assert g.kills() == [ev.Cause.RECLAIM]


@pytest.mark.parametrize("how", ["forgotten", "released", "empty"])
@pytest.mark.parametrize(("late", "reason"), [(False, "engine_lost"), (True, "deadline")])
def test_a_deadline_that_passed_while_nobody_looked_wins_over_the_loss(how: str, late: bool, reason: str) -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=10.0))
    ended, g.now = g.now + 1.0, g.now + (11.0 if late else 2.0)
    news: dict[str, dict[str, Any]] = {
        "forgotten": {"held": ()},
        "released": {"released": (Release(stay, 1, 0.01, 0),)},
        "empty": {"finished": (Finish(stay, "length"),)},
    }
    g.step(at=ended, **news[how])
    assert g.reason(sequence) == reason


def test_a_stop_that_crosses_the_end_is_taken_by_it_and_the_release_is_watched_from_there() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.governor.cancel(sequence, g.now)
    g.tick()
    g.step(finished=(Finish(stay, "stop"),))
    for _ in range(LIMITS.reclaim_steps - 2):
        g.step()
    assert g.kills() == []
    g.step()
    assert g.kills() == [ev.Cause.RECLAIM]


def test_a_stay_that_is_given_up_for_forgotten_was_no_reclaim() -> None:
    g = Governed()
    g.running()
    g.step(held=())
    (proof,) = g.all(ev.Prove)
    assert (proof.steps, proof.seconds, proof.proof) == (0, 0.0, "reconciled")
    assert sum(g.governor.tally.times.rows[RECLAIM]) == 0


def test_a_lease_knows_of_those_that_are_not_settled_and_of_no_others() -> None:
    g = Governed()
    lease = g.lease()
    first, second = g.submit(lease=lease), g.submit(lease=lease)
    g.governor.cancel(first, g.now)
    g.tick()
    row = g.governor.leases.get(lease)
    assert row is not None
    assert row.sequences == {second}


# --- what is told first ----------------------------------------------------------------------------------------------


def test_those_inside_are_answered_before_their_engine_is_killed() -> None:
    g = Governed()
    g.running()
    told = [type(effect) for effect in g.hear(ev.WireBroken(1, "noise"))]
    assert told.index(ev.Settle) < told.index(ev.Kill)


def test_a_cancel_that_comes_with_the_loss_of_the_engine_wins() -> None:
    g = Governed()
    sequence, _ = g.running()
    g.governor.receive(ev.StepRaised(1, 1, "no"), g.now)
    assert g.governor.cancel(sequence, g.now)
    g.tick()
    assert g.reason(sequence) == "cancelled"


def test_a_restart_that_is_due_in_the_wake_that_closes_does_not_happen() -> None:
    g = Governed()
    g.die()
    g.governor.restart(0.5, g.now)
    g.now += 0.5
    g.governor.close(5.0, g.now)
    g.tick()
    assert g.state() == "closed"
    assert len(g.all(ev.Spawn)) == 1


def test_a_probe_takes_no_place_of_the_others() -> None:
    g = Governed()
    probe = g.submit(probe=True, new=1)
    first, second = g.submit(), g.submit()
    assert g.admitted() == [probe, first, second]


# --- when to wake ----------------------------------------------------------------------------------------------------


def test_the_next_wake_is_when_a_killed_engine_has_to_have_left() -> None:
    g = Governed()
    g.hear(ev.WireBroken(1, "noise"))
    assert g.governor.next_wakeup() == g.now + LIMITS.reap


def test_the_next_wake_is_when_the_engine_is_to_be_started_again() -> None:
    g = Governed()
    g.die()
    assert g.governor.next_wakeup() is None, "the policy has not answered"
    g.governor.restart(1.5, g.now)
    assert g.governor.next_wakeup() == g.now + 1.5


def test_the_next_wake_is_when_the_drain_is_over() -> None:
    g = Governed()
    g.submit(cleared=False)  # nothing in the engine: no watchdog wakes anybody
    g.governor.close(2.5, g.now)
    g.tick()
    assert g.governor.next_wakeup() == g.now + 2.5


# --- what health hears -----------------------------------------------------------------------------------------------


def test_health_hears_of_every_state_once_and_in_order() -> None:
    g = Governed(ready=False)
    g.die(1)
    g.restarted()
    g.die()
    g.restarted()
    g.governor.close(0.0, g.now)
    g.tick()
    g.die()
    states = [effect.state for effect in g.all(ev.Became)]
    assert states == ["starting", "ready", "recovering", "ready", "draining", "closed"]


def test_a_newcomer_is_said_to_be_followed_where_others_wait_behind_it() -> None:
    g = Governed()
    first = g.submit()
    g.tick()
    for _ in range(3):
        g.submit(tick=False)
    g.tick()
    admitted = g.all(ev.Admit)
    assert [effect.followed for effect in admitted] == [False, True]
    assert admitted[0].sequence == first
