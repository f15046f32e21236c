"""The process: uvicorn, with a drain between the first SIGTERM and its end."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType
from typing import Any, final

import uvicorn

import boundedgen as b

HURRY_S = 5.0  #: after the drain, for the last bytes of streams


@final
class DrainingServer(uvicorn.Server):
    """At the first SIGTERM or SIGINT nothing new is taken, /readyz says so, and what is inside may end; whatever has
    not after `drain_s` ends with an event that says so. At the second one it ends at once. uvicorn's own shutdown,
    which stops listening and waits for connections, comes after that: by then nobody is asked any more.
    """

    def __init__(self, config: uvicorn.Config, pipeline: b.BoundedPipeline, drain_s: float) -> None:
        config.timeout_graceful_shutdown = max(1, round(HURRY_S))
        super().__init__(config)
        self._pipeline, self._drain_s = pipeline, drain_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: list[asyncio.Task[None]] = []

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn calls this in the handler of the signal."""
        if self._loop is None:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        else:
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        drain = 0.0 if self._ending else self._drain_s
        self._ending.append(asyncio.create_task(self._drain(drain)))

    async def _drain(self, seconds: float) -> None:
        await self._pipeline.aclose(drain=seconds)
        self.should_exit = True
