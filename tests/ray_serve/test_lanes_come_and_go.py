"""Lanes are added for what is reserved and waits, drained when there is too little, and replaced once failed."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from genai.lanes import F32, PLAIN
from ray_serve.test_fleet import ended, run, until

import boundedgen as b

pytestmark = [pytest.mark.timeout(180)]
TOKENS: dict[str, Any] = {"max_new_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module")
def fleet(ray_cluster: Any) -> Iterator[Any]:
    """One lane or two, by load; a lane whose engine is lost has failed."""
    from ray import serve

    from examples.ray_serve.application import application
    from examples.ray_serve.fleet import Fleet

    lanes = application(
        PLAIN,
        lanes=(1, 2),
        takes={"num_cpus": 1},
        device="CPU",
        scheduler_config={"num_kv_blocks": 256},
        properties={**F32, "INFERENCE_NUM_THREADS": "1"},
        scaling={
            "upscale_delay_s": 0.0,
            "downscale_delay_s": 1.0,
            "look_back_period_s": 1.5,
            "metrics_interval_s": 0.5,
        },
        serving={"health_check_period_s": 0.5, "graceful_shutdown_timeout_s": 60.0},
        limits=b.Limits(running_max=4),
        bounds=b.Bounds(total=60),
        restart=b.RestartPolicy(stop=lambda state: True),
    )
    yield Fleet(serve.run(lanes, name="scaled", route_prefix=None))
    serve.delete("scaled")


def test_a_queue_brings_a_lane_and_one_that_goes_lets_those_inside_end(fleet: Any) -> None:
    async def scene() -> None:
        assert len(await fleet.look()) == 1
        over = asyncio.Event()
        ends: list[Any] = []

        async def client(number: int, until_over: asyncio.Event) -> None:
            while not until_over.is_set():
                ends.append(await ended(fleet, number, bounds=b.Bounds(total=60), **TOKENS))

        crowd = [asyncio.create_task(client(n, over)) for n in range(10)]
        await until(lambda seen: len(seen) == 2, fleet)
        over.set()
        await asyncio.gather(*crowd)
        gone = asyncio.Event()
        few = [asyncio.create_task(client(n, gone)) for n in range(2)]  # a quarter of each lane: one is enough for both
        await until(lambda seen: len(seen) == 1, fleet)
        gone.set()
        await asyncio.gather(*few)
        assert all(isinstance(end, b.Completion) for end in ends), ends

    run(scene())


def test_a_lane_that_has_failed_is_replaced(fleet: Any) -> None:
    async def scene() -> None:
        before = await until(lambda seen: len(seen) == 1, fleet)
        (row,) = before.values()
        inside = asyncio.create_task(ended(fleet, 1, **TOKENS))
        await until(lambda seen: any(one["stats"]["running"] for one in seen.values()), fleet)
        os.kill(row["stats"]["engine_pid"], signal.SIGKILL)
        end = await inside
        assert isinstance(end, b.EngineLost | b.GenerationEngineFailed), end
        began = time.monotonic()
        after = await until(lambda seen: all(one["health"]["ready"] for one in seen.values()), fleet)
        assert not set(after) & set(before)
        assert time.monotonic() - began < 60
        assert isinstance(await ended(fleet, 1, max_new_tokens=3), b.Completion)

    run(scene())
