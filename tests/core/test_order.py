"""Who is next: priority classes with ageing, fair shares of owners, the earliest deadline; however many wait."""

import gc
import random
import statistics
import time
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundedgen import Bounds, Limits
from boundedgen._core._order import Order
from boundedgen._core._sequences import Sequence, Submission
from boundedgen.testing import SimModel, Simulation

AGEING = 30.0


def sequence(
    number: int, *, owner: str = "", priority: int = 0, total: float = 600.0, at: float = 0.0, tokens: int = 64
) -> Sequence:
    bounds = Bounds(total=total)
    submission = Submission(number, tokens, tokens, bounds=bounds, submitted_at=at, owner=owner, priority=priority)
    return Sequence(submission, 0.0)


def served(order: Order, now: float = 0.0, step: float = 0.0, most: int = 10**9) -> list[Sequence]:
    """Admit until nobody waits, one every `step` seconds."""
    found: list[Sequence] = []
    while len(found) < most and (head := order.head()) is not None:
        order.admit(head, now)
        order.used(head.submission, head.submission.max_new_tokens)
        found.append(head)
        now += step
    return found


def ids(sequences: list[Sequence]) -> list[int]:
    return [s.id for s in sequences]


def test_equals_come_in_the_order_of_submission() -> None:
    order = Order(AGEING, {})
    for n in (3, 1, 2):
        order.add(sequence(n, at=float(n)), 0.0)
    assert ids(served(order)) == [1, 2, 3]


def test_the_earliest_deadline_of_an_owner_comes_first() -> None:
    order = Order(AGEING, {})
    for n, total in enumerate([20.0, 5.0, 10.0]):
        order.add(sequence(n, total=total), 0.0)
    assert ids(served(order)) == [1, 2, 0]


def test_a_far_deadline_counts_as_one_of_ageing_seconds_after_submission() -> None:
    order = Order(AGEING, {})
    order.add(sequence(0, total=600.0), 0.0)
    order.add(sequence(1, total=5.0, at=AGEING - 5.1), 0.0)
    order.add(sequence(2, total=5.0, at=AGEING - 4.9), 0.0)
    assert ids(served(order)) == [1, 0, 2]


def test_a_deadline_that_is_tightened_moves_it_up() -> None:
    order, late = Order(AGEING, {}), sequence(2)
    order.add(sequence(1), 0.0)
    order.add(late, 0.0)
    late.shrink(Bounds(total=1.0), 0.0, 0.0)
    order.add(late, 0.0)
    assert ids(served(order)) == [2, 1]


def test_a_higher_priority_comes_first_and_a_lower_one_in_its_turn() -> None:
    """A class below is passed over for `ageing` seconds a step of priority, and then has one admission."""
    order = Order(AGEING, {})
    for n in range(3):
        order.add(sequence(n, priority=0), 0.0)
    for n in range(100, 200):
        order.add(sequence(n, priority=1), 0.0)
    turns = [n for n, s in enumerate(served(order, step=1.0)) if s.submission.priority == 0]
    assert turns == [31, 62, 93]


def test_two_steps_of_priority_age_twice_as_long() -> None:
    order = Order(AGEING, {})
    order.add(sequence(0, priority=-1), 0.0)
    for n in range(100, 200):
        order.add(sequence(n, priority=1), 0.0)
    turns = [n for n, s in enumerate(served(order, step=1.0)) if s.submission.priority < 0]
    assert turns == [61]


def test_a_burst_of_one_owner_costs_another_one_place() -> None:
    order = Order(AGEING, {})
    for n in range(1000):
        order.add(sequence(n, owner="burst"), 0.0)
    served(order, most=400)
    order.add(sequence(5000, owner="single", at=1.0), 1.0)
    assert 5000 in ids(served(order, most=2))


def test_shares_go_by_weight() -> None:
    order = Order(AGEING, {"heavy": 3.0})
    for n in range(400):
        order.add(sequence(n, owner="heavy"), 0.0)
        order.add(sequence(1000 + n, owner="light"), 0.0)
    heavy = sum(s.submission.owner == "heavy" for s in served(order, most=400))
    assert 298 <= heavy <= 302


def test_shares_are_of_tokens_not_of_requests() -> None:
    order = Order(AGEING, {})
    for n in range(400):
        order.add(sequence(n, owner="long", tokens=900), 0.0)
        order.add(sequence(1000 + n, owner="short", tokens=100), 0.0)
    found = served(order, most=200)
    assert 18 <= sum(s.submission.owner == "long" for s in found) <= 22


