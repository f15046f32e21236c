"""The day of the incident, a minute of it in a second: the raw loop as a model server runs it, then boundedgen.

    python benchmarks/incident.py [--picture docs/incident.png] [--json FILE]

A hybrid model with two slots; agents with long generations behind a proxy, each reaped and started again when it has
shown no output for a while. At 10:58 a roll restarts the processes that own the clients: all of them vanish at the
same instant, the proxy goes on reading, and the agents of the new processes begin. At 12:25 somebody restarts the raw
lane. Boundedgen has the same agents
and no restart; each holds a lease, and each request a deadline. Real engines and processes in real time, one
contestant after the other, in about four minutes. Exits 1 if anything is inside boundedgen's lane more than ttl + 2 s
after its client has vanished, or if a probe of it is not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from attrs import asdict, define, field
from clients import PROBE, Clients, Manners, lane
from figures import machine
from overload import SCRIPTS, quantile

AGENT = "agent"
SLOTS = 2
AGENTS = 8
SERVICE = 2.4  #: seconds of one generation when both slots are in use: some minutes of that day
PAUSE = 10.0  #: seconds on average between two generations of an agent: the lane is in use for two thirds
SILENCE = 4.0  #: seconds without output after which an agent is reaped
PROXY = 5.0  #: seconds that the proxy goes on reading
TTL = 1.0  #: of a lease
MANNERS = Manners(prompt=20, new=300, vocab=259, timeout=20.0, ttl=TTL, proxy=PROXY, orphans=0.0, stops=0.0)
LONGEST = 8000  #: tokens that the cache has room for, twice
PROBE_TIMEOUT = 45.0
BEGINS = 10 * 60 + 38  #: the minute of the day at second 0
ROLL, RESTART, END = 20.0, 107.0, 122.0  #: 10:58, 12:25, 12:40


def spec() -> dict[str, Any]:
    model = Path(__file__).parent.parent / "tests" / "models" / "hybrid"
    scheduler = {"num_kv_blocks": 512, "max_num_seqs": SLOTS, "max_num_batched_tokens": 256}
    return {"model": str(model), "scheduler": scheduler, "running_max": SLOTS, "ttl": TTL}


@define
class Probe:
    at: float
    took: float | None = None  #: None: no answer


@define
class Told:
    """What happened to one contestant; seconds of the day's own clock."""

    completed: list[float] = field(factory=list)
    reaped: list[float] = field(factory=list)
    probes: list[Probe] = field(factory=list)  #: one-token requests through the front door
    own_probes: list[Probe] = field(factory=list)  #: the library's
    samples: list[dict[str, Any]] = field(factory=list)
    orphaned: int = 0  #: inside when their clients vanished


class Day:
    """One contestant's; also a shorter one, in another lane, with other manners (python -m deploy.record)."""

    def __init__(
        self,
        name: str,
        tokens: int,
        *,
        roll: float = ROLL,
        end: float = END,
        lane: dict[str, Any] | None = None,
        manners: Manners = MANNERS,
    ) -> None:
        self.told = Told()
        self._name = name
        self._tokens = tokens  # of a generation
        self._roll, self._end = roll, end
        self._spec = {**spec(), **(lane or {})}
        self._manners = manners
        self._lane: Clients | None = None  # None: it is being restarted
        self._began = 0.0
        self.rolled = asyncio.Event()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def play(self) -> Told:
        restart = RESTART if self._name == "raw" else self._end
        async with self._serving():
            self._began = time.monotonic()
            people = [self._agent(random.Random(number)) for number in range(AGENTS)]
            tasks = [asyncio.create_task(person) for person in (*people, self._operator())]
            await self._until(self._roll)
            assert self._lane is not None
            self.told.orphaned = self._lane.vanish(AGENT)
            self.rolled.set()
            await self._until(restart)
        if restart < self._end:
            async with self._serving():
                await self._until(self._end)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.told

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with lane(SCRIPTS[self._name], self._spec, self._manners) as clients:
            began = self.now if self._began else 0.0
            clients.restart()
            clients.say("probing", self._name != "raw")
            self._lane = clients
            try:
                yield
            finally:
                self._lane = None
                self.told.samples += [{**s, "at": s["at"] + began, "steps": []} for s in clients.samples]
                self.told.own_probes += [Probe(at + began, took) for at, took in clients.probes]
                clients.hang_up()

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.now))

    async def _agent(self, rng: random.Random) -> None:
        while True:
            await self._pause(rng)
            while True:
                if await self._generated():
                    break
                await asyncio.sleep(0.1)

    async def _pause(self, rng: random.Random) -> None:
        """Until the agent's next generation, or until its process has been restarted."""
        seconds = rng.expovariate(1.0 / PAUSE)
        if self.rolled.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.rolled.wait(), seconds)
            await asyncio.sleep(rng.random())

    async def _generated(self) -> bool:
        if self._lane is None:
            return False
        attempt = await self._lane.attempt(AGENT, silence=SILENCE, new=self._tokens)
        if attempt.how == "done":
            self.told.completed.append(self.now)
        elif attempt.how == "gave up":
            self.told.reaped.append(self.now)
        return attempt.how == "done"

    async def _operator(self) -> None:
        async with asyncio.TaskGroup() as asking:
            while True:
                if self._lane is not None:
                    asking.create_task(self._ask(self._lane))
                await asyncio.sleep(1.0)

    async def _ask(self, lane: Clients) -> None:
        probe = Probe(self.now)
        self.told.probes.append(probe)
        attempt = await lane.attempt(PROBE, timeout=PROBE_TIMEOUT, prompt=1, new=1)
        if attempt.how == "done":
            probe.took = self.now - probe.at


