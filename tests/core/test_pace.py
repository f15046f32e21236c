"""Budgets of steps: what is slow and goes on returning is never killed for it, and what hangs always is."""

from collections.abc import Iterable

import pytest
from core.governed import Governed
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._bounds import Limits
from boundedgen._core._events import Progress, Pulse
from boundedgen._core._pace import (
    FIRST_STEPS,
    FORGET,
    MARGIN,
    NEW_STEPS,
    SHAPES,
    Pace,
    configured,
    shape_of,
)
from boundedgen._core._watch import Watch

LIMITS = Limits(first_step=0.0, new_shape=0.0, step=10.0, step_per_token=0.02, step_per_attention=2e-6, step_max=120.0)
TINY = 1e-6

limits = st.builds(
    Limits,
    first_step=st.sampled_from([0.0, 4.0, 120.0]),
    new_shape=st.sampled_from([0.0, 3.0, 20.0]),
    step=st.sampled_from([0.5, 10.0, 200.0]),
    step_per_token=st.sampled_from([0.0, 0.02]),
    step_per_attention=st.sampled_from([0.0, 2e-6]),
    step_max=st.sampled_from([0.25, 10.0, 120.0]),
)
tokens = st.sampled_from([0, 1, 2, 3, 4, 100, 4096, 1 << 20, 1 << 40]) | st.integers(0, 10_000)
loads = st.tuples(tokens, st.integers(0, 10**9))
#: seconds that a step took; None: the driver stood still meanwhile, or it was merged with others
steps = st.lists(st.tuples(loads, st.none() | st.floats(0, 1e4)), max_size=30)


def in_step(number: int, load: tuple[int, int], at: float = 0.0) -> Pulse:
    return Pulse(number, number - 1, begun_at=at, scheduled=load[0], attention=load[1])


def taught(limits: Limits, history: Iterable[tuple[tuple[int, int], float | None]]) -> Pace:
    pace = Pace(limits)
    for load, took in history:
        pace.completed(*load, took)
    return pace


def decoding(pace: Pace, *took: float) -> Pace:
    """Steps of one token."""
    for seconds in took:
        pace.completed(1, 100, seconds)
    return pace


def decode_budget(pace: Pace) -> float:
    return pace.budget(in_step(100, (1, 100)))


# --- what holds for whatever was learned ---------------------------------------------------------------------------


@given(limits, steps, st.integers(1, 10), loads)
def test_a_budget_is_never_below_what_the_limits_give_nor_above_the_most_they_allow(
    limits: Limits, history: list[tuple[tuple[int, int], float | None]], number: int, load: tuple[int, int]
) -> None:
    budget = taught(limits, history).budget(in_step(number, load))
    first = limits.first_step if number <= FIRST_STEPS else 0.0
    assert budget >= min(configured(limits, *load), limits.step_max) + first
    assert budget <= limits.step_max + max(first, limits.new_shape)


@given(limits, steps, loads, loads)
def test_more_tokens_never_have_a_smaller_budget_but_for_the_allowance_of_a_new_size(
    limits: Limits, history: list[tuple[tuple[int, int], float | None]], one: tuple[int, int], other: tuple[int, int]
) -> None:
    pace = taught(limits, history)
    for _ in range(NEW_STEPS):
        pace.completed(*one, None)
        pace.completed(*other, None)
    less = min(one[0], other[0]), min(one[1], other[1])
    more = max(one[0], other[0]), max(one[1], other[1])
    assert pace.budget(in_step(100, less)) <= pace.budget(in_step(100, more))


@given(limits, steps, st.integers(1, 10), loads)
def test_a_step_that_does_not_return_is_always_overdue_in_the_end(
    limits: Limits, history: list[tuple[tuple[int, int], float | None]], number: int, load: tuple[int, int]
) -> None:
    watch = Watch(limits, pace=taught(limits, history))
    watch.ready()
    watch.pulse = in_step(number, load, at=50.0)
    latest = 50.0 + limits.step_max + max(limits.first_step, limits.new_shape)
    assert watch.verdict(latest + TINY) is not None