def test_what_counts_is_what_was_generated_not_what_was_asked_for() -> None:
    order = Order(AGEING, {})
    for n in range(400):
        order.add(sequence(n, owner="long", tokens=100), 0.0)
        order.add(sequence(1000 + n, owner="short", tokens=100), 0.0)
    found: Counter[str] = Counter()
    for _ in range(300):
        head = order.head()
        assert head is not None
        order.admit(head, 0.0)
        order.used(head.submission, 300 if head.submission.owner == "long" else 100)
        found[head.submission.owner] += 1
    assert 98 <= found["long"] <= 102


def test_a_prompt_that_the_engine_did_not_take_is_charged_to_nobody() -> None:
    order = Order(AGEING, {})
    for n in range(400):
        order.add(sequence(n, owner="turned back"), 0.0)
        order.add(sequence(1000 + n, owner="other"), 0.0)
    found: Counter[str] = Counter()
    for _ in range(200):
        head = order.head()
        assert head is not None
        order.admit(head, 0.0)
        if head.submission.owner == "turned back" and found["turns"] % 4:
            order.spared(head.submission)
            order.add(head, 0.0)
        else:
            order.used(head.submission, 64)
            found[head.submission.owner] += 1
        found["turns"] += head.submission.owner == "turned back"
    assert abs(found["turned back"] - found["other"]) <= 2


def test_nobody_saves_up_a_share_while_not_waiting() -> None:
    order = Order(AGEING, {})
    order.add(sequence(0, owner="idle"), 0.0)
    for n in range(1, 500):
        order.add(sequence(n, owner="busy"), 0.0)
    served(order, most=300)
    for n in range(1000, 1100):
        order.add(sequence(n, owner="idle"), 0.0)
    found = [s.submission.owner for s in served(order, most=100)]
    assert 45 <= found.count("idle") <= 55


def test_a_stream_of_new_owners_does_not_starve_an_old_one() -> None:
    order = Order(AGEING, {})
    for n in range(50):
        order.add(sequence(n, owner="old"), 0.0)
    served(order, most=40)
    left, turns = 10, 0
    for n in range(2000):
        order.add(sequence(100 + 2 * n, owner=f"new {n}"), 0.0)
        left -= served(order, most=1)[0].submission.owner == "old"
        turns += 1
        if not left:
            break
    assert not left, "it never came to an end"
    assert turns <= 80


@pytest.mark.parametrize("small", [1e-9, 1.0])
def test_the_smallest_weight_counts_also_beside_the_largest(small: float) -> None:
    order = Order(AGEING, {"large": 1e9, "small": small})
    for n, owner in enumerate(["large", "small", "small"]):
        order.add(sequence(n, owner=owner), 0.0)
    order.remove(0)
    assert ids(served(order)) == [1, 2]


def test_a_long_time_with_an_owner_of_next_to_no_weight_does_not_swallow_the_turns_of_the_others() -> None:
    order = Order(AGEING, {"batch": 1e-9, "first": 1e9, "second": 1e9})
    for n in range(300):
        order.add(sequence(n, owner="batch", tokens=10_000), 0.0)
    served(order, most=100)
    for n in range(100):
        order.add(sequence(1000 + n, owner="first"), 0.0)
        order.add(sequence(2000 + n, owner="second"), 0.0)
    found = Counter(s.submission.owner for s in served(order, most=100))
    assert 49 <= found["first"] <= 51
    assert 49 <= found["second"] <= 51


