"""A service in one event loop: a signal drains, a second one ends that. python examples/asyncio_service.py MODEL

A signal handler of the loop raises nothing, so that a second Ctrl-C does not end a drain by itself: `stop` does.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import boundedgen as b
from boundedgen.systemd import Notifier


class Service:
    """`over` is set by the first SIGTERM or SIGINT: leave `serving` then, which drains."""

    def __init__(self, pipeline: b.BoundedPipeline) -> None:
        self.over = asyncio.Event()
        self._pipeline = pipeline
        self._ending: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """A signal came. While it drains: close at once; what is inside ends GenerationShutDown."""
        if self.over.is_set() and self._ending is None:
            self._ending = asyncio.create_task(self._pipeline.aclose())
        self.over.set()

    async def is_over(self, within: float) -> bool:
        """Wait for it, for `within` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), within)
        return self.over.is_set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[b.BoundedPipeline]:
        loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            with Notifier(self._pipeline):  # around the pipeline: the start and the drain are told to systemd too
                async with self._pipeline:
                    yield self._pipeline
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


async def main(model: str, device: str = "CPU") -> None:
    service = Service(b.BoundedPipeline(model, {"num_kv_blocks": 256}, device, limits=b.Limits(drain=30)))
    async with service.serving() as pipeline:
        inside = await pipeline.asubmit("The sea is", max_new_tokens=4000, ignore_eos=True)  # start serving here
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)  # systemctl stop
        asyncio.get_running_loop().call_later(0.4, os.kill, os.getpid(), signal.SIGINT)  # somebody cannot wait
        while pipeline.health().error is None and not await service.is_over(within=1):
            pass
        began = time.monotonic()  # stop taking requests here
    print(f"the drain ended after {time.monotonic() - began:.1f} s of 30; inside ended {inside.finish_reason}")


# --- try it ----------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
