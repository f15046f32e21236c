"""The governor by hand: who wins, who waits, who is answered what, in every phase of the engine."""

from collections.abc import Callable

import pytest
from core.governed import KV, Governed, facts

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen._core._events import Cause, Finish, Output, Release
from boundedgen._core._times import RECLAIM
from boundedgen._errors import FinishReason

LONG = Bounds(total=600)


def released(stay: int) -> tuple[Release, ...]:
    return (Release(stay, 1, 0.01, 0),)


# --- who wins --------------------------------------------------------------------------------------------------------


def finish(g: Governed, sequence: int, stay: int) -> None:
    g.step(tick=False, outputs=(Output(stay, (5,)),), finished=(Finish(stay, "stop"),))


def cancel(g: Governed, sequence: int, stay: int) -> None:
    g.governor.cancel(sequence, g.now)


def expire(g: Governed, sequence: int, stay: int) -> None:
    """Its lease and its deadline end at the same instant, which the tick sees."""


def die(g: Governed, sequence: int, stay: int) -> None:
    g.governor.receive(ev.Exited(g.incarnation, -11, ""), g.now)


@pytest.mark.parametrize(
    ("events", "winner"),
    [
        ([finish, cancel, expire], "stop"),
        ([finish, die, expire], "stop"),
        ([cancel, expire], "cancelled"),
        ([expire], "lease"),
    ],
)
def test_ties_go_to_finish_then_cancel_then_lease(
    events: list[Callable[[Governed, int, int], None]], winner: str
) -> None:
    g = Governed()
    g.lease(ttl=5.0)
    sequence, stay = g.running(lease="lease", bounds=Bounds(total=5.0))
    g.now += 5.0
    for event in events:
        event(g, sequence, stay)
    g.tick()
    assert g.reason(sequence) == winner


@pytest.mark.parametrize(
    ("bounds", "winner", "at"),
    [
        (Bounds(total=3.0, first_token=2.0), "first_token", 2.0),
        (Bounds(total=2.0, first_token=3.0), "total", 2.0),
        (Bounds(total=9.0, queued=1.0, first_token=3.0), "first_token", 3.0),  # it was admitted at once
    ],
)
def test_of_several_deadlines_that_passed_the_earliest_is_named(bounds: Bounds, winner: str, at: float) -> None:
    g = Governed()
    began = g.now
    sequence, _ = g.running(bounds=bounds)
    g.tick(5.0)
    settled = g.settled(sequence)
    assert settled is not None
    assert (settled.reason, settled.bound) == ("deadline", winner)
    assert settled.deadline == pytest.approx(began + at)


def test_a_deadline_that_passed_comes_before_an_engine_that_is_overdue_in_the_same_wake() -> None:
    g = Governed()
    sequence, _ = g.running(bounds=Bounds(total=5.0))
    other, _ = g.running(bounds=LONG)
    g.governor.pulse(ev.Pulse(10, 9, g.now), g.now)
    g.tick(0.2)
    for _ in range(8):
        g.tick(0.3)
    g.tick(0.25)
    assert g.kills() == [Cause.STEP]
    assert g.reason(other) == "engine_lost"
    g2 = Governed()
    sequence, _ = g2.running(bounds=Bounds(total=2.0))
    g2.governor.pulse(ev.Pulse(10, 9, g2.now), g2.now)
    for _ in range(5):
        g2.tick(0.4)
    assert (g2.kills(), g2.reason(sequence)) == ([Cause.STEP], "deadline")


def test_expiry_comes_before_admission_in_a_tick() -> None:
    g = Governed()
    _, first = g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4, bounds=Bounds(total=3.0))
    g.now += 3.0
    g.step(finished=(Finish(first, "stop"),), released=released(first))
    assert g.reason(waits) == "deadline"
    assert waits not in g.admitted()


@pytest.mark.parametrize("kind", ["total", "queued", "first_token", "next_token"])
@pytest.mark.parametrize("bound", [0.0, -5.0, float("-inf")])
@pytest.mark.parametrize("ready", [True, False])
def test_a_bound_of_zero_or_less_ends_it_at_once_without_entering_the_engine(
    kind: str, bound: float, ready: bool
) -> None:
    g = Governed(ready=ready)
    sequence = g.submit(bounds=LONG.tightest(Bounds(**{kind: bound})))
    settled = g.settled(sequence)
    assert settled is not None
    assert (settled.reason, settled.bound, settled.held) == ("deadline", kind, False)
    assert g.admitted() == []


# --- who waits -------------------------------------------------------------------------------------------------------


