"""The clock that stands still while the engine is not ready, and what is measured on it."""

import pytest

from boundedgen._bounds import Bounds, Limits
from boundedgen._core._deadlines import ReadyClock
from boundedgen._core._events import Exited, Settle
from boundedgen._core._governor import Governor
from boundedgen._core._sequences import Submission


def stood(*spans: tuple[float, float]) -> ReadyClock:
    clock = ReadyClock()
    for since, until in spans:
        clock.stand(since)
        clock.run(until)
    return clock


def test_it_shows_time_without_the_standstills() -> None:
    clock = stood((10.0, 15.0), (20.0, 21.0))
    assert clock.at(25.0) == 19.0


def test_a_reading_of_the_past_is_the_one_it_showed_then() -> None:
    clock = stood((10.0, 15.0), (20.0, 21.0))
    assert [clock.at(t) for t in (18.0, 20.5, 21.0)] == [13.0, 15.0, 15.0]
    clock.stand(30.0)
    assert [clock.at(t) for t in (29.0, 30.0, 99.0)] == [23.0, 24.0, 24.0]


@pytest.mark.parametrize("step", [0.1, 0.003, 1 / 3])
def test_at_the_instant_that_it_names_it_shows_the_reading(step: float) -> None:
    clock = stood(*((1000.0 + n, 1000.0 + n + step) for n in range(50)))
    for n in range(200):
        reading = 1040.0 + n * 0.07
        instant = clock.instant(reading)
        assert instant is not None
        assert clock.at(instant) >= reading, "a driver that wakes then would find nothing due, and spin"


@pytest.mark.parametrize(
    "bounds", [Bounds(first_token=0.0), Bounds(next_token=0.0), Bounds(first_token=-1.0, total=9.0)]
)
def test_a_bound_of_zero_or_less_ends_at_once_even_while_the_engine_starts(bounds: Bounds) -> None:
    governor = Governor(Limits())
    governor.start(0.0)
    governor.submit(Submission(1, prompt_tokens=1, max_new_tokens=1, bounds=bounds, submitted_at=5.0), 5.0)
    governor.tick(5.0)
    assert [e.reason for e in governor.poll() if isinstance(e, Settle)] == ["deadline"]


def test_nothing_is_due_any_more_once_closed() -> None:
    """The engine dies by itself during a drain: the end of the drain is no timer any more."""
    governor = Governor(Limits())
    governor.start(0.0)
    governor.submit(Submission(1, prompt_tokens=1, max_new_tokens=1, bounds=Bounds(total=99.0)), 1.0)
    governor.close(5.0, 1.0)
    governor.receive(Exited(1, status=-9, text=""), 2.0)
    governor.tick(2.0)
    assert governor.state() == "closed"
    assert governor.next_wakeup() is None
