"""What the lane page shows, made twice a second for all who look, and not at all while nobody does.

It is what `python -m boundedgen top` shows: the lane's document, with the same words for what is wrong.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, final

from attrs import field, frozen

import boundedgen as b
from boundedgen._top._reading import COUNTERS, Seen, table
from boundedgen._top._troubles import troubles

EVERY_S: Final = 0.5  #: between two pictures
SPARING: Final = 10  #: a picture is not made again for so many times as long as it took,
LONGEST_S: Final = 5.0  #: or for so long
LATELY_S: Final = 60.0  #: what "lately" goes back
ROWS_MOST: Final = 100  #: sequences of a lane that are shown, the oldest
HEARTBEAT_S: Final = 5.0  #: without a picture, after which a viewer gets a comment
VIEWERS_MOST: Final = 32
_NOT_SHOWN: Final = ("times", "reclaim")  #: histograms
_HEARTBEAT: Final = b": still here\n\n"

logger = logging.getLogger(__name__)


class TooManyError(Exception):
    """There are `VIEWERS_MOST` already."""


@frozen
class Picture:
    """All lanes at a moment, as JSON."""

    number: int
    made: float  #: `time.monotonic()`
    body: bytes
    last: bool  #: all lanes are closed: there will be no other

    def event(self) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (self.number, self.body)


@final
class Past:
    """Counters of the last minute: what has grown lately."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, Any]]] = deque()

    def seen(self, document: Mapping[str, Any], now: float) -> Seen:
        while self._looks and self._looks[0][0] < now - LATELY_S:
            self._looks.popleft()
        stats = table(document, "stats")
        then, before = self._looks[0] if self._looks else (now, {})
        self._looks.append((now, {name: table(stats, name) for name in COUNTERS}))
        return Seen(address="", document=document, before=before, before_s=now - then)


@final
@frozen
class Watched:
    """A lane, and what can be done to it here."""

    pipeline: b.BoundedPipeline
    can: tuple[str, ...] = ()
    past: Past = field(factory=Past)

    def look(self, name: str) -> dict[str, Any]:
        document = self.pipeline.stats_document(name)
        seen = self.past.seen(document, time.monotonic())
        stats = {key: value for key, value in document["stats"].items() if key not in _NOT_SHOWN}
        rows = stats["sequences"]
        stats["sequences"] = rows[:ROWS_MOST]
        return {
            **document,
            "stats": stats,
            "younger": len(rows) - len(stats["sequences"]),
            "troubles": [{"grave": t.grave, "brief": t.brief, "words": t.words} for t in troubles(seen)],
            "lately": {counter: seen.lately(counter) for counter in COUNTERS},
            "lately_s": seen.before_s,
            "can": self.can,
        }


@final
class Pictures:
    """One look at the lanes for all viewers. A viewer that is slow gets the newest picture next, and none in between:
    nothing is queued for it.
    """

    def __init__(self, lanes: Mapping[str, Watched]) -> None:
        self._lanes = lanes
        self._viewers = 0
        self._latest: Picture | None = None
        self._took = 0.0
        self._turn = asyncio.Event()  # is set, and replaced, when there is a new one
        self._sampler: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    async def now(self) -> Picture:
        """One that is not older than those of viewers are."""
        async with self._looking:
            return self._fresh() or await self._look()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until all lanes are closed. Raises TooManyError before the first one."""
        if self._viewers >= VIEWERS_MOST:
            raise TooManyError
        self._viewers += 1
        try:
            seen = 0
            yield b"retry: 2000\n\n"
            while True:
                picture = await self._after(seen)
                if picture is None:
                    yield _HEARTBEAT
                    continue
                yield picture.event()
                seen = picture.number
                if picture.last:
                    return
        finally:
            self._viewers -= 1

    async def _after(self, seen: int) -> Picture | None:
        """The newest, once it is another than that; None: there was none for a while."""
        latest = self._latest
        if latest is not None and latest.number != seen and (seen or self._fresh()):
            return latest
        turn = self._turn
        if self._sampler is None or self._sampler.done():
            self._sampler = asyncio.create_task(self._sample())
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await turn.wait()
        except TimeoutError:
            return None
        return self._latest

    async def _sample(self) -> None:
        while self._viewers:
            try:
                picture = await self.now()
            except Exception:
                logger.exception("the lanes cannot be looked at")
                await asyncio.sleep(HEARTBEAT_S)
                continue
            if picture.last:
                return
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        return max(EVERY_S, min(LONGEST_S, SPARING * self._took))

    def _fresh(self) -> Picture | None:
        latest = self._latest
        return latest if latest is not None and time.monotonic() - latest.made < 0.9 * self._pause() else None

    async def _look(self) -> Picture:
        """In a thread: of a crowd it takes a while, in which others are served."""
        began = time.monotonic()
        body, last = await asyncio.to_thread(self._drawn, began)
        self._took = time.monotonic() - began
        number = 1 if self._latest is None else self._latest.number + 1
        self._latest = Picture(number, began, body, last)
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()
        return self._latest

    def _drawn(self, now: float) -> tuple[bytes, bool]:
        lanes = [watched.look(name) for name, watched in self._lanes.items()]
        last = all(lane["health"]["state"] == "closed" for lane in lanes)
        return json.dumps({"at": now, "every_s": self._pause(), "lanes": lanes}, separators=(",", ":")).encode(), last
