"""How late an asyncio loop comes back to somebody who sleeps in it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator


async def watch(lags: list[float], tick: float) -> None:
    """Sleeps `tick` seconds, again and again."""
    while True:
        due = time.monotonic() + tick
        await asyncio.sleep(tick)
        lags.append(time.monotonic() - due)


@contextlib.asynccontextmanager
async def watched(tick: float) -> AsyncIterator[list[float]]:
    """The lags of the running loop, in seconds, while the block runs; one at least, however short it is."""
    lags: list[float] = []
    watcher = asyncio.create_task(watch(lags, tick))
    try:
        yield lags
        if not lags:
            await asyncio.sleep(tick)
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