@pytest.mark.parametrize("low", [-(2**63), -1, 0, 2**60, 2**63 - 2])
def test_one_step_of_priority_is_one_step_wherever_it_is(low: int) -> None:
    order = Order(AGEING, {})
    for n in range(3):
        order.add(sequence(n, priority=low), 0.0)
    for n in range(100, 200):
        order.add(sequence(n, priority=low + 1), 0.0)
    turns = [n for n, s in enumerate(served(order, step=1.0)) if s.submission.priority == low]
    assert turns == [31, 62, 93]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int, float]]:
    """(what, owner, priority, total) of each event."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["add", "add", "admit", "remove", "used"]),
                st.integers(0, 3),
                st.integers(-1, 1),
                st.sampled_from([1.0, 10.0, 600.0, float("inf")]),
            ),
            max_size=60,
        )
    )


@settings(max_examples=200, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_whoever_waits_is_served_once_and_in_the_order_of_deadlines_within_an_owner_and_class(
    history: list[tuple[str, int, int, float]], rng: random.Random
) -> None:
    order, waiting, gone, now = Order(AGEING, {"owner 1": 2.0}), dict[int, Sequence](), list[Sequence](), 0.0
    for number, (what, owner, priority, total) in enumerate(history):
        now += rng.choice([0.0, 1.0, 20.0])
        if what == "add":
            waiting[number] = sequence(number, owner=f"owner {owner}", priority=priority, total=total, at=now)
            order.add(waiting[number], now)
        elif what == "admit" and waiting:
            (head,) = served(order, now, most=1)
            assert head is waiting.pop(head.id)
            gone.append(head)
            rivals = [
                s
                for s in waiting.values()
                if (s.submission.owner, s.submission.priority) == (head.submission.owner, head.submission.priority)
            ]
            assert all(due(head) <= due(other) for other in rivals)
        elif what == "remove" and waiting:
            order.remove(waiting.pop(rng.choice(sorted(waiting))).id)
        elif what == "used" and gone:
            order.used(gone.pop().submission, 64)
        assert len(order) == len(waiting)
    assert sorted(ids(served(order, now))) == sorted(waiting)
    assert order.head() is None


def due(of: Sequence) -> tuple[float, int]:
    submission = of.submission
    return min(of.total_at, submission.submitted_at + AGEING), of.id


# --- how many are ahead ----------------------------------------------------------------------------------------------


def turns_until_in(order: Order, newcomer: Sequence) -> int:
    order.add(newcomer, newcomer.submission.submitted_at)
    return ids(served(order)).index(newcomer.id)


def ahead(order: Order, newcomer: Sequence) -> int:
    asked = newcomer.submission
    return order.ahead(asked.owner, asked.priority, due(newcomer)[0], asked.submitted_at)


def test_with_nobody_waiting_nobody_is_ahead() -> None:
    assert ahead(Order(AGEING, {}), sequence(1)) == 0


@given(st.lists(st.sampled_from([1.0, 3.0, 9.0, 20.0, 600.0]), max_size=40), st.sampled_from([0.5, 3.0, 600.0]))
def test_of_one_owner_those_are_ahead_that_are_due_before(totals: list[float], total: float) -> None:
    order = Order(AGEING, {})
    for n, its in enumerate(totals):
        order.add(sequence(n, total=its), 0.0)
    newcomer = sequence(1000, total=total)
    said = ahead(order, newcomer)
    same = totals.count(total)
    really = turns_until_in(order, newcomer)
    assert really - same <= said <= really, "of the second in which it is due itself it is not known"


@pytest.mark.parametrize("weight", [1.0, 4.0, 0.25])
@pytest.mark.parametrize("mine", [0, 1, 5, 40])
@pytest.mark.parametrize("others", [{}, {"burst": 1000}, {f"o{n}": 1 for n in range(60)}, {"a": 3, "b": 90, "c": 30}])
def test_of_other_owners_about_as_many_are_ahead_as_have_their_turns_before(
    weight: float, mine: int, others: dict[str, int]
) -> None:
    order = Order(AGEING, {"me": weight})
    for n, (owner, count) in enumerate(sorted(others.items())):
        for k in range(count):
            order.add(sequence(100 * n + 10**4 * k, owner=owner), 0.0)
    served(order, most=50 if "burst" in others else 3)
    for n in range(mine):
        order.add(sequence(10**7 + n, owner="me", at=1.0), 1.0)
    newcomer = sequence(10**8, owner="me", at=2.0)
    said = ahead(order, newcomer)
    really = turns_until_in(order, newcomer)
    assert mine <= said
    assert 0.6 * really - 4 <= said <= 1.25 * really + 2


def test_short_ones_of_an_owner_do_not_wait_for_as_many_long_ones_of_others() -> None:
    order = Order(AGEING, {})
    for n in range(300):
        order.add(sequence(n, owner="long", tokens=400), 0.0)
        order.add(sequence(1000 + n, owner="short", tokens=20), 0.0)
    served(order, most=100)
    newcomer = sequence(5000, owner="short", tokens=20)
    said = ahead(order, newcomer)
    really = turns_until_in(order, newcomer)
    assert 0.7 * really <= said <= 1.3 * really


def test_a_higher_class_is_ahead_for_as_long_as_this_one_has_no_turn() -> None:
    order = Order(AGEING, {})
    for n in range(50):
        order.add(sequence(n, priority=1), 0.0)
    assert ahead(order, sequence(1000, total=10.0)) == 50
    assert ahead(order, sequence(1000, total=600.0, at=1.0)) == 0, "its own turn may come before"
    assert ahead(order, sequence(1000, total=10.0, priority=2)) == 0


def test_nothing_is_left_of_what_was_counted() -> None:
    order, rng = Order(AGEING, {"o1": 3.0}), random.Random(1)
    them = [sequence(n, owner=f"o{n % 7}", total=rng.choice([1.0, 50.0])) for n in range(300)]
    order.add(sequence(10**6, owner="stays"), 0.0)
    for each in them:
        order.add(each, 0.0)
    for each in them[::2]:
        each.shrink(Bounds(total=0.5), 0.0, 0.0)
        order.add(each, 0.0)
    for each in rng.sample(them, 300):
        order.remove(each.id)
    assert [ahead(order, sequence(1, owner=owner)) for owner in ("o1", "stays")] == [1, 1]


def crowd(many: int) -> list[Sequence]:
    rng = random.Random(5)
    return [
        sequence(n, owner=f"{rng.randrange(1000)}", priority=rng.randrange(3), total=rng.uniform(1, 600), at=n / 1000)
        for n in range(many)
    ]


def test_a_crowd_leaves_no_memory_behind() -> None:
    order, them = Order(AGEING, {}), crowd(20_000)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for each in them:
        order.add(each, each.submission.submitted_at)
    for each in them[::2]:
        order.remove(each.id)
    assert len(served(order, 100.0)) == 10_000
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 1 << 19


def test_100_000_wait_at_the_price_of_one() -> None:
    order, them = Order(AGEING, {}), crowd(100_000)
    assert median_us([lambda e=e: order.add(e, 0.0) for e in them]) < 20
    assert median_us([lambda e=e: order.remove(e.id) for e in them[::2]]) < 20
    assert median_us([lambda: served(order, most=1)] * 10_000) < 60


def test_10_000_owners_of_one_request_each_are_served_at_the_price_of_one() -> None:
    order = Order(AGEING, {})
    for n in range(10_000):
        order.add(sequence(n, owner=f"o{n}"), 0.0)
    began = time.perf_counter()
    assert len(served(order)) == 10_000
    assert time.perf_counter() - began < 3, "each in its turn, not all of them at each turn"


def test_owners_that_are_gone_are_forgotten_while_others_wait_on() -> None:
    order = Order(AGEING, {})
    order.add(sequence(0, owner="stays", tokens=10**6), 0.0)
    order.add(sequence(1, owner="stays", tokens=10**6), 0.0)
    for n in range(2, 20_000):
        order.add(sequence(n, owner=f"o{n}"), 0.0)
        if n % 2:
            served(order, most=1)
        else:
            order.remove(n)
    assert len(order._classes[0]._shares) < 200


def median_us(calls: list) -> float:  # type: ignore[type-arg]
    taken = []
    for call in calls:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1e6 * statistics.median(taken)


# --- in a lane -------------------------------------------------------------------------------------------------------


def one_at_a_time() -> Simulation:
    return Simulation(model=SimModel(step_s=0.1), limits=Limits(running_max=1))


def test_a_deadline_that_is_tightened_while_waiting_is_an_earlier_turn() -> None:
    with one_at_a_time() as simulation:
        first, second, third = (simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(3))
        simulation.advance(0.5)
        third.tighten(Bounds(total=10.0))
        simulation.run_until(lambda: third.finish_reason or second.finish_reason)
        assert third.finish_reason is not None
        assert first.finish_reason is not None


def test_owners_share_a_lane_by_what_they_generate() -> None:
    """Short answers have four turns for each turn of the long ones."""
    with one_at_a_time() as simulation:
        submit = simulation.pipeline.submit
        long = [submit([5], max_new_tokens=40, owner="long") for _ in range(40)]
        short = [submit([5], max_new_tokens=10, owner="short") for _ in range(20)]
        simulation.run_until(lambda: all(g.finish_reason for g in short))
        assert 4 <= sum(g.finish_reason is not None for g in long) <= 6


@pytest.mark.parametrize("config", [{"num_beams": 8}, {"num_return_sequences": 8, "do_sample": True}])
def test_what_beams_and_samples_compute_is_charged_also_if_they_are_stopped_before_they_show_it(
    config: dict[str, Any],
) -> None:
    """One who asks for little beside them waits for what is inside, and one turn."""
    with one_at_a_time() as simulation:
        submit = simulation.pipeline.submit
        held = [submit([n], max_new_tokens=200, owner="many", **config) for n in range(60)]
        simulation.advance(0.5)

        def stop() -> None:
            """Each of them after two seconds."""
            for generation in held:
                if (
                    generation.phase == "running"
                    and (generation.partial.total_s - (generation.partial.queued_s or 0)) > 2
                ):
                    generation.cancel()

        unwatch = simulation.watch(stop)
        waits = []
        for _ in range(5):
            single = submit([5], max_new_tokens=5, owner="single")
            waits.append(single.result().queued_s or 0.0)
            simulation.advance(1.0)
        unwatch()
        assert max(waits) <= 2 * 2.3


def test_a_single_request_beside_a_burst_of_1000_waits_for_one_place() -> None:
    with one_at_a_time() as simulation:
        submit = simulation.pipeline.submit
        burst = [submit([5], max_new_tokens=10, owner="burst") for _ in range(1000)]
        for _ in range(5):
            simulation.advance(7.3)
            single = submit([5], max_new_tokens=10, owner="single")
            queued_s = single.result().queued_s
            assert queued_s is not None
            assert queued_s <= 2 * 1.3, "what is inside, and one more of the burst"
        assert not burst[-1].finish_reason
