"""Two cards, one model, one door. python examples/two_cards.py MODEL [DEVICE [DEVICE]]"""

import asyncio
import hashlib
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import boundedgen as b


def room(stats: b.SchedulerStats) -> float:
    """Lanes that are free: 1 is an empty one, below 0 there is a queue, -1 one that takes as long as a full lane.

    Of the pools and the slots the one counts of which least is left. Who waits will take as much as those inside do.
    """
    if not stats.pools or not stats.running_max:
        return -math.inf  # it was never ready: nothing is known
    held = stats.running + stats.stopping
    free = min(pool.blocks_free / max(pool.blocks_total, 1) for pool in stats.pools)
    free = min(free, 1 - held / stats.running_max)
    return free - stats.waiting * one(stats)


def one(stats: b.SchedulerStats) -> float:
    """Of a lane, what a sequence takes: as much as those that are inside do, on average."""
    held = stats.running + stats.stopping
    used = max((pool.blocks_reserved / max(pool.blocks_total, 1) for pool in stats.pools), default=0.0)
    return max(used / held if held else 0.0, 1 / (stats.running_max or 1))


def home(session: str, lanes: Sequence[str]) -> str:
    """Of `lanes` the one that a session belongs to, whoever asks. If one is gone, only its sessions move."""
    return max(lanes, key=lambda lane: hashlib.blake2b(f"{lane} {session}".encode()).digest())


