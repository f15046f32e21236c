"""A lane at capacity while its clients give up and try again at once, in simulated time; benchmarks/overload.py is the
same on the real engine."""

import asyncio
import random

import pytest
from attrs import evolve

import boundedgen as b
from boundedgen.testing import SimModel, Simulation

SLOTS = 4
MODEL = SimModel(running_max=SLOTS, step_s=0.4, token_s=0.0)
NEW = 10  #: tokens, so 4 s inside
CAPACITY = SLOTS / (NEW * MODEL.step_s)  #: requests a second
PATIENCE = 8.0  #: seconds
AGAIN = 0.01  #: seconds until a client has connected again
SECONDS = 60.0
SHARED = 16  #: slots


class Clients:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rng = random.Random(7)
        self.done: list[float] = []  # in time, when
        self.took: list[float] = []  # those
        self.late_inside = 0
        self.until = 0.0

    async def come(self, load: float) -> None:
        async with asyncio.TaskGroup() as clients:
            self.until = self._simulation.now + SECONDS
            there = []
            while self._simulation.now < self.until:
                await asyncio.sleep(self._rng.expovariate(load * CAPACITY))
                there.append(clients.create_task(self._client()))
            for client in there:
                client.cancel()

    async def _client(self) -> None:
        """Until it is served."""
        while True:
            if await self._attempt():
                return
            await asyncio.sleep(AGAIN)

    async def _attempt(self) -> bool:
        pipeline, began = self._simulation.pipeline, self._simulation.now
        try:
            with pipeline.lease("client", ttl=60.0) as lease:
                await pipeline.submit([5], lease=lease, bounds=b.Bounds(total=PATIENCE), max_new_tokens=NEW)
        except b.Saturated as error:
            await asyncio.sleep(error.retry_after_s)
            return False
        except b.DeadlineExceeded as error:
            self.late_inside += error.partial is not None and bool(error.partial.token_ids)
            return False
        self.done.append(self._simulation.now)
        self.took.append(self._simulation.now - began)
        return True


def goodput_at(load: float, margin: float | None = 0.25) -> Clients:
    with Simulation(model=MODEL, admission=b.Admission(margin=margin)) as simulation:
        clients = Clients(simulation)
        simulation.run(clients.come(load))
        return clients


def in_the_last_half(clients: Clients) -> float:
    """Of capacity."""
    return sum(at > clients.until - SECONDS / 2 for at in clients.done) / (SECONDS / 2) / CAPACITY


@pytest.mark.parametrize("load", [1.0, 2.0])
def test_a_lane_stays_at_capacity_however_many_clients_give_up_and_try_again(load: float) -> None:
    clients = goodput_at(load)
    assert len(clients.done) > 0.75 * SECONDS * CAPACITY, "the whole, with its beginning"
    assert in_the_last_half(clients) >= 0.9
    assert max(clients.took) < PATIENCE
    assert clients.late_inside <= 2 * SLOTS, "of those that came while nothing was known yet"


def test_without_a_margin_what_is_just_about_to_be_late_fills_the_engine() -> None:
    clients = goodput_at(2.0, margin=None)
    assert len(clients.done) < 0.5 * SECONDS * CAPACITY


def test_an_owner_of_a_request_a_second_beside_a_burst_of_1000_waits_for_what_is_inside_and_one_turn() -> None:
    async def one(simulation: Simulation, owner: str) -> b.Completion:
        return await simulation.pipeline.submit([5], max_new_tokens=NEW, owner=owner)

    async def both(simulation: Simulation) -> tuple[list[b.Completion], list[b.Completion]]:
        burst = [asyncio.create_task(one(simulation, "burst")) for _ in range(1000)]
        single = []
        for _ in range(40):
            await asyncio.sleep(1.0)
            single.append(asyncio.create_task(one(simulation, "single")))
        answered = await asyncio.gather(*single)
        served = [task.result() for task in burst if task.done()]
        for task in burst:
            task.cancel()
        return served, answered

    with Simulation(model=evolve(MODEL, running_max=SHARED)) as simulation:  # it asks for half of its share
        served, answered = simulation.run(both(simulation))
    inside = max(c.total_s - (c.queued_s or 0.0) for c in served)
    waits = [c.queued_s or 0.0 for c in answered]
    assert max(waits) <= inside + inside / SHARED
    assert len(served) > 2 * 40, "they share the lane"
