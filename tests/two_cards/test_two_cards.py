"""Two lanes of the small real model behind one door (examples/two_cards.py): who goes where, what a lost lane costs."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from genai.lanes import F32, FULL, PLAIN, ids

import boundedgen as b
from boundedgen.endpoints import liveness, readiness
from examples.two_cards import Lanes, home, one, room

ROOM = {"num_kv_blocks": 256}
GIVES_UP = b.RestartPolicy(stop=lambda state: True)
AT_ONCE = b.RestartPolicy(wait=lambda state: 0.0)


def two(scheduler: dict[str, Any] | None = None, **settings: Any) -> Lanes:
    settings.setdefault("limits", b.Limits(running_max=4))
    settings.setdefault("restart", AT_ONCE)
    return Lanes.on(("CPU", "CPU"), PLAIN, {**ROOM, **(scheduler or {})}, properties=F32, **settings)


async def until(done: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.002)


def kill(lanes: Lanes, name: str) -> None:
    pid = lanes.pipelines[name].stats().engine_pid
    assert pid
    os.kill(pid, signal.SIGKILL)


def submitted(lanes: Lanes) -> list[int]:
    return [stats.submitted_total for stats in lanes.stats().values()]


# --- who goes where --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left_behind")
def test_calls_that_come_at_once_are_shared_out_and_a_session_stays_where_it_is_while_it_has_room() -> None:
    async def main() -> None:
        async with two() as lanes:
            first = await asyncio.gather(*(lanes.submit(ids(9, n), max_new_tokens=1500, **FULL) for n in range(8)))
            await until(lambda: sum(submitted(lanes)) == 8)
            assert max(submitted(lanes)) <= 5
            for generation in first:
                generation.cancel()
            await until(lambda: all(room(stats) == 1.0 for stats in lanes.stats().values()))
            own = home("a chat", [*lanes.pipelines])
            before = lanes.pipelines[own].stats().submitted_total
            for n in range(5):
                await lanes.generate(ids(20, n), within=10, session="a chat", max_new_tokens=2)
            await until(lambda: lanes.pipelines[own].stats().submitted_total == before + 5)
            full = [await lanes.submit(ids(9), session="a chat", max_new_tokens=1500, **FULL) for _ in range(4)]
            await until(lambda: lanes.order("a chat")[0] != own)  # nobody waits while the other lane is free
            for generation in full:
                generation.cancel()
            await until(lambda: lanes.order("a chat")[0] == own)

    asyncio.run(main())


def test_sessions_are_spread_over_lanes_and_only_those_of_a_lost_one_move() -> None:
    sessions = [f"session {n}" for n in range(300)]
    three = {session: home(session, ["a", "b", "c"]) for session in sessions}
    assert all(70 < list(three.values()).count(lane) < 130 for lane in "abc")
    left = {session: home(session, ["a", "c"]) for session in sessions}
    assert [s for s in sessions if left[s] != three[s]] == [s for s in sessions if three[s] == "b"]


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_lease_is_renewed_and_used_at_the_lane_that_granted_it() -> None:
    async def main() -> None:
        async with two() as lanes:
            lease = lanes.lease("me", ttl=30)
            lane = next(pipeline for pipeline in lanes.pipelines.values() if pipeline.find_lease(lease.id))
            for _ in range(3):
                generation = await lanes.submit(ids(9), lease=lease.id, max_new_tokens=1000, **FULL)
                assert generation.owner == "me"
            await until(lambda: lane.stats().submitted_total == 3)
            lanes.renew(lease.id, "me")
            with pytest.raises(b.LeaseExpired):
                lanes.renew(lease.id, "you")
            lease.revoke()
            with pytest.raises(b.LeaseLost):
                await generation
            with pytest.raises(b.LeaseExpired):
                await lanes.submit(ids(9), lease=lease.id)
            await until(lambda: lane.stats().stopping == 0)

    asyncio.run(main())


# --- what a lost lane costs ------------------------------------------------------------------------------------------


async def streamed(lanes: Lanes, number: int) -> b.BoundedGenError | None:
    """How a client ends that reads a stream, and does not try again."""
    try:
        bounds = b.Bounds(total=15)
        async with await lanes.submit(ids(9, number), max_new_tokens=300, bounds=bounds, **FULL) as generation:
            async for _ in generation:
                pass
    except b.BoundedGenError as error:
        return error
    return None


@pytest.mark.usefixtures("nothing_left_behind")
def test_an_engine_killed_under_load_leaves_nobody_without_an_answer() -> None:
    async def main() -> None:
        async with two() as lanes:
            began = time.monotonic()
            streams = [asyncio.create_task(streamed(lanes, n)) for n in range(8)]
            whole = [
                asyncio.create_task(lanes.generate(ids(9, n), within=15, max_new_tokens=300, **FULL)) for n in range(12)
            ]
            await until(lambda: all(stats.running == 4 for stats in lanes.stats().values()))
            lost = next(iter(lanes.pipelines))
            kill(lanes, lost)
            ends = await asyncio.gather(*streams)
            answers = await asyncio.gather(*whole)
            assert time.monotonic() - began < 15
            assert all(answer.completion_tokens == 300 for answer in answers)
            errors = [error for error in ends if error is not None]
            assert all(isinstance(error, b.EngineLost) and error.retryable for error in errors), errors
            assert lanes.pipelines[lost].stats().finished_total["engine_lost"] == 4
            await lanes.pipelines[lost].await_ready(10)
            assert lanes.pipelines[lost].stats().restarts_total == 1

    asyncio.run(main())


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_failed_lane_is_passed_over_and_the_server_lives_as_long_as_one_serves() -> None:
    async def main() -> None:
        limits = b.Limits(running_max=1, waiting_max=1)
        async with two(limits=limits, restart=GIVES_UP) as lanes:
            dead, left = lanes.pipelines
            kill(lanes, dead)
            await until(lambda: lanes.health()[dead].state is b.HealthState.FAILED)
            sessions = [session for session in map(str, range(20)) if home(session, [dead, left]) == dead]
            for session in sessions[:3]:
                assert (await lanes.generate(ids(9), within=10, session=session, max_new_tokens=2)).text is not None
            await until(lambda: submitted(lanes) == [0, 3])
            assert readiness(lanes.health(), need="any").status == liveness(lanes.health(), need="any").status == 200
            running = await lanes.submit(ids(9), max_new_tokens=1500, **FULL)
            await until(lambda: lanes.stats()[left].running == 1)
            waiting = await lanes.submit(ids(9), max_new_tokens=1500, **FULL)
            with pytest.raises(b.Saturated) as refused:
                await lanes.submit(ids(9))
            assert refused.value.retry_after_s > 0
            kill(lanes, left)
            await until(lambda: lanes.health()[left].state is b.HealthState.FAILED)
            for generation in (running, waiting):
                with pytest.raises((b.EngineLost, b.GenerationEngineFailed)):
                    await generation
            with pytest.raises(b.EngineFailed):
                await lanes.submit(ids(9))
            assert readiness(lanes.health(), need="any").status == liveness(lanes.health(), need="any").status == 503

    asyncio.run(main())


class Refusing:
    """As much of a pipeline as the door asks."""

    def __init__(self, error: b.BoundedGenError, stats: b.SchedulerStats, health: b.Health) -> None:
        self._error, self._stats, self._health = error, stats, health

    def stats(self) -> b.SchedulerStats:
        return self._stats

    def health(self) -> b.Health:
        return self._health

    async def asubmit(self, *_: object, **__: object) -> b.Generation:
        raise self._error


@pytest.mark.parametrize(
    ("refusals", "told"),
    [
        ((b.Saturated(retry_after_s=9.0), b.Saturated(retry_after_s=2.0)), 2.0),
        ((b.EngineUnavailable(retry_after_s=3.0), b.Saturated(retry_after_s=8.0)), 3.0),
        ((b.EngineFailed("over"), b.Saturated(retry_after_s=8.0)), 8.0),
        ((b.EngineFailed("over"), b.EngineUnavailable("not known")), None),
    ],
)
def test_whom_all_refuse_gets_the_refusal_that_is_over_first(
    refusals: tuple[b.Rejected, ...], told: float | None
) -> None:
    health = b.Health(state=b.HealthState.RECOVERING, reason="", since_s=0, incarnation=1, error=None, retry_after_s=1)
    stats = cast(b.SchedulerStats, Unknown())
    lanes = Lanes({str(n): cast(b.BoundedPipeline, Refusing(error, stats, health)) for n, error in enumerate(refusals)})
    with pytest.raises(b.Rejected) as refused:
        asyncio.run(lanes.submit("x"))
    assert refused.value.retryable
    assert getattr(refused.value, "retry_after_s", None) == told


class Unknown:
    """The stats of a lane that was never ready."""

    pools = ()
    running_max = None
    running = stopping = waiting = 0


def test_room_counts_the_fullest_pool_the_slots_and_the_queue() -> None:
    def stats(**fields: Any) -> b.SchedulerStats:
        given = {"pools": (pool(64, 16), pool(8, 4)), "running_max": 8, "running": 4, "stopping": 0, "waiting": 0}
        return cast(b.SchedulerStats, type("Stats", (), {**given, **fields}))

    def pool(total: int, reserved: int) -> b.PoolStats:
        return b.PoolStats(name="", blocks_total=total, blocks_reserved=reserved, tokens_per_block=1)

    assert room(cast(b.SchedulerStats, Unknown())) == float("-inf")
    assert room(stats()) == 0.5  # the second pool; slots too
    assert room(stats(running_max=5)) == pytest.approx(0.2)  # a slot of five is left
    assert one(stats()) == 0.125
    assert room(stats(waiting=2)) == 0.25
    assert room(stats(waiting=12)) == -1.0


@pytest.mark.usefixtures("nothing_left_behind")
def test_both_lanes_drain_at_once_and_take_nothing_new_meanwhile() -> None:
    async def main() -> None:
        lanes = two()
        async with lanes:
            long = [await lanes.submit(ids(9, n), max_new_tokens=1500, **FULL) for n in range(8)]
            short = await lanes.submit(ids(9), max_new_tokens=1, bounds=b.Bounds(total=5))
            await until(lambda: all(stats.running for stats in lanes.stats().values()))
            began = time.monotonic()
            draining = asyncio.create_task(lanes.drain(0.4))
            await until(lambda: not any(health.ready for health in lanes.health().values()))
            with pytest.raises(b.PipelineClosed):
                await lanes.submit(ids(9))
            await draining
            assert time.monotonic() - began < 2 * 0.4 + 1.0
        ends = await asyncio.gather(*long, short, return_exceptions=True)
        assert all(isinstance(end, b.Completion | b.GenerationShutDown) for end in ends), ends

    asyncio.run(main())


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_lane_that_cannot_start_does_not_keep_the_other_from_serving() -> None:
    async def main() -> None:
        async with Lanes.on(("CPU", "GPU.7"), PLAIN, ROOM, properties=F32) as lanes:
            assert (await lanes.generate(ids(9), within=10, max_new_tokens=3)).completion_tokens <= 3
        with pytest.raises(b.EngineUnavailable):
            await Lanes.on(("GPU.7", "GPU.8"), PLAIN, ROOM).__aenter__()

    asyncio.run(main())