class Lanes:
    """Pipelines of one model, each on a device of its own, behind one door.

    A call goes to the lane with most room. One of a session goes to the lane of that session as long as nobody waits
    there: what both have in common is cached there. A lane that is not ready is asked last: it takes whoever has the
    time to wait for its next engine. Whom all refuse gets the refusal that is over first.
    """

    def __init__(self, pipelines: dict[str, b.BoundedPipeline], *, reserve: int = 32) -> None:
        self.pipelines = pipelines
        #: An engine that dies sends away all that it held, at once: `reserve` is for those.
        self._budget = b.RetryBudget(ratio=0.1, reserve=reserve)
        self._entering: Counter[str] = Counter()  # on their way into a lane, which does not count them yet

    @classmethod
    def on(cls, devices: Sequence[str], model: str, scheduler_config: object = None, **settings: Any) -> "Lanes":
        """A lane on each of `devices`; `settings` are those of BoundedPipeline. All begin to load at once."""
        names = [f"{number}:{device}" for number, device in enumerate(devices)]
        started: dict[str, b.BoundedPipeline] = {}
        try:
            for name, device in zip(names, devices, strict=True):
                started[name] = b.BoundedPipeline(model, scheduler_config, device, **settings)
        except BaseException:
            for pipeline in started.values():
                pipeline.close()
            raise
        return cls(started)

    async def __aenter__(self) -> "Lanes":
        """Every lane is ready or has failed. Raises if none is ready."""
        try:
            waits = (pipeline.await_ready() for pipeline in self.pipelines.values())
            ended = await asyncio.gather(*waits, return_exceptions=True)
            failed = [error for error in ended if error is not None]
            if len(failed) == len(ended):
                raise failed[0]
        except BaseException:
            await self.drain(0)
            raise
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.drain(30 if kind is None else 0)

    async def drain(self, seconds: float) -> None:
        """Nothing new is taken; what is inside has `seconds` to end. All lanes at once: it takes no longer than one."""
        await asyncio.gather(*(pipeline.aclose(drain=seconds) for pipeline in self.pipelines.values()))

    # --- for a server's endpoints ---------------------------------------------------------------------------------

    def health(self) -> dict[str, b.Health]:
        """For `boundedgen.endpoints`, with need="any": one lane is enough to serve."""
        return {name: pipeline.health() for name, pipeline in self.pipelines.items()}

    def stats(self) -> dict[str, b.SchedulerStats]:
        return {name: pipeline.stats() for name, pipeline in self.pipelines.items()}

    # --- callers --------------------------------------------------------------------------------------------------

    async def submit(self, prompt: object, *, session: str = "", lease: str = "", **arguments: Any) -> b.Generation:
        """As BoundedPipeline.submit. Under a lease it goes to the lane that granted it, and to no other."""
        if lease:
            return await self._granted(lease).asubmit(prompt, lease=lease, **arguments)
        refusals: list[b.Rejected] = []
        for name in self.order(session):
            self._entering[name] += 1
            try:
                return await self.pipelines[name].asubmit(prompt, **arguments)
            except b.InvalidRequest:
                raise  # it is so everywhere
            except b.Rejected as error:
                refusals.append(error)
            finally:
                self._entering[name] -= 1
        raise min(refusals, key=_over_first)

    async def generate(self, prompt: object, *, within: float, session: str = "", **arguments: Any) -> b.Completion:
        """The answer. Lost with its engine, it is asked for anew, of the other lane, in what is left of the time."""
        async for attempt in b.retrying(total=within, budget=self._budget):
            with attempt:
                bounds = b.Bounds(total=attempt.remaining_s)
                async with await self.submit(prompt, session=session, bounds=bounds, **arguments) as generation:
                    return await generation
        raise AssertionError("the last attempt has an answer or an error")

    def lease(self, owner: str, *, ttl: float, session: str = "") -> b.Lease:
        """Of one lane. If that is lost the lease is over: its owner gets another one, of another lane."""
        return self.pipelines[self.order(session)[0]].lease(owner, ttl=ttl)

    def renew(self, lease: str, owner: str) -> b.Lease:
        """For a heartbeat endpoint."""
        return self._granted(lease).renew(lease, owner)

    def order(self, session: str = "") -> list[str]:
        """In which lanes to try, the best first."""
        rooms = {name: self._room(name) for name in self.pipelines}
        best = sorted(rooms, key=lambda name: rooms[name], reverse=True)
        if session and rooms[own := home(session, [*rooms])] > 0:
            best.sort(key=lambda name: name != own)
        return best

    def _room(self, name: str) -> float:
        pipeline = self.pipelines[name]
        stats = pipeline.stats()
        return room(stats) - self._entering[name] * one(stats) if pipeline.health().ready else -math.inf

    def _granted(self, lease: str) -> b.BoundedPipeline:
        for pipeline in self.pipelines.values():
            if pipeline.find_lease(lease) is not None:
                return pipeline
        raise b.LeaseExpired("no lane knows this lease: it is over, or never was")


def _over_first(refusal: b.Rejected) -> tuple[bool, float]:
    """What can succeed later before what cannot, and of those the soonest."""
    return not refusal.retryable, getattr(refusal, "retry_after_s", None) or math.inf


# --- try it ----------------------------------------------------------------------------------------------------------


async def main(model: str, *devices: str) -> None:
    devices = devices or ("GPU.0", "GPU.1")
    async with Lanes.on(devices if len(devices) > 1 else 2 * devices, model, {"num_kv_blocks": 64}) as lanes:
        calls = [
            asyncio.create_task(lanes.generate("Once upon a time", within=60, session=f"chat {n % 4}", **LONG))
            for n in range(12)
        ]
        while not all(stats.running for stats in lanes.stats().values()):  # noqa: ASYNC110 - it is only shown
            await asyncio.sleep(0.005)
        print({name: f"{stats.running} running" for name, stats in lanes.stats().items()})
        name, pipeline = next(iter(lanes.pipelines.items()))
        pid = pipeline.stats().engine_pid
        assert pid, "its engine is being replaced"  # 0 would be this process and its group
        os.kill(pid, signal.SIGKILL)
        answers = await asyncio.gather(*calls)
        print(f"{len(answers)} of {len(calls)} answered, although the engine of {name} was killed")


LONG: dict[str, Any] = {"max_new_tokens": 400, "ignore_eos": True}

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