@given(limits, st.lists(st.sampled_from([float("nan"), float("inf"), -1.0, -float("inf"), 0.0, 1e300])))
def test_durations_that_cannot_be_leave_a_budget_within_its_bounds(limits: Limits, odd: list[float]) -> None:
    budget = decode_budget(decoding(Pace(limits), *odd, *odd))
    assert min(configured(limits, 1, 100), limits.step_max) <= budget <= limits.step_max + limits.new_shape


@given(st.floats(1.0, 11.9), st.floats(1.0, 1.5), loads.filter(lambda load: configured(LIMITS, *load) < 60))
def test_a_machine_that_becomes_slow_little_by_little_is_never_killed_for_it(
    times: float, growth: float, load: tuple[int, int]
) -> None:
    """Up to what `step_max` allows."""
    pace, slowness = Pace(LIMITS), 0.5
    ends = min(times, 0.99 * LIMITS.step_max / configured(LIMITS, *load))
    for number in range(10, 200):
        took = slowness * configured(LIMITS, *load)
        assert took < pace.budget(in_step(number, load))
        pace.completed(*load, took)
        slowness = min(ends, slowness * growth)


@given(st.floats(0.002, 0.9), st.integers(2, 50))
def test_one_that_suddenly_takes_a_thousand_times_as_long_is(usual: float, steps: int) -> None:
    pace = decoding(Pace(LIMITS), *[usual * 10.0] * steps)
    assert 1000 * usual * 10.0 > decode_budget(pace)


# --- learning --------------------------------------------------------------------------------------------------------


def test_where_steps_take_long_the_next_one_may_take_five_times_that() -> None:
    assert decode_budget(decoding(Pace(LIMITS), 20.0, 20.0)) == pytest.approx(MARGIN * 20.0)
    assert decode_budget(decoding(Pace(LIMITS), 0.03, 0.03)) == pytest.approx(10.0, rel=1e-2), "never less than given"
    assert decode_budget(decoding(Pace(LIMITS), 60.0, 60.0)) == LIMITS.step_max


def test_one_slow_step_that_returned_teaches_nothing() -> None:
    ordinary = decode_budget(decoding(Pace(LIMITS), 0.03, 0.03))
    stuck = decoding(Pace(LIMITS), 0.03, 9.0, 0.03, 9.0, 0.03)
    assert decode_budget(stuck) == ordinary


def test_a_size_inherits_from_smaller_ones_and_not_from_larger_ones() -> None:
    slow_prompts = taught(LIMITS, [((1000, 10**6), 90.0)] * 2)
    assert decode_budget(slow_prompts) == pytest.approx(10.0, rel=1e-2), "a hang in decoding is found as before"
    slow_decoding = decoding(Pace(LIMITS), 20.0, 20.0)
    assert slow_decoding.budget(in_step(100, (100, 0))) > 100.0


def test_a_rate_is_forgotten_slowly_by_quicker_steps_of_its_own_size_only() -> None:
    pace = decoding(Pace(LIMITS), 20.0, 20.0)
    for _ in range(10_000):
        pace.completed(64, 0, 0.1)
    assert decode_budget(pace) == pytest.approx(100.0)
    decoding(pace, *[0.1] * int(1 / FORGET))
    assert 10.1 < decode_budget(pace) < 40.0
    decoding(pace, *[0.1] * int(2 / FORGET))
    assert decode_budget(pace) == configured(LIMITS, 1, 100)


def test_the_next_engine_keeps_what_was_learned_of_the_machine_and_finds_every_size_new() -> None:
    pace = decoding(Pace(Limits(first_step=0.0)), 20.0, 20.0)
    assert decode_budget(pace) == pytest.approx(100.0)
    pace.boot()
    assert decode_budget(pace) == pytest.approx(100.0 + pace.limits.new_shape)
    decoding(pace, 60.0)
    assert decode_budget(pace) < 100.0 + pace.limits.new_shape, "no step of the engine before confirms one of this"


def test_what_was_learned_stays_within_a_fixed_room() -> None:
    pace = taught(LIMITS, [((1 << n, 0), 100.0) for n in range(80)])
    assert len(pace.rates) == SHAPES
    assert [shape_of(n) for n in (0, 1, 2, 3, 4, 7, 8, 1 << 80)] == [0, 1, 2, 2, 3, 3, 4, SHAPES - 1]


