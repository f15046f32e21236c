"""A mass client restart, wave after wave: all owners vanish at once, and a proxy keeps reading for them."""

import asyncio
import contextlib

from boundedgen import Generation, LeaseLost, Limits
from boundedgen.testing import SimModel, Simulation

WAVES, CLIENTS, TTL, STEP_S = 20, 12, 5.0, 0.1


async def proxy(generation: Generation) -> None:
    """Reads into the void, for as long as there is something."""
    with contextlib.suppress(LeaseLost):
        async for _ in generation:
            pass


def test_each_wave_frees_the_lane_within_the_ttl_and_two_steps_and_none_is_slower_than_the_first() -> None:
    model = SimModel(step_s=STEP_S, token_s=0.0, running_max=8)
    with Simulation(model=model, limits=Limits(lease_grace=0.0)) as simulation:
        pipeline = simulation.pipeline

        def empty() -> bool:
            stats = pipeline.stats()
            return not (stats.waiting or stats.running or stats.stopping or stats.leases or stats.blocks_reserved)

        async def wave() -> tuple[float, float]:
            leases = [pipeline.lease(f"client {n}", ttl=TTL) for n in range(CLIENTS)]
            them = [pipeline.submit([5], max_new_tokens=200, lease=lease) for lease in leases]
            proxies = [asyncio.ensure_future(proxy(generation)) for generation in them]
            await asyncio.sleep(2.0)
            vanished = simulation.now
            for lease in leases:
                lease.renew()  # the last that is heard of any
            await asyncio.sleep(TTL)
            while not empty():  # noqa: ASYNC110
                await asyncio.sleep(STEP_S / 10)
            freed = simulation.now
            await asyncio.gather(*proxies)
            probe = await pipeline.aprobe()
            assert probe.verdict.value == "ok"
            return freed - vanished, probe.seconds

        async def waves() -> list[tuple[float, float]]:
            return [await wave() for _ in range(WAVES)]

        freed, probed = zip(*simulation.run(waves()), strict=True)
        assert max(freed) <= TTL + 2 * STEP_S + 0.02
        assert max(freed) - min(freed) <= 2 * STEP_S, "no drift"
        assert max(probed) <= 2 * probed[0]
        stats = pipeline.stats()
        assert stats.leases_total["expired"] == WAVES * CLIENTS
        assert stats.finished_total["lease"] == WAVES * CLIENTS
        assert (stats.blocks_reserved, stats.incarnation) == (0, 1)
        assert not pipeline._driver.flows
