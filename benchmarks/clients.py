"""Clients that misbehave as real ones do, and the proxy between them and a lane, whose process is another.

A client has a timeout of its own; when it is over it gives up and tries again at once. An orphan vanishes in
mid-stream and says nothing; one that stops presses the button in mid-stream. Whoever leaves, the proxy goes on reading
for a while: the lane's socket closes `proxy` seconds later. A lease is renewed for as long as its client is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

GOOD, ORPHAN, STOPS, PROBE = "good", "orphan", "stops", "probe"
RENEWALS = 3  #: in one ttl


@frozen
class Manners:
    """How clients are; times in seconds."""

    prompt: int = 64
    new: int = 64
    vocab: int = 40_000
    timeout: float = 8.0
    ttl: float = 1.0
    proxy: float = 300.0
    orphans: float = 0.05  #: so many more clients, as a share of the well-behaved ones
    stops: float = 0.05


@frozen
class Rate:
    """What a lane serves. A machine that is shared changes its speed within minutes: so much a step stays the same."""

    per_s: float  #: requests
    per_step: float | None  #: requests; None: there were no steps to speak of


@define
class Attempt:
    """One request: seconds since the clients began; None: it has not happened."""

    number: int
    kind: str
    sent: float
    first: float | None = None
    ended: float | None = None
    how: str = ""  #: done, refused, gave up, told (it left in mid-stream), vanished, or how the lane ended it
    bound: str = ""
    entered: bool = False
    retry_after: float | None = None
    events: asyncio.Queue[tuple[Any, ...]] = field(factory=asyncio.Queue, repr=False)


class Clients:
    """Of one lane, which is a process of its own."""

    def __init__(self, manners: Manners, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seed: int) -> None:
        self.manners = manners
        self.attempts: list[Attempt] = []
        self.samples: list[dict[str, Any]] = []
        self.probes: list[tuple[float, float | None]] = []  #: when it was asked, what it took; None: no answer
        self.late: list[float] = []  #: how late each arrival was sent
        self.came = 0  #: well-behaved clients that arrived
        self.alive = True
        self._reader, self._writer = reader, writer
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._there: dict[int, Attempt] = {}  # attempts whose clients are there
        self._tasks: set[asyncio.Task[Any]] = set()
        self.restart()
        self._spawn(self._listen())
        self._spawn(self._renew())

    def restart(self) -> None:
        """What was measured so far is forgotten; time begins anew."""
        self._began = time.monotonic()
        self.attempts, self.samples, self.probes, self.late, self.came = [], [], [], [], 0

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def say(self, *message: Any) -> None:
        if self.alive:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """All clients are gone, and nobody says anything more for them."""
        self.alive = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the lane's words --------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                what, *words = json.loads(line)
                if what == "sample":
                    self.samples.append({**words[0], "at": self.now})
                elif what == "probe":
                    self.probes.append((self.now - words[1], words[1] if words[0] else None))
                elif what != "ready" and words[0] in self._there:
                    self._there[words[0]].events.put_nowait((what, *words[1:]))
        self.hang_up()  # a raw lane can crash

    def hang_up(self) -> None:
        """The lane is gone: whoever waits for it learns that."""
        self.alive = False
        for attempt in self._there.values():
            attempt.events.put_nowait(("ended", "the lane is gone", "", False))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.manners.ttl / RENEWALS)
            self.say("renew", list(self._there))

    # --- clients -----------------------------------------------------------------------------------------------------

    async def arrive(self, rate: float, seconds: float) -> None:
        """`rate` well-behaved ones a second, and the others on top; each goes on until it is served."""
        manners = self.manners
        every = 1.0 + manners.orphans + manners.stops
        due = self.now
        until = due + seconds
        while (due := due + self._rng.expovariate(rate * every)) < until:
            await asyncio.sleep(due - self.now)
            self.late.append(self.now - due)
            draw = self._rng.random() * every
            kind = GOOD if draw < 1.0 else ORPHAN if draw < 1.0 + manners.orphans else STOPS
            self.came += kind == GOOD
            self._spawn(self.client(kind))
        await asyncio.sleep(until - self.now)

    async def client(self, kind: str) -> None:
        while self.alive:
            attempt = await self.attempt(kind)
            if attempt.how in ("done", "told"):
                return
            await asyncio.sleep(attempt.retry_after or 0.0)

    def _looks(self, since: float, until: float) -> list[dict[str, Any]]:
        return [sample for sample in self.samples if since < sample["at"] <= until]

    def steps(self, since: float, until: float) -> int:
        """Of the lane, as far as it was looked at."""
        looks = self._looks(since, until)
        return int(looks[-1]["steps_total"] - looks[0]["steps_total"]) if looks else 0

    def rate(self, ended: Sequence[float], since: float, until: float) -> Rate:
        """Of requests that ended at these instants."""
        looks = self._looks(since, until)
        steps = self.steps(since, until)
        meanwhile = sum(looks[0]["at"] < at <= looks[-1]["at"] for at in ended) if looks else 0
        per_s = sum(since < at <= until for at in ended) / (until - since)
        return Rate(per_s, meanwhile / steps if steps else None)

    async def closed_loop(self, sequences: int, seconds: float) -> Rate:
        """What the lane serves when so many clients wait for it, one after the other each.

        After a first round they begin one by one: those that begin together also end together, all at once or not at
        all within the time that is counted.
        """
        ended: list[float] = []

        async def one() -> None:
            attempt = await self.attempt(GOOD, timeout=60.0)
            ended.append(self.now)
            if attempt.how != "done":
                raise RuntimeError(f"a request in a closed loop ended: {attempt.how}")

        async def again_and_again(later: float) -> None:
            await asyncio.sleep(later)
            while self.now < until:
                await one()

        began = self.now
        await asyncio.gather(*(one() for _ in range(sequences)))
        round_s = self.now - began
        since = self.now + 2 * round_s
        until = since + max(seconds, 2 * round_s)
        await asyncio.gather(*(again_and_again(n * round_s / sequences) for n in range(sequences)))
        return self.rate(ended, since, until)

    async def attempt(
        self,
        kind: str,
        *,
        timeout: float | None = None,
        silence: float | None = None,
        prompt: int | None = None,
        new: int | None = None,
    ) -> Attempt:
        """One request, until it is answered or its client has left, for one without a token after `silence` seconds."""
        manners, number = self.manners, next(self._numbers)
        new = manners.new if new is None else new
        patience = manners.timeout if timeout is None else timeout
        ids = self._rng.choices(range(20, manners.vocab), k=manners.prompt if prompt is None else prompt)
        tell = self._rng.randint(1, max(1, new // 2)) if kind in (ORPHAN, STOPS) else 0
        attempt = Attempt(number, kind, self.now)
        self.attempts.append(attempt)
        self._there[number] = attempt
        self.say("submit", number, {"prompt": ids, "new": new, "timeout": patience, "tell": tell})
        try:
            async with asyncio.timeout(patience):
                async with asyncio.timeout(silence):
                    await self._hear(attempt, until_first=True)
                await self._hear(attempt)
        except TimeoutError:
            attempt.how = "gave up"
        finally:
            attempt.ended = self.now
            self._there.pop(number, None)
        self._leave(attempt)
        return attempt

    async def _hear(self, attempt: Attempt, *, until_first: bool = False) -> None:
        while not attempt.how and not (until_first and attempt.entered):
            what, *words = await attempt.events.get()
            if what == "first":
                attempt.first, attempt.entered = self.now, True
            elif what == "ended":
                attempt.how, attempt.bound, attempt.entered = words[0], words[1], attempt.entered or words[2]
            elif what == "refused":
                attempt.how, attempt.retry_after = what, words[0]
            else:
                attempt.how = what

    def vanish(self, kind: str) -> int:
        """All of them that are there, at this instant. How many were inside?"""
        those = [attempt for attempt in self._there.values() if attempt.kind == kind]
        for attempt in those:
            attempt.events.put_nowait(("vanished",))
        return sum(attempt.entered for attempt in those)

    def _leave(self, attempt: Attempt) -> None:
        if attempt.how not in ("gave up", "told", "vanished"):
            return
        if attempt.kind == STOPS:
            self.say("stop", attempt.number)
        self.say("left", attempt.number)
        asyncio.get_running_loop().call_later(self.manners.proxy, self.say, "gone", attempt.number)

    # --- probes -------------------------------------------------------------------------------------------------------

    async def probe(self, every: float = 1.0, timeout: float = 45.0) -> None:
        """One-token requests through the front door, as an operator sends where a lane has no probe of its own."""
        while True:
            self._spawn(self._probe(timeout))
            await asyncio.sleep(every)

    async def _probe(self, timeout: float) -> None:
        sent = self.now
        attempt = await self.attempt(PROBE, timeout=timeout, prompt=1, new=1)
        self.probes.append((sent, attempt.ended - sent if attempt.how == "done" and attempt.ended else None))


@contextlib.asynccontextmanager
async def lane(script: str, spec: dict[str, Any], manners: Manners, seed: int = 0) -> AsyncIterator[Clients]:
    """The lane that `script` is, in a process of its own, and clients that have not come yet."""
    met: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "lane"))
        server = await asyncio.start_unix_server(
            lambda reader, writer: met.set_result((reader, writer)), address, limit=1 << 24
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name(script)), address, json.dumps(spec), env=dict(os.environ)
        )
        try:
            either: set[asyncio.Future[Any]] = {met, asyncio.create_task(process.wait())}
            await asyncio.wait(either, timeout=120, return_when=asyncio.FIRST_COMPLETED)
            if not met.done():
                raise RuntimeError(f"{script} did not start")
            reader, writer = met.result()
            await reader.readline()  # it is ready
            clients = Clients(manners, reader, writer, seed)
            try:
                yield clients
            finally:
                await clients.stop()
                writer.close()
        finally:
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
            server.close()