# --- allowances ------------------------------------------------------------------------------------------------------


def test_the_first_steps_and_no_later_ones_have_the_extra_budget() -> None:
    pace = Pace(Limits(first_step=40.0, new_shape=0.0))
    budgets = [pace.budget(Pulse(number, number - 1)) for number in range(1, FIRST_STEPS + 3)]
    assert budgets == [50.0] * FIRST_STEPS + [10.0] * 2


def test_the_first_two_steps_of_each_size_have_an_allowance_and_no_later_ones() -> None:
    pace = Pace(Limits(step_per_token=0.0, step_per_attention=0.0, new_shape=20.0))
    for size in (1, 5, 1000):
        budgets = []
        for _ in range(NEW_STEPS + 2):
            budgets.append(pace.budget(in_step(100, (size, 0))))
            pace.completed(size, 0, None)
        assert budgets == [30.0] * NEW_STEPS + [10.0] * 2
    assert pace.budget(in_step(100, (7, 0))) == 10.0, "of one size with 5"


def test_of_the_two_allowances_the_larger_one_counts() -> None:
    for first, new in ((40.0, 20.0), (20.0, 40.0)):
        assert Pace(Limits(first_step=first, new_shape=new)).budget(in_step(1, (0, 0))) == 10.0 + 40.0


def test_a_slow_size_that_is_new_has_the_time_to_prove_that_it_is_slow_and_not_stuck() -> None:
    """The rate of prompts in the limits is half of what this machine can: no chunk is killed."""
    limits = Limits(step=1.0, step_per_token=0.005, step_per_attention=0.0, new_shape=20.0, first_step=0.0)
    pace, load = Pace(limits), (2000, 0)
    for number in range(1, 20):
        assert pace.budget(in_step(number, load)) > 22.0
        pace.completed(*load, 22.0)


# --- what is heard ---------------------------------------------------------------------------------------------------


def report(steps: int, began: float, ended: float, size: int = 1) -> Progress:
    return Progress(1, steps, began, ended, 1, 0.0, None, tokens=size)


def watching() -> Watch:
    watch = Watch(LIMITS)
    watch.boot(0.0)
    watch.ready()
    return watch


def test_only_a_report_of_one_step_teaches() -> None:
    watch = watching()
    for n in range(1, 5):
        watch.reported(report(2 * n, 50.0 * n, 50.0 * n + 40.0), 50.0 * n + 40.0)
    assert max(watch.pace.rates) == 0.0
    for n in range(5, 8):
        watch.reported(report(n + 4, 50.0 * n, 50.0 * n + 40.0), 50.0 * n + 40.0)
    assert max(watch.pace.rates) == pytest.approx(4.0, rel=1e-2)


def test_steps_during_which_the_driver_stood_still_teach_nothing() -> None:
    watch = watching()
    for n in range(1, 5):
        began = 50.0 * n
        watch.woke(began, began + 40.0)
        watch.reported(report(n, began, began + 40.5), began + 40.5)
    assert max(watch.pace.rates) == 0.0


def test_a_hung_step_is_found_by_a_driver_that_stalls_again_and_again() -> None:
    g = Governed()
    g.running()
    began, stalls = g.now, 0
    g.steps += 1
    while g.governor.life.up:
        for late in (1.0, 1.0, 1.0, 3.0):
            g.governor.next_wakeup()
            g.now += late
            stalls += late > 1.0
            g.governor.pulse(Pulse(g.steps, g.steps - 1, began, began, 0.0), g.now)
            g.tick()
        assert stalls < 100, "a hung step is believed for ever"
    assert stalls >= 2, "and not before its budget was used up"


def test_a_report_that_is_heard_in_the_wake_after_a_standstill_teaches_nothing() -> None:
    g = Governed()
    g.running()
    g.governor.next_wakeup()
    for _ in range(3):
        began, g.now = g.now + 0.1, g.now + 20.0  # nobody was turned meanwhile
        g.steps += 1
        g.governor.pulse(Pulse(g.steps, g.steps, began, g.now), g.now)
        g.governor.receive(Progress(1, g.steps, began, g.now, 1, 0.0, None), g.now)
        g.tick()
    assert max(g.governor.watch.pace.rates) == 0.0