def test_first_come_first_served_by_priority_and_nobody_is_overtaken() -> None:
    g = Governed()  # eight blocks of four tokens, two at once
    _, big = g.running(prompt=20, new=5)  # six blocks
    waits = g.submit(prompt=20, new=5)
    small = g.submit(prompt=1, new=1)
    urgent = g.submit(prompt=20, new=5, priority=1)
    assert g.admitted() == [1], "the small one would fit, and waits behind those that came before"
    g.step(finished=(Finish(big, "stop"),), released=released(big))
    assert g.admitted() == [1, urgent]
    g.step(
        taken=(g.stay_of(urgent),), finished=(Finish(g.stay_of(urgent), "stop"),), released=released(g.stay_of(urgent))
    )
    assert g.admitted() == [1, urgent, waits, small]


def test_capacity_comes_back_with_the_proof_and_not_with_the_answer() -> None:
    g = Governed()
    sequence, stay = g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    g.governor.cancel(sequence, g.now)
    g.tick()
    assert g.reason(sequence) == "cancelled"
    assert g.all(ev.Stop) == [ev.Stop(1, stay)]
    g.step(stopping=(stay,))
    assert waits not in g.admitted()
    g.step(released=released(stay))
    assert waits in g.admitted()
    assert sum(g.governor.tally.times.rows[RECLAIM]) == 1


def test_one_that_the_engine_ran_out_of_cache_for_keeps_its_place_and_waits_for_its_own_proof() -> None:
    g = Governed()
    sequence, stay = g.running(prompt=29, new=4)
    later = g.submit(prompt=29, new=4)
    g.step(finished=(Finish(stay, "ignored"),))
    assert g.admitted() == [sequence]
    assert g.reason(sequence) is None
    g.step(released=released(stay))
    assert g.admitted() == [sequence, sequence], "before the one that came later"
    assert g.stay_of(sequence) != stay
    assert g.reason(later) is None


def test_one_that_is_lost_to_the_cache_again_and_again_is_given_up() -> None:
    g = Governed()
    sequence, stay = g.running()
    for _ in range(3):
        stay = g.stay_of(sequence)
        g.step(taken=(stay,))
        g.step(finished=(Finish(stay, "ignored"),), released=released(stay))
    assert g.reason(sequence) == "cache_exhausted"
    assert g.admitted() == [sequence] * 3


def test_one_that_has_shown_a_token_is_not_tried_again() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(outputs=(Output(stay, (1,)),))
    g.step(finished=(Finish(stay, "ignored"),))
    assert g.reason(sequence) == "cache_exhausted"


def test_what_can_never_fit_is_refused_also_by_an_engine_that_came_back_smaller() -> None:
    g = Governed()
    g.running(prompt=29, new=4)
    waits = g.submit(prompt=25, new=4)
    assert g.reason(g.submit(prompt=30, new=4)) == "rejected"
    g.die()
    g.restarted(found=facts(ev.PoolFacts("kv", 7, 4)))
    assert g.reason(waits) == "rejected"


def test_one_whose_grammar_is_being_checked_holds_up_nobody() -> None:
    g = Governed()
    checked = g.submit(cleared=False)
    other = g.submit()
    assert g.admitted() == [other]
    g.governor.clear(checked, g.now)
    g.governor.clear(checked, g.now)
    g.tick()
    assert g.admitted() == [other, checked]


def test_one_whose_grammar_does_not_compile_is_rejected_with_the_reason() -> None:
    g = Governed()
    sequence = g.submit(cleared=False)
    g.governor.refuse(sequence, "no such grammar", g.now)
    g.governor.clear(sequence, g.now)
    g.tick()
    settled = g.settled(sequence)
    assert settled is not None
    assert (settled.reason, settled.detail) == ("rejected", "no such grammar")
    assert g.admitted() == []


# --- the probe -------------------------------------------------------------------------------------------------------


def test_a_probe_waits_for_nobody_and_is_in_no_total() -> None:
    g = Governed()
    g.running(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    probe = g.submit(probe=True, new=1)
    assert g.admitted() == [1, probe]
    census = g.governor.census()
    assert (census.waiting, census.running, g.governor.tally.submitted) == (1, 1, 2)
    stay, before = g.stay_of(probe), g.governor.tally.tokens
    g.step(taken=(stay,), outputs=(Output(stay, (1,)),), finished=(Finish(stay, "length"),))
    assert g.reason(probe) == "length"
    census = g.governor.census()
    assert (census.waiting, census.running, census.stopping, census.stopping_since) == (1, 1, 0, None)
    g.step(released=released(stay))
    assert g.governor.tally.tokens == before
    assert not g.governor.tally.finished
    assert g.reason(waits) is None


def test_probes_are_run_one_after_the_other_in_their_one_place() -> None:
    g = Governed()
    first, second = g.submit(probe=True, new=1), g.submit(probe=True, new=1)
    assert g.admitted() == [first]
    stay = g.stay_of(first)
    g.step(taken=(stay,), outputs=(Output(stay, (1,)),), finished=(Finish(stay, "length"),))
    assert g.admitted() == [first], "its block is free when its release is proved"
    g.step(released=released(stay))
    assert g.admitted() == [first, second]


# --- what the engine says --------------------------------------------------------------------------------------------


def test_a_stay_that_the_child_stopped_at_its_deadline_ends_deadline() -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=3.0))
    g.now += 3.0
    g.step(stopping=(stay,), released=released(stay))
    assert g.reason(sequence) == "deadline"


