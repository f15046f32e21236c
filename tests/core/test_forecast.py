"""Estimates from what was measured: rates, lengths of answers, and how good the estimates are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._core._forecast import EDGES, ENOUGH, GROWTH, Forecast, Lengths

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


def test_nothing_is_predicted_from_nothing() -> None:
    forecast = Forecast()
    assert forecast.service_s(100, 100) is None
    assert forecast.expected_tokens(4096) == 4096
    assert Lengths().quantile(0.5) is None


@given(lengths, st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_a_quantile_is_that_of_the_lengths_seen_to_the_width_of_a_bucket(seen: list[int], share: float) -> None:
    known = Lengths()
    for tokens in seen:
        known.add(tokens, ended=True)
    exact = sorted(seen)[min(len(seen) - 1, max(0, -(-int(share * 1000) * len(seen) // 1000) - 1))]
    found = known.quantile(share)
    assert found is not None
    assert found >= max(1, int(exact * 0.7)), "a fading of 1 in 1,000 moves it by a neighbour at most"
    assert found in EDGES
    if share == 1.0:
        assert max(seen) <= found <= max(max(seen) + 1, int(max(seen) * GROWTH) + 1)


@given(lengths, st.integers(0, 5000))
def test_what_is_beyond_is_longer(seen: list[int], beyond: int) -> None:
    known = Lengths()
    for tokens in seen:
        known.add(tokens, ended=True)
    found = known.quantile(0.5, beyond)
    assert found is None or found > beyond


def test_those_that_were_cut_off_do_not_make_answers_look_short() -> None:
    """Half of the callers want 20 tokens at most; that the others' answers have 300 is seen all the same."""
    known, rng = Lengths(), random.Random(1)
    for _ in range(400):
        known.add(20, ended=False)
        known.add(rng.randrange(290, 310), ended=True)
    found = known.quantile(0.5)
    assert found is not None
    assert 280 <= found <= 380


def test_what_has_faded_to_next_to_nothing_is_still_divided_by_what_it_is_a_part_of() -> None:
    known = Lengths()
    known.add(5000, ended=True)
    for _ in range(60_000):
        known.add(10, ended=False)
    assert known.quantile(0.5) == pytest.approx(5000, rel=0.25)


def test_turns_are_told_once_somebody_waited_and_an_outage_is_none() -> None:
    forecast = Forecast()
    for _ in range(ENOUGH):
        forecast.left(1, 1, 0.1, 0.1)
    assert forecast.wait_s(3) is None
    for at in range(20):
        forecast.admitted(0.5 * at, others_wait=True)
    assert forecast.wait_s(3) == pytest.approx(2.0)
    forecast.interrupted()
    forecast.admitted(1000.0, others_wait=True)
    assert forecast.wait_s(3) == pytest.approx(2.0)


def known() -> Forecast:
    forecast = Forecast()
    for _ in range(ENOUGH):
        forecast.left(1, 1, 0.1, 0.1)
    return forecast


def test_time_in_which_nobody_waited_is_no_turn() -> None:
    forecast = known()
    for at in range(20):
        forecast.admitted(0.5 * at, others_wait=True)
    forecast.interrupted()  # the others were cancelled
    forecast.admitted(30_000.0, others_wait=False)
    assert forecast.wait_s(3) == pytest.approx(2.0)


def test_a_turn_that_has_become_short_is_seen_also_where_only_one_waits() -> None:
    forecast = known()
    for at in range(20):
        forecast.admitted(10.0 * at, others_wait=True)
    forecast.interrupted()
    for at in range(1000, 1100):
        forecast.waits(at + 0.5)
        forecast.waits(at + 0.7)
        forecast.admitted(at + 1.0, others_wait=False)
        forecast.interrupted()
    assert forecast.wait_s(0) == pytest.approx(0.5, rel=0.1)


def test_old_lengths_fade() -> None:
    known = Lengths()
    for _ in range(1000):
        known.add(1000, ended=True)
    for _ in range(3000):
        known.add(10, ended=True)
    assert known.quantile(0.9) == pytest.approx(10, rel=0.3)


def test_a_million_lengths_are_still_counted() -> None:
    known = Lengths()
    for _ in range(1_000_000 // 4):
        known.add(7, ended=True)
    known.add(500, ended=True)
    assert known.quantile(0.5) == pytest.approx(7, abs=1)


@pytest.mark.parametrize("gap_s", [0.001, 0.05])
def test_the_service_time_of_a_steady_engine_is_predicted_with_its_error(gap_s: float) -> None:
    forecast, rng = Forecast(), random.Random(2)
    for _ in range(10 * ENOUGH):
        prompt, tokens = rng.randrange(10, 500), rng.randrange(1, 300)
        first = prompt * 0.002 * rng.uniform(0.9, 1.1)
        forecast.left(prompt, tokens, first, first + gap_s * (tokens - 1) * rng.uniform(0.9, 1.1))
    assert forecast.service_s(200, 101) == pytest.approx(0.4 + 100 * gap_s, rel=0.1)
    assert 0.0 < forecast.error.value < 0.15


@pytest.mark.parametrize("spread", [1, 3])
def test_short_prompts_make_no_long_one_look_hopeless(spread: int) -> None:
    """Their first token takes a step, however short they are: that is no price for each of their tokens."""
    forecast, rng = Forecast(), random.Random(3)
    for _ in range(10 * ENOUGH):
        forecast.left(rng.randint(1, spread), 10, 0.2 * rng.uniform(0.8, 1.2), 1.1)
    predicted = forecast.service_s(90, 10)
    assert predicted is not None
    assert predicted < 1.5


def test_a_first_token_has_a_fixed_price_and_one_for_each_token_of_the_prompt() -> None:
    forecast, rng = Forecast(), random.Random(4)
    for _ in range(20 * ENOUGH):
        prompt = rng.randrange(1, 1000)
        first = 0.3 + 0.002 * prompt * rng.uniform(0.95, 1.05)
        forecast.left(prompt, 2, first, first + 0.1)
    assert forecast.service_s(10, 1) == pytest.approx(0.32, abs=0.08)
    assert forecast.service_s(900, 1) == pytest.approx(2.1, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(0.0, 100.0)), min_size=ENOUGH, max_size=40), st.integers(1, 9999)
)
def test_a_forecast_is_never_negative_nor_beyond_what_was_seen_by_much(
    seen: list[tuple[int, float]], prompt: int
) -> None:
    forecast = Forecast()
    for tokens, first_s in seen:
        forecast.left(tokens, 1, first_s, first_s)
    predicted = forecast.service_s(prompt, 1)
    assert predicted is not None
    longest, shortest = max(tokens for tokens, _ in seen), min(tokens for tokens, _ in seen)
    assert 0.0 <= predicted <= 1e-6 + max(first_s for _, first_s in seen) * longest / shortest


def test_what_is_expected_is_never_less_than_one_more_nor_more_than_may_be() -> None:
    forecast = Forecast()
    for tokens in (10, 20, 30, 40) * ENOUGH:
        forecast.left(5, tokens, 0.1, 0.2)
        forecast.lengths.add(tokens, ended=True)
    assert forecast.expected_tokens(4096) <= 33
    assert forecast.expected_tokens(15) <= 15
    assert forecast.expected_tokens(4096, so_far=25) > 25
    assert forecast.expected_tokens(4096, so_far=4000) == 4096, "nobody ever was so long: nothing is known"
