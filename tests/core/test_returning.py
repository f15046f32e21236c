"""When those who were refused come back: in turns, no more than about twice what can be served, each owner in time."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import boundedgen as b
from boundedgen._returning import OVERBOOKED, Returns
from boundedgen.testing import SimModel, Simulation

TURN = 0.5
EACH = TURN / OVERBOOKED
MOST = 1e9

refusals = st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.0, 2.0)), min_size=1, max_size=60)


def instants(refused: list[tuple[str, float]], owners_max: int = 100) -> list[tuple[str, float, float]]:
    """(owner, refused at, back at) for owners refused so many seconds after one another."""
    returns, now, told = Returns(owners_max), 0.0, []
    for owner, later in refused:
        now += later
        told.append((owner, now, now + returns.delay(owner, now, TURN, MOST)))
    return told


@given(refusals)
def test_in_no_time_are_more_told_to_come_back_than_twice_what_can_be_served(
    refused: list[tuple[str, float]],
) -> None:
    told = instants(refused)
    backs = sorted(back for _, _, back in told)
    owners = len({owner for owner, _, _ in told})
    for first, start in enumerate(backs):
        for last in range(first, len(backs)):
            room = (backs[last] - start) / EACH
            # a round that others join later is longer than it looked: by one turn of each owner at both of its ends
            assert last - first + 1 <= room + 2 * owners + 1


@given(refusals)
def test_nobody_is_told_to_come_later_than_all_that_were_refused_need(refused: list[tuple[str, float]]) -> None:
    told = instants(refused)
    owners = len({owner for owner, _ in refused})
    for n, (_, now, back) in enumerate(told):
        assert back - now <= (n + 1) * owners * EACH + 1e-6


@given(refusals)
def test_those_of_one_owner_come_back_in_the_order_in_which_they_were_refused(
    refused: list[tuple[str, float]],
) -> None:
    alone = [("a", later) for _, later in refused]
    backs = [back for _, _, back in instants(alone)]
    assert all(later - sooner >= EACH - 1e-9 for sooner, later in pairwise(backs))


def test_a_crowd_of_one_owner_does_not_put_off_a_single_caller_of_another() -> None:
    returns = Returns(100)
    crowd = [returns.delay("crowd", 0.0, TURN, MOST) for _ in range(1000)]
    assert crowd[-1] == pytest.approx(1000 * EACH)
    assert returns.delay("single", 0.0, TURN, MOST) == pytest.approx(2 * EACH)


def test_a_thousand_single_callers_come_back_one_after_the_other() -> None:
    returns = Returns(10_000)
    told = [returns.delay(f"o{n}", 0.0, TURN, MOST) for n in range(1000)]
    assert told == pytest.approx([(n + 1) * EACH for n in range(1000)])


def test_what_is_over_is_forgotten_and_owners_beyond_the_tracked_are_as_one() -> None:
    returns = Returns(10)
    for n in range(1000):
        returns.delay(f"o{n}", 0.0, TURN, MOST)
    assert len(returns._rounds) <= 11
    returns.delay("later", 1e6, TURN, MOST)
    assert list(returns._rounds) == ["later"]
    assert len(returns._heap) == 1


def test_once_nobody_waits_a_crowd_of_before_is_nobodys_reason_to_come_later() -> None:
    returns = Returns(10)
    for _ in range(1000):
        returns.delay("a", 0.0, TURN, MOST)
    returns.quiet()
    assert returns.delay("a", 0.0, TURN, MOST) == pytest.approx(EACH)
    assert returns.delay("a", 0.0, TURN, MOST) == pytest.approx(2 * EACH)


def test_while_nobody_is_served_yet_no_time_goes_by_in_the_calendar() -> None:
    returns, opens = Returns(10), 20.0
    told = [opens + returns.delay("a", opens, TURN, MOST) for _ in range(3)]
    assert told == pytest.approx([opens + n * EACH for n in (1, 2, 3)])
    assert 18.0 + returns.delay("a", 18.0, TURN, MOST) == pytest.approx(opens + 4 * EACH), "it is there sooner"
    assert 25.0 + returns.delay("a", 25.0, TURN, MOST) == pytest.approx(25.0 + EACH), "it was later, and all have come"
    returns.quiet()
    assert returns.delay("a", 19.0, TURN, MOST) == pytest.approx(EACH), "none of them is left to come"


def test_nobody_is_told_to_come_later_than_the_most() -> None:
    returns = Returns(10)
    told = [returns.delay("a", 0.0, TURN, 60.0) for _ in range(1000)]
    assert max(told) == 60.0
    assert len(returns._heap) <= 60.0 / EACH


def test_while_the_rate_is_not_known_nobody_is_told_apart() -> None:
    assert Returns(10).delay("a", 0.0, None, 60.0) == 0.0


@pytest.mark.parametrize("owners", [1, 500])
def test_the_more_are_refused_the_later_they_are_told_to_come(owners: int) -> None:
    with Simulation(model=SimModel(step_s=0.1, running_max=4), limits=b.Limits(waiting_max=16)) as simulation:
        pipeline, rng = simulation.pipeline, random.Random(1)
        for generation in [pipeline.submit([5], max_new_tokens=20) for _ in range(16)]:
            generation.result()
        held = [pipeline.submit([5], max_new_tokens=2000, owner=f"o{n}") for n in range(16)]
        after = []
        for _ in range(200):
            with pytest.raises(b.Saturated) as caught:
                pipeline.submit([5], max_new_tokens=20, owner=f"c{rng.randrange(owners)}")
            after.append(caught.value.retry_after_s)
        assert sum(after[-20:]) > 2 * sum(after[:20])
        assert max(after) <= 90.0
        for generation in held:
            generation.cancel()
        simulation.advance(5.0)
        pipeline.submit([5], max_new_tokens=20).result()
        held = [pipeline.submit([5], max_new_tokens=2000, owner=f"o{n}") for n in range(16)]
        with pytest.raises(b.Saturated) as caught:
            pipeline.submit([5], max_new_tokens=20)
        assert caught.value.retry_after_s < 1.5 * 16 * pipeline._driver.governor.forecast.turn.value + 1.0