def test_tokens_after_the_stop_was_taken_are_dropped_and_counted() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.governor.cancel(sequence, g.now)
    g.tick()
    g.step(outputs=(Output(stay, (1, 2)),), released=(Release(stay, 1, 0.1, 3),))
    assert g.all(ev.Emit) == []
    assert g.governor.tally.late_tokens == 5


def test_an_admission_that_the_engine_refuses_ends_rejected_and_gives_its_room_back() -> None:
    g = Governed()
    sequence = g.submit(prompt=29, new=4)
    waits = g.submit(prompt=29, new=4)
    g.step(refused=(ev.Refusal(g.stay_of(sequence), "invalid", "the engine's words"),))
    settled = g.settled(sequence)
    assert settled is not None
    assert (settled.reason, settled.detail) == ("rejected", "the engine's words")
    assert waits in g.admitted()


def test_a_stay_that_the_engine_forgot_ends_engine_lost() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(held=(stay,))
    assert g.reason(sequence) is None
    g.step(held=())
    assert g.reason(sequence) == "engine_lost"
    assert g.governor.tally.forgotten == 1
    assert [p.proof for p in g.all(ev.Prove)] == ["reconciled"]


def test_an_admission_that_is_still_on_its_way_is_not_taken_for_forgotten() -> None:
    g = Governed()
    sequence = g.submit()
    g.step(held=())
    assert g.reason(sequence) is None


def test_a_stay_that_only_the_engine_knows_is_stopped() -> None:
    g = Governed()
    g.step(held=(99,))
    assert g.all(ev.Stop) == [ev.Stop(1, 99)]
    assert g.governor.tally.ghosts == 1


def test_words_of_another_incarnation_change_nothing() -> None:
    g = Governed()
    _sequence, stay = g.running()
    g.die()
    g.restarted()
    before = len(g.effects)
    g.hear(
        ev.Progress(1, 9, g.now, g.now, 1, 0.5, (), outputs=(Output(stay, (1,)),), released=released(stay)),
        ev.StepRaised(1, 1, ""),
        ev.WireBroken(1, ""),
        ev.Exited(1, 0, ""),
        ev.Ready(1, facts()),
    )
    assert g.effects[before:] == []
    assert g.state() == "ready"


@pytest.mark.parametrize("why", ["length", "stop"])
def test_a_finish_without_a_token_is_no_result(why: str) -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(finished=(Finish(stay, why),))
    assert g.reason(sequence) == "engine_lost"


# --- once, and never again -------------------------------------------------------------------------------------------


def test_cancelling_what_is_settled_changes_nothing_and_says_so() -> None:
    g = Governed()
    sequence, _ = g.running()
    assert g.governor.cancel(sequence, g.now)
    assert not g.governor.cancel(sequence, g.now)
    assert not g.governor.cancel(12345, g.now)
    g.tick()
    assert g.governor.tally.finished == {"cancelled": 1}


def test_the_totals_add_up_in_every_phase() -> None:
    g = Governed(Limits(ended_kept=3))
    for n in range(10):
        sequence = g.submit(prompt=1 + n)
        if n % 3 == 0:
            g.governor.cancel(sequence, g.now, FinishReason.SLOW_READER if n else FinishReason.CANCELLED)
        g.tick()
        tally, census = g.governor.tally, g.governor.census()
        assert tally.submitted == tally.finished.total() + census.waiting + census.running == n + 1
    assert len(g.governor.ended) == 3


def test_without_reservation_only_the_number_counts() -> None:
    g = Governed(admission=Admission(policy="engine"))
    first, second, third = (g.submit(prompt=29, new=4) for _ in range(3))
    assert g.admitted() == [first, second]
    assert g.reason(third) is None


def test_a_driver_that_was_stopped_does_not_blame_the_engine() -> None:
    g = Governed()
    g.running()
    g.governor.pulse(ev.Pulse(9, 8, g.now), g.now)
    g.collect()
    g.tick(100.0)
    assert g.kills() == [], "the step may have ended long ago; nobody was there to see"
    for _ in range(6):
        g.tick(0.4)
    assert g.kills() == [Cause.STEP]


def test_the_smallest_pool_decides_and_each_is_reserved() -> None:
    g = Governed(ready=False)
    g.ready(facts(KV, ev.PoolFacts("linear_attention", 2, None), running_max=4))
    one, two = g.submit(), g.submit()
    assert g.admitted() == [one]
    assert g.reason(two) is None
    assert g.governor.ledger.reserved == [1, 1]
