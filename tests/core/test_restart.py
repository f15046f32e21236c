"""The restart policy: tenacity's strategies as seconds."""

import itertools
import math
from typing import Any

import pytest
import tenacity

from boundedgen import RestartPolicy


def test_failures_in_a_row_and_the_time_since_the_first_are_what_strategies_see() -> None:
    seen: list[tuple[int, float | None]] = []

    def wait(state: tenacity.RetryCallState) -> float:
        seen.append((state.attempt_number, state.seconds_since_start))
        return 1.0

    assert RestartPolicy(wait=wait, stop=lambda state: False).delay(3, 12.5) == 1.0
    assert seen == [(3, 12.5)]


def test_the_default_waits_longer_each_time_and_then_gives_up() -> None:
    delays = [RestartPolicy().delay(n, float(n)) for n in range(1, 8)]
    known = [delay for delay in delays if delay is not None]
    assert len(known) == 5
    assert all(later > earlier - 0.2 for earlier, later in itertools.pairwise(known)), "but for the jitter"
    assert 0.2 <= known[0] <= 0.6
    assert delays[5:] == [None, None]


def test_tenacity_s_combined_strategies_work() -> None:
    policy = RestartPolicy(
        wait=tenacity.wait_fixed(2) + tenacity.wait_fixed(1),
        stop=tenacity.stop_after_attempt(10) | tenacity.stop_after_delay(60),
    )
    assert policy.delay(1, 0.0) == 3.0
    assert policy.delay(10, 1.0) is None
    assert policy.delay(2, 61.0) is None


def test_a_strategy_that_looks_at_the_coming_wait_finds_it() -> None:
    policy = RestartPolicy(wait=tenacity.wait_fixed(5), stop=tenacity.stop_before_delay(7))
    assert policy.delay(1, 1.0) == 5.0
    assert policy.delay(2, 3.0) is None


@pytest.mark.parametrize("wait", [-3.0, math.nan])
def test_a_wait_that_makes_no_sense_is_no_wait(wait: float) -> None:
    assert RestartPolicy(wait=lambda state: wait, stop=lambda state: False).delay(1, 0.0) == 0.0


def test_what_a_strategy_raises_comes_out() -> None:
    def broken(state: tenacity.RetryCallState) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RestartPolicy(wait=broken).delay(1, 0.0)


@pytest.mark.parametrize("name", ["wait", "stop"])
def test_what_cannot_be_called_is_refused_by_name(name: str) -> None:
    wrong: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError, match=rf"RestartPolicy\.{name}"):
        RestartPolicy(**wrong)


@pytest.mark.parametrize("forget_after", [-1, math.inf, math.nan])
def test_a_time_to_forget_that_makes_no_sense_is_refused(forget_after: float) -> None:
    with pytest.raises(ValueError, match="forget_after"):
        RestartPolicy(forget_after=forget_after)


def test_what_becomes_of_those_inside_is_one_of_two_words() -> None:
    assert RestartPolicy(resume="continue").resume == "continue"
    with pytest.raises(ValueError, match=r"RestartPolicy\.resume is 'go on'; give 'fail' or 'continue'"):
        RestartPolicy(resume="go on")  # type: ignore[arg-type]