# --- what came of it --------------------------------------------------------------------------------------------------


def between(told: Told, since: float, until: float) -> dict[str, Any]:
    probes = [p for p in told.probes if since <= p.at < min(until, END - 2.0)]
    samples = [s for s in told.samples if since <= s["at"] < until]
    return {
        "completed a minute": 60.0 * sum(since <= at < until for at in told.completed) / (until - since),
        "reaped": sum(since <= at < until for at in told.reaped),
        "probe p50, s": quantile([PROBE_TIMEOUT if p.took is None else p.took for p in probes], 0.5),
        "probes without an answer": sum(p.took is None for p in probes),
        "inside, most": max((s["inside"] for s in samples), default=0),
        "orphans, most": max((s["orphans"] for s in samples), default=0),
    }


def clock(at: float) -> str:
    minute = int(BEGINS + at)
    return f"{minute // 60}:{minute % 60:02d}"


def table(told: dict[str, Told]) -> str:
    parts = ((0.0, ROLL), (ROLL, ROLL + 5.0), (ROLL + 5.0, RESTART), (RESTART + 5.0, END))
    rows = [(name, part, between(one, *part)) for name, one in told.items() for part in parts]
    head = ["lane", "of the day", *rows[0][2]]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, (since, until), row in rows:
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append(f"| {name} | {clock(since)} to {clock(until)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def complaints(told: Told) -> list[str]:
    found = []
    stayed = max((s["orphan_s"] for s in told.samples), default=0.0)
    if stayed > TTL + 2.0:
        found.append(f"a sequence was inside {stayed:.1f} s after its client had vanished")
    unanswered = [p for p in told.probes if p.took is None and p.at < END - 2.0]
    if unanswered:
        found.append(f"{len(unanswered)} probes without an answer, the first at {clock(unanswered[0].at)}")
    return found


async def tokens_of_a_generation() -> int:
    """So many take the raw loop SERVICE seconds on this machine, at this hour."""
    async with lane(SCRIPTS["raw"], spec(), MANNERS) as clients:
        rate = (await clients.closed_loop(SLOTS, 5.0)).per_s
    return min(LONGEST, int(SERVICE * rate * MANNERS.new / SLOTS))


async def both() -> dict[str, Told]:
    tokens = await tokens_of_a_generation()
    print(f"a generation has {tokens} tokens")
    return {name: await Day(name, tokens).play() for name in SCRIPTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", help="draw both lanes there (PNG); wants matplotlib")
    parser.add_argument("--json", help="write the figures there")
    arguments = parser.parse_args()
    told = asyncio.run(both())
    print(table(told))
    if arguments.json:
        figures = {"machine": machine(), "lanes": {name: asdict(one) for name, one in told.items()}}
        Path(arguments.json).write_text(json.dumps(figures, indent=1))
    if arguments.picture:
        from incident_picture import draw

        draw(told, Path(arguments.picture))
    for complaint in (found := complaints(told["boundedgen"])):
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
