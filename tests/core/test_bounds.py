"""Bounds, deadlines and the table of limits."""

import math
from datetime import timedelta
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from boundedgen import Bounds, Limits
from boundedgen._bounds import seconds

KINDS = ["total", "queued", "first_token", "next_token"]
value = st.none() | st.floats(-10, 10)
bounds = st.builds(Bounds, total=value, queued=value, first_token=value, next_token=value)


@pytest.mark.parametrize("kind", KINDS)
def test_seconds_and_timedeltas_mean_the_same(kind: str) -> None:
    minute: dict[str, Any] = {kind: timedelta(minutes=1)}
    assert Bounds(**minute) == Bounds(**{kind: 60}) == Bounds(**{kind: 60.0})


@pytest.mark.parametrize("kind", KINDS)
def test_not_a_number_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"{kind} is not a number"):
        Bounds(**{kind: math.nan})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["5", True, [], 5j])
def test_what_is_no_duration_is_refused_by_name(kind: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=kind):
        Bounds(**{kind: wrong})


@pytest.mark.parametrize("legal", [0, -1, -math.inf, math.inf])
def test_zero_negative_and_infinite_bounds_are_legal(legal: float) -> None:
    assert Bounds(total=legal).total == legal


def test_bounds_are_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        Bounds(5)  # type: ignore[call-arg]


@given(bounds, bounds)
def test_the_tighter_of_two_is_the_smaller_of_each_kind(one: Bounds, other: Bounds) -> None:
    both = one.tightest(other)
    for kind in KINDS:
        given_ = [v for v in (getattr(one, kind), getattr(other, kind)) if v is not None]
        assert getattr(both, kind) == min(given_, default=None)
    assert both == other.tightest(one)
    assert both.tightest(one) == both


def test_no_duration_is_no_bound() -> None:
    assert seconds("x", None) is None


@pytest.mark.parametrize("limit", [a.name for a in fields(Limits)])
def test_every_limit_has_a_unit_a_reason_and_a_finite_default(limit: str) -> None:
    row = next(row for row in Limits.table() if row["name"] == limit)
    assert row["unit"]
    assert row["why"]
    assert row["default"] is None or math.isfinite(row["default"])


@pytest.mark.parametrize("limit", [a.name for a in fields(Limits)])
@pytest.mark.parametrize("wrong", ["1", True, math.nan, math.inf, -1])
def test_a_limit_that_makes_no_sense_is_refused_by_name(limit: str, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"Limits\.{limit}\b"):
        Limits(**{limit: wrong})


@pytest.mark.parametrize("limit", [a.name for a in fields(Limits) if a.default is not None])
def test_only_limits_that_default_to_none_may_be_none(limit: str) -> None:
    nothing: dict[str, Any] = {limit: None}
    with pytest.raises(TypeError, match=rf"Limits\.{limit}\b"):
        Limits(**nothing)


def test_whole_numbers_are_not_given_as_fractions() -> None:
    with pytest.raises(TypeError, match=r"Limits\.waiting_max"):
        Limits(waiting_max=1.5)  # type: ignore[arg-type]


def test_durations_may_be_timedeltas() -> None:
    assert Limits(boot=timedelta(minutes=2)).boot == 120.0  # type: ignore[arg-type]


def test_the_default_length_is_at_most_the_longest() -> None:
    with pytest.raises(ValueError, match="max_new_tokens_default"):
        Limits(max_new_tokens=100)
    assert Limits(max_new_tokens=100, max_new_tokens_default=100).max_new_tokens_default == 100
