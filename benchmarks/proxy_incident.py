"""Clients vanish behind a proxy that keeps its sockets and reads on: the lane without leases, then with them.

    python benchmarks/proxy_incident.py [--proxy own|nginx] [--picture docs/proxy-incident.png] [--json FILE]

The OpenAI-compatible server of examples/, with one slot more than there are agents. Their generations are long, and go
through the proxy. In mid-stream all of them vanish, as when a roll restarts the processes that own the clients; the
proxy goes on for `--hold` seconds, and the agents of the new processes begin at once. An operator sends a request for
one token twice a second. Then the same with leases: each agent has one, through the proxy too, and renews it three
times in its ttl. Exits 1 unless the first lane hangs for as long as the proxy holds on, and in the second no request of
the operator takes longer than ttl + 2 steps, and what such a request takes where nobody has vanished.

`--proxy nginx`: Debian's, with `proxy_ignore_client_abort on`; the agents then ask for whole answers, which nginx waits
for as long as its `proxy_read_timeout` allows. Else a proxy of our own, and streams, which it reads into the void.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
from attrs import asdict, define, field, frozen
from holding_proxy import holding_proxy, nginx_proxy
from openai_lane import Server, served
from workload import small, smollm2

WITHOUT, WITH = "without leases", "with leases"
OLD, NEW, OPERATOR = "old", "new", "operator"
PROBE_EVERY = 0.5
RENEWALS = 3  #: in one ttl


@frozen
class Plan:
    """Seconds, but for what says otherwise."""

    model: str
    tokens: int  #: of a generation: more than can be made while the proxy holds on
    hold: float = 20.0
    ttl: float = 1.0
    proxy: str = "own"
    agents: int = 3
    before: float = 4.0  #: until they vanish
    after: float = 4.0  #: beyond what the proxy holds on

    @property
    def end(self) -> float:
        return self.before + self.hold + self.after


@define
class Probe:
    at: float
    took: float | None = None  #: None: no answer before the end


@define
class Told:
    """Of one lane; seconds since its first agents began."""

    probes: list[Probe] = field(factory=list)
    samples: list[dict[str, Any]] = field(factory=list)
    began: list[float] = field(factory=list)  #: when each agent of the new processes had its first token
    void: int = 0  #: bytes that the proxy has read for nobody
    vanished: float = 0.0


class Incident:
    def __init__(self, plan: Plan, name: str) -> None:
        self.told = Told()
        self._plan, self._leases = plan, name == WITH
        self._began = 0.0
        self._first: dict[str, float] = {}  # when each of the new agents had its first token

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def play(self) -> Told:
        plan = self._plan
        async with _lane(plan) as server, _proxy(plan, server) as (port, void):
            direct, through = _client(server.port), _client(port)
            async with direct, through:
                self._began = time.monotonic()
                watching = [asyncio.create_task(self._sample(direct)), asyncio.create_task(self._operate(direct))]
                old = self._begin(through, OLD)
                await asyncio.sleep(plan.before)
                self.told.vanished = self.now
                await _cancelled(old)  # their sockets are closed, their heartbeats have stopped
                new = self._begin(through, NEW)
                await asyncio.sleep(plan.end - self.now)
                self.told.began, self.told.void = sorted(self._first.values()), void()
                await _cancelled([*watching, *new])
        return self.told

    def _begin(self, client: httpx.AsyncClient, which: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._agent(client, f"{which}-{number}")) for number in range(self._plan.agents)]

    async def _agent(self, client: httpx.AsyncClient, name: str) -> None:
        headers = {"Authorization": f"Bearer {name}"}
        if not self._leases:
            await self._generate(client, name, headers)
            return
        granted = await client.post("/v1/leases", json={"ttl": self._plan.ttl}, headers=headers)
        headers["X-Lease-Id"] = granted.json()["id"]
        beating = asyncio.create_task(self._beat(client, headers))
        try:
            await self._generate(client, name, headers)
        finally:
            beating.cancel()

    async def _beat(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        while True:
            await asyncio.sleep(self._plan.ttl / RENEWALS)
            await client.post("/v1/leases/heartbeat", headers=headers)

    async def _generate(self, client: httpx.AsyncClient, name: str, headers: dict[str, str]) -> None:
        body = _body(self._plan.tokens, stream=self._plan.proxy == "own")
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                async for _ in answer.aiter_bytes():
                    if name.startswith(NEW):
                        self._first.setdefault(name, self.now)

    async def _sample(self, client: httpx.AsyncClient) -> None:
        keys = ("waiting", "running", "stopping", "last_step_s")
        while True:
            document = (await client.get("/stats")).json()["stats"]
            old = [row for row in document["sequences"] if row["owner"].startswith(OLD) and row["phase"] != "waiting"]
            orphans = len(old) if self.told.vanished else 0
            self.told.samples.append({"at": self.now, **{key: document[key] for key in keys}, "orphans": orphans})
            await asyncio.sleep(0.1)

    async def _operate(self, client: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as probes:
            while True:
                probes.create_task(self._probe(client))
                await asyncio.sleep(PROBE_EVERY)

    async def _probe(self, client: httpx.AsyncClient) -> None:
        probe = Probe(self.now)
        self.told.probes.append(probe)
        answer = await client.post("/v1/completions", json=_body(1), headers={"Authorization": f"Bearer {OPERATOR}"})
        if answer.status_code == 200:
            probe.took = self.now - probe.at


def _body(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "lane", "prompt": "The sea is", "max_tokens": tokens, "stream": stream, "ignore_eos": True}


def _client(port: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _lane(plan: Plan) -> AsyncIterator[Server]:
    """Room for all that are inside at once; one slot more than there are agents."""
    slots = plan.agents + 1
    blocks = (2 * plan.agents + 1) * (plan.tokens // 32 + 2)
    names = [f"{which}-{number}" for which in (OLD, NEW) for number in range(plan.agents)]
    options = {
        "--name": "lane",
        "--device": "CPU",
        "--scheduler": {"num_kv_blocks": blocks, "max_num_seqs": slots},
        "--limits": {"running_max": slots, "max_new_tokens": plan.tokens},
        "--bounds": {"total": 600},
        "--drain": "0",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as keys:
        json.dump({name: name for name in (*names, OPERATOR)}, keys)
        keys.flush()
        environment = {"BOUNDEDGEN_API_KEYS": keys.name}
        async with served(["-m", "examples.openai_server", plan.model], options, environment) as server:
            yield server


@contextlib.asynccontextmanager
async def _proxy(plan: Plan, server: Server) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """Its port, and how much it has read for nobody."""
    if plan.proxy == "nginx":
        async with nginx_proxy(server.address, plan.before + plan.hold) as port:  # it counts from the request
            yield port, lambda: 0
    else:
        async with holding_proxy(server.address, plan.hold) as (proxy, port):
            yield port, lambda: proxy.void


# --- what came of it --------------------------------------------------------------------------------------------------


def longest(told: Told, since: float, until: float) -> float:
    """Of the requests of the operator that began then; one without an answer counts up to the end."""
    end = told.samples[-1]["at"]
    return max((end - p.at if p.took is None else p.took for p in told.probes if since <= p.at < until), default=0.0)


def figures_of(told: Told) -> dict[str, float]:
    vanished, end = told.vanished, told.samples[-1]["at"]
    inside = [s["at"] - vanished for s in told.samples if s["orphans"]]
    return {
        "longest probe before, s": longest(told, 0.0, vanished - PROBE_EVERY),
        "longest probe after, s": longest(told, vanished - PROBE_EVERY, end - 2.0),
        "orphans inside for, s": max(inside, default=0.0),
        "longest step, s": max(s["last_step_s"] or 0.0 for s in told.samples),
        "last new agent's first token, s": max(told.began, default=vanished) - vanished,
        "read into the void, KiB": told.void / 1024,
    }


def table(told: dict[str, Told]) -> str:
    rows = {name: figures_of(one) for name, one in told.items()}
    lines = [f"| lane | {' | '.join(next(iter(rows.values())))} |"]
    lines.append("|" + " --- |" * (lines[0].count("|") - 1))
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(f'{value:.3g}' for value in row.values())} |")
    return "\n".join(lines)


def most(plan: Plan, row: dict[str, float]) -> float:
    """For a request of the operator, with leases."""
    return plan.ttl + 2 * row["longest step, s"] + row["longest probe before, s"]


def complaints(plan: Plan, told: dict[str, Told]) -> list[str]:
    without, with_leases = figures_of(told[WITHOUT]), figures_of(told[WITH])
    found = []
    if without["longest probe after, s"] < 0.9 * plan.hold - PROBE_EVERY:  # the next one may come so much later
        found.append(f"without leases no request hung for as long as the proxy held on ({plan.hold:g} s)")
    if with_leases["longest probe after, s"] > most(plan, with_leases):
        took, bound = with_leases["longest probe after, s"], most(plan, with_leases)
        found.append(f"with leases a request of the operator took {took:.3f} s, more than {bound:.3f} s")
    return found


async def incidents(plan: Plan) -> dict[str, Told]:
    return {name: await Incident(plan, name).play() for name in (WITHOUT, WITH)}


def plan_of(given: argparse.Namespace) -> Plan:
    if given.short:
        return short(given.proxy)
    return Plan(given.model or smollm2(), 1500, hold=given.hold, ttl=given.ttl, proxy=given.proxy)


def short(proxy: str) -> Plan:
    """On the small model, whose steps take a millisecond."""
    return Plan(small(), 16_000, hold=2.0, ttl=0.4, proxy=proxy, before=1.0, after=1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a GGUF file; else SmolLM2")
    parser.add_argument("--hold", type=float, default=20.0, help="seconds that the proxy goes on reading")
    parser.add_argument("--ttl", type=float, default=1.0, help="seconds of a lease")
    parser.add_argument("--proxy", choices=("own", "nginx"), default="own")
    parser.add_argument("--short", action="store_true", help="the small model, seconds")
    parser.add_argument("--picture", help="draw both lanes there (PNG); wants matplotlib")
    parser.add_argument("--json", help="write the figures there")
    plan = plan_of(given := parser.parse_args())
    told = asyncio.run(incidents(plan))
    print(table(told))
    print(f"with leases a request of the operator may take {most(plan, figures_of(told[WITH])):.3f} s")
    if given.json:
        Path(given.json).write_text(json.dumps({"plan": asdict(plan), **{n: asdict(t) for n, t in told.items()}}))
    if given.picture:
        from proxy_incident_picture import draw

        draw(plan, told, Path(given.picture))
    for complaint in (found := complaints(plan, told)):
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
