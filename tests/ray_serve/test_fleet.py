"""A fleet of the small real model on nodes of a local cluster: what callers get while lanes, engines and nodes go."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from genai.lanes import F32, PLAIN
from ray_serve.cluster import add_node, kill_node

import boundedgen as b

pytestmark = [pytest.mark.timeout(180)]
LONG: dict[str, Any] = {"max_new_tokens": 1500, "ignore_eos": True}
SHORT: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True}
BOUNDS = b.Bounds(total=20)


@pytest.fixture(scope="module")
def fleet(ray_cluster: Any) -> Iterator[Any]:
    """Two lanes, a node each, four inside each."""
    from ray import serve

    from examples.ray_serve.application import application
    from examples.ray_serve.fleet import Fleet

    lanes = application(
        PLAIN,
        lanes=2,
        takes={"num_cpus": 1},
        device="CPU",
        scheduler_config={"num_kv_blocks": 256},
        properties={**F32, "INFERENCE_NUM_THREADS": "1"},
        limits=b.Limits(running_max=4),
        bounds=b.Bounds(total=60),
        restart=b.RestartPolicy(wait=lambda state: 0.0),
        serving={"health_check_period_s": 0.5, "graceful_shutdown_timeout_s": 20.0},
    )
    yield Fleet(serve.run(lanes, name="fleet", route_prefix=None))
    serve.delete("fleet")


def run(scene: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scene, 100)

    asyncio.run(main())


async def until(done: Callable[[dict[str, dict[str, Any]]], bool], fleet: Any, seconds: float = 60.0) -> dict[str, Any]:
    """What the lanes say of themselves, once it is so."""
    end = time.monotonic() + seconds
    while not (seen := await fleet.look()) or not done(seen):
        assert time.monotonic() < end, {name: row["health"] for name, row in seen.items()}
        await asyncio.sleep(0.05)
    return dict(seen)


def at_rest(seen: dict[str, dict[str, Any]]) -> bool:
    return len(seen) == 2 and all(
        row["health"]["ready"] and not row["stats"]["running"] + row["stats"]["waiting"] + row["stats"]["stopping"]
        for row in seen.values()
    )


async def ended(fleet: Any, number: int, **asked: Any) -> b.Completion | b.BoundedGenError:
    """How one ends that reads a stream and does not try again, within its own deadline whatever happens."""
    began = time.monotonic()
    bounds = asked.pop("bounds", BOUNDS)
    text = ""
    try:
        async for item in fleet.stream(f"{number} times", bounds=bounds, **asked):
            if isinstance(item, b.Completion):
                assert item.text == text
                return item
            text += item.text
    except b.BoundedGenError as error:
        return error
    finally:
        assert time.monotonic() - began < bounds.total + 1.5
    raise AssertionError("a stream has an end")


# --- answers and refusals --------------------------------------------------------------------------------------------


def test_a_call_is_answered_piece_by_piece_and_its_bounds_hold_in_the_lane(fleet: Any) -> None:
    async def scene() -> None:
        whole = await ended(fleet, 1, **SHORT)
        assert isinstance(whole, b.Completion)
        assert whole.completion_tokens == 5
        late = await ended(fleet, 1, **{**LONG, "bounds": b.Bounds(total=0.4)})
        assert isinstance(late, b.DeadlineExceeded), late
        assert late.deadline is not None
        assert late.deadline.bound == "total"
        assert late.partial is not None
        assert late.partial.text
        never = await ended(fleet, 1, max_new_tokens=30_000)
        assert isinstance(never, b.NeverFits)
        assert never.needed
        wrong = await ended(fleet, 1, max_new_tokens=-1)
        assert isinstance(wrong, b.InvalidRequest)
        await until(at_rest, fleet)

    run(scene())


def test_sessions_stay_and_calls_are_shared_out_by_room(fleet: Any) -> None:
    async def shares(calls: Awaitable[Any]) -> list[int]:
        before = await until(at_rest, fleet)
        await calls
        after = await until(at_rest, fleet)
        return sorted(
            after[name]["stats"]["submitted_total"] - before[name]["stats"]["submitted_total"] for name in before
        )

    async def one_after_the_other(session: str) -> None:
        for _ in range(4):
            await ended(fleet, 1, session=session, **SHORT)

    async def at_once() -> None:
        await asyncio.gather(*(ended(fleet, n, **{**LONG, "max_new_tokens": 400}) for n in range(16)))

    async def scene() -> None:
        for session in ("a", "b", "c", "d"):
            assert await shares(one_after_the_other(session)) == [0, 4]
        assert min(await shares(at_once())) >= 5

    run(scene())


def test_a_caller_that_leaves_gives_its_lane_back_at_once(fleet: Any) -> None:
    async def scene() -> None:
        longest = {**LONG, "max_new_tokens": 7000}  # some seven seconds
        stream = fleet.stream("x", bounds=BOUNDS, **longest)
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(ended(fleet, 1, **longest))
        await until(lambda seen: any(row["stats"]["running"] for row in seen.values()), fleet)
        task.cancel()
        began = time.monotonic()
        seen = await until(at_rest, fleet)
        assert time.monotonic() - began < 3.0
        assert sum(row["stats"]["finished_total"]["cancelled"] for row in seen.values()) >= 2

    run(scene())


def test_a_lease_that_is_not_renewed_ends_what_is_under_it_and_one_that_is_held_does_not(fleet: Any) -> None:
    async def scene() -> None:
        lease = await fleet.lease("me", ttl=0.5)
        began = time.monotonic()
        lost = [await ended(fleet, n, lease=lease, **LONG) for n in range(3)]
        assert isinstance(lost[-1], b.LeaseLost | b.LeaseExpired), lost
        assert time.monotonic() - began < 10
        with pytest.raises(b.LeaseExpired):
            await fleet.renew(lease, "me")
        async with fleet.held("me", ttl=0.9) as held:
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                assert isinstance(await ended(fleet, 1, lease=held, **SHORT), b.Completion)
                await asyncio.sleep(0.1)
            with pytest.raises(b.LeaseExpired):
                await fleet.renew("a lane that is gone/" + "0" * 32, "me")
        assert isinstance(await ended(fleet, 1, lease=held, **SHORT), b.LeaseExpired)
        await until(at_rest, fleet)

    run(scene())


# --- what goes -------------------------------------------------------------------------------------------------------


async def crowd(fleet: Any, strike: Callable[[], Awaitable[None]]) -> list[b.Completion | b.BoundedGenError]:
    """12 that read streams, most of them of a session, and 12 that want whole answers; struck in mid-stream."""
    asked = {**LONG, "max_new_tokens": 600}
    streams = [asyncio.create_task(ended(fleet, n, session="s" * (n % 3), **asked)) for n in range(12)]
    whole = [asyncio.create_task(fleet.generate(f"{n} times", bounds=b.Bounds(total=30), **asked)) for n in range(12)]
    await until(lambda seen: all(row["stats"]["running"] == 4 for row in seen.values()), fleet)
    await strike()
    ends = await asyncio.gather(*streams)
    answers = await asyncio.gather(*whole)  # every one of them: lost with its lane, it was asked for anew
    assert all(answer.completion_tokens == 600 for answer in answers)
    return ends


def test_an_engine_that_is_killed_heals_in_its_lane_and_serve_does_not_replace_that(fleet: Any) -> None:
    async def scene() -> None:
        before = await until(at_rest, fleet)
        name, row = next(iter(before.items()))

        async def strike() -> None:
            os.kill(row["stats"]["engine_pid"], signal.SIGKILL)

        ends = await crowd(fleet, strike)
        errors = [end for end in ends if isinstance(end, b.BoundedGenError)]
        assert all(isinstance(error, b.EngineLost) and error.retryable for error in errors), errors
        after = await until(at_rest, fleet)
        assert set(after) == set(before)
        assert after[name]["stats"]["restarts_total"] == row["stats"]["restarts_total"] + 1

    run(scene())


def test_a_node_killed_in_mid_stream_leaves_nobody_without_an_answer_and_its_lane_comes_back_on_another(
    fleet: Any, ray_cluster: Any
) -> None:
    async def scene() -> None:
        before = await until(at_rest, fleet)
        lease = {name: await fleet.lease("me", ttl=60, session=name) for name in ("a", "b", "c", "d", "e", "f")}

        async def strike() -> None:
            await asyncio.to_thread(kill_node, ray_cluster, next(iter(ray_cluster.worker_nodes)))

        ends = await crowd(fleet, strike)
        errors = [end for end in ends if isinstance(end, b.BoundedGenError)]
        assert errors, "some were inside"
        assert all(isinstance(error, b.EngineLost) and error.retryable for error in errors), errors
        assert any(isinstance(end, b.Completion) for end in ends)
        left = await fleet.look()
        assert len(left) == 1
        assert set(left) < set(before)
        for token in lease.values():  # those of the lane that is left hold; the others are over, and say so
            if token.split("/")[0] in left:
                await fleet.renew(token, "me")
            else:
                with pytest.raises(b.LeaseExpired):
                    await fleet.renew(token, "me")
        add_node(ray_cluster)  # not in a thread: it sets a signal's handler
        healed = await until(at_rest, fleet)
        assert set(left) < set(healed)

    run(scene())


def test_no_lane_at_all_is_an_answer_too(fleet: Any, ray_cluster: Any) -> None:
    async def scene() -> None:
        for node in list(ray_cluster.worker_nodes):
            await asyncio.to_thread(kill_node, ray_cluster, node)
        none = await asyncio.gather(*(ended(fleet, n, bounds=b.Bounds(total=5, queued=1.0), **SHORT) for n in range(4)))
        assert all(isinstance(end, b.BoundedGenError) and end.retryable for end in none), none
        for _ in range(2):
            add_node(ray_cluster)  # not in a thread: it sets a signal's handler
        assert isinstance(await fleet.generate("x", bounds=b.Bounds(total=60), **SHORT), b.Completion)
        await until(at_rest, fleet)

    run(scene())
