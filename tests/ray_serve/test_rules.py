"""What routes, scales and ends, without a cluster."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import boundedgen as b

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: nox -s ray installs it")

from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve.exceptions import BackPressureError

from examples.ray_serve.application import derived
from examples.ray_serve.fleet import GRACE, Fleet
from examples.ray_serve.lane import Begun
from examples.ray_serve.routing import Offer, ranked
from examples.ray_serve.scaling import lanes_wanted
from examples.two_cards import home

NEVER = float("-inf")


def test_a_call_goes_to_the_lane_with_most_room_and_one_of_a_session_to_its_own_while_nobody_waits_there() -> None:
    offers = [Offer("a", 0.2), Offer("b", 0.9), Offer("c", -0.5), Offer("d", NEVER)]
    assert ranked(offers) == ["b", "a", "c", "d"]
    sessions = {home(str(n), ["a", "b", "c", "d"]): str(n) for n in range(50)}
    assert ranked(offers, sessions["a"])[0] == "a"
    assert ranked(offers, sessions["c"])[0] == ranked(offers, sessions["d"])[0] == "b"
    assert ranked([], "session") == []


def test_a_call_under_a_lease_goes_to_the_lane_of_the_lease_alone() -> None:
    offers = [Offer("a", NEVER), Offer("b", 0.9)]
    assert ranked(offers, "session", "a") == ["a"]
    assert ranked(offers, "", "gone") == ["b", "a"]  # which knows nothing of it: LeaseExpired


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ({}, 3),
        ({"a": 0.0, "b": 0.0}, 0.0),
        ({"a": 0.7}, 1.0),
        ({"a": 1.0, "b": 1.8}, 4.0),
        ({"a": 0.35, "b": 0.35}, 1.0),
    ],
)
def test_there_are_as_many_lanes_as_the_load_fills_to_a_part(loads: dict[str, float], wanted: float) -> None:
    told = SimpleNamespace(aggregated_metrics={"load": loads} if loads else {}, target_num_replicas=3)
    assert lanes_wanted(told)[0] == pytest.approx(wanted)


def test_serve_waits_longer_for_a_lane_that_goes_than_anything_in_it_can_take() -> None:
    limits = b.Limits(running_max=8, waiting_max=100)
    found = derived(limits, b.Bounds(total=60))
    assert found["graceful_shutdown_timeout_s"] > 60 + limits.reap
    assert found["max_ongoing_requests"] > 108  # who waits, waits in a lane


# --- ends that no lane tells -----------------------------------------------------------------------------------------


class Saying:
    """A handle, and the stream that it gives: items, errors to raise, and for ... nothing any more."""

    def __init__(self, *items: Any) -> None:
        self._items, self.cancelled = list(items), False

    def options(self, **_: Any) -> "Saying":
        return self

    def remote(self, *_: Any, **__: Any) -> "Saying":
        return self

    async def __anext__(self) -> Any:
        item = self._items.pop(0) if self._items else StopAsyncIteration()
        if item is ...:
            await asyncio.sleep(3600)
        if isinstance(item, BaseException) and not isinstance(item, b.BoundedGenError):
            raise item
        return item

    def cancel(self) -> None:
        self.cancelled = True


BEGUN, CHUNK = Begun("lane-1", 7), b.Chunk(text="once ", token_ids=(5,))


def ended(handle: Saying, bounds: b.Bounds | None = None) -> b.BoundedGenError:
    async def main() -> None:
        async for _ in Fleet(handle).stream("x", bounds=bounds or b.Bounds(total=30)):
            pass

    with pytest.raises(b.BoundedGenError) as error:
        asyncio.run(main())
    return error.value


@pytest.mark.parametrize("fault", [RayActorError(), ActorUnavailableError("gone", b"0" * 16), StopAsyncIteration()])
def test_a_stream_that_is_cut_off_is_a_lost_engine_with_its_partial_output(fault: BaseException) -> None:
    error = ended(Saying(BEGUN, CHUNK, CHUNK, fault))
    assert isinstance(error, b.EngineLost)
    assert error.retryable
    assert error.generation_id == 7
    assert error.partial is not None
    assert (error.partial.text, error.partial.token_ids) == ("once once ", (5, 5))
    assert "lane-1" in str(error)


def test_a_lane_that_says_nothing_any_more_is_not_waited_for_beyond_the_deadline() -> None:
    handle = Saying(BEGUN, CHUNK, ...)
    error = ended(handle, b.Bounds(total=0.1))
    assert isinstance(error, b.DeadlineExceeded)
    assert error.deadline is not None
    assert error.deadline.bound == "total"
    assert error.partial is not None
    assert 0.1 <= error.partial.total_s < 0.1 + GRACE + 1.0
    assert handle.cancelled


def test_a_call_that_no_lane_takes_ends_at_its_bound_queued_and_may_come_again() -> None:
    handle = Saying(...)
    error = ended(handle, b.Bounds(total=30, queued=0.05))
    assert isinstance(error, b.DeadlineExceeded)
    assert (error.deadline and error.deadline.bound, error.retryable, error.http_status_hint) == ("queued", True, 503)
    assert handle.cancelled


def test_what_a_lane_raises_comes_as_it_is_and_serves_own_refusal_says_when_to_come_again() -> None:
    refusal = b.Saturated("full", retry_after_s=4.0)
    assert ended(Saying(refusal)) is refusal
    back_pressure = ended(Saying(BackPressureError(100, 100)))
    assert isinstance(back_pressure, b.Saturated)
    assert back_pressure.retry_after_s > 0


def test_a_reader_that_leaves_cancels_the_call() -> None:
    handle = Saying(BEGUN, CHUNK, ...)

    async def main() -> None:
        stream = Fleet(handle).stream("x", bounds=b.Bounds(total=30))
        assert await anext(stream) == CHUNK
        await stream.aclose()

    asyncio.run(main())
    assert handle.cancelled
