"""Hundreds of clients that stream from the OpenAI-compatible server at once, a third of whom leave at random.

    python benchmarks/sse_soak.py [--seconds 300] [--clients 500] [--short] [--json FILE]

Each client asks again and again: a length and a bound at random; one in three hangs up after a while, be it while it
waits or in mid-stream. Every answer has to end typed: [DONE] after a finish_reason or an error, or a status with an
error. The server is looked at when it is at rest, after a warm-up and at the end: its memory, descriptors and tasks
have to be what they were. While it is under load somebody sleeps in its event loop and looks how late he is woken.
Exits 1 if an answer ends in no way that is known, something is left behind, or the loop lags by 20 ms or more (99 %).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from attrs import asdict, frozen
from figures import machine
from openai_lane import Server, served
from workload import small, smollm2

SERVE = "serve"  #: argument of the process that serves
LEAVE = 1 / 3
LEAVE_S = 10.0  #: at most, until one that leaves does
TICK = 0.005  #: between two looks at the loop
LAG_MS = 20.0
RSS_MIB = 16.0  #: what the allocators may keep
REST_S = 90.0
LOOKED_AT = ("rss_mib", "descriptors", "tasks")
SLOTS = 16


@frozen
class Look:
    """A server at rest."""

    rss_mib: float
    descriptors: int
    tasks: int


@frozen
class Report:
    clients: int
    seconds: float
    ends: dict[str, int]
    before: Look
    after: Look
    lag_ms: dict[str, float]
    finished: dict[str, int]  #: of the lane, by reason

    def complaints(self, *, timed: bool) -> list[str]:
        found = [f"{count} answers ended {how}" for how, count in self.ends.items() if how.startswith("UNTYPED")]
        for name, most in (("rss_mib", RSS_MIB), ("descriptors", 0), ("tasks", 0)):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if after - before > most:
                found.append(f"{name} grew from {before:.1f} to {after:.1f}")
        if not any(how.startswith("done") for how in self.ends) or not self.ends.get("left"):
            found.append("nobody was served, or nobody left")
        if timed and self.lag_ms["p99"] >= LAG_MS:
            found.append(f"the loop lagged by {self.lag_ms['p99']:.1f} ms (p99), not less than {LAG_MS:g}")
        return found


# --- the server -------------------------------------------------------------------------------------------------------


def serve(arguments: list[str]) -> None:
    """The server of the examples, with two pages more: GET /soak/begin forgets lags, GET /soak tells of them."""
    import uvicorn
    from loop_lag import watch
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from examples.openai_server.__main__ import parser, pipeline_of, settings_of
    from examples.openai_server.app import application
    from examples.openai_server.serving import DrainingServer

    given = parser().parse_args(arguments)
    settings, pipeline = settings_of(given), pipeline_of(given)
    app = application(pipeline, settings, given.model)
    lags: list[float] = []
    watching: list[asyncio.Task[None]] = []

    async def begin(_: Request) -> JSONResponse:
        lags.clear()
        if not watching:
            watching.append(asyncio.create_task(watch(lags, TICK)))
        return JSONResponse({})

    async def look(_: Request) -> JSONResponse:
        late = sorted(lags) or [0.0]
        told = {f"p{share:g}": 1000 * late[int(share / 100 * (len(late) - 1))] for share in (50, 99, 99.9, 100)}
        return JSONResponse({"tasks": len(asyncio.all_tasks()), "lag_ms": told})

    app.router.routes[:0] = [Route("/soak/begin", begin), Route("/soak", look)]
    config = uvicorn.Config(app, port=given.port, access_log=False, log_level="warning", backlog=4096)
    DrainingServer(config, pipeline, settings.drain_s).run()


# --- its clients ------------------------------------------------------------------------------------------------------


class Clients:
    def __init__(self, port: int, model: str, longest: int, seed: int) -> None:
        self.ends: Counter[str] = Counter()
        self._port, self._model, self._longest = port, model, longest
        self._rng = random.Random(seed)

    async def run(self, count: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._client(until) for _ in range(count)))

    async def _client(self, until: float) -> None:
        await asyncio.sleep(self._rng.random())
        while time.monotonic() < until:
            how, wait = await self._ask()
            self.ends[how] += 1
            await asyncio.sleep(min(wait, max(0.0, until - time.monotonic())))

    async def _ask(self) -> tuple[str, float]:
        """How one request ended, and for how long to keep away."""
        leave = self._rng.uniform(0, LEAVE_S) if self._rng.random() < LEAVE else None
        writer = None
        try:
            async with asyncio.timeout(leave):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(self._request())
                return await self._read(reader)
        except TimeoutError:
            return "left", 0.0
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            return f"UNTYPED {type(error).__name__}", 0.1
        finally:
            if writer is not None:
                writer.close()

    def _request(self) -> bytes:
        rng = self._rng
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "x" * rng.randint(1, 200)}],
            "max_tokens": rng.randint(1, self._longest),
            "stream": True,
            "ignore_eos": True,
            "bounds": {"total": rng.uniform(2, 60)},
        }
        data = json.dumps(body).encode()
        key = rng.randrange(20)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, float]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split()[1])
        if status != 200:
            told = json.loads(await reader.read())
            wait = float(head.partition("retry-after: ")[2].partition("\r\n")[0] or 0)
            return f"refused {status} {told['error']['code']}", min(wait, 5.0) * self._rng.random()
        reason, error, last = "", "", b""
        async for line in reader:
            if line.startswith(b"data: "):
                last = line
                if b'"finish_reason":null' not in line and not line.startswith(b"data: [DONE]"):
                    told = json.loads(line[6:])
                    reason = told["choices"][0]["finish_reason"] if told.get("choices") else reason
                    error = told.get("error", {}).get("code", error)
        if not last.startswith(b"data: [DONE]") or not reason or (not error and reason not in ("stop", "length")):
            return f"UNTYPED {reason or 'cut off'}", 0.0
        return (f"ended {error}" if error else f"done {reason}"), 0.0


# --- both -------------------------------------------------------------------------------------------------------------


async def at_rest(client: httpx.AsyncClient, server: Server) -> Look:
    """Once nothing is inside and no connection is left."""
    end = time.monotonic() + REST_S
    while True:
        stats = (await client.get("/stats")).json()["stats"]
        look = await looked(client, server)
        inside = stats["waiting"] + stats["running"] + stats["stopping"]
        if (not inside and look == await looked(client, server)) or time.monotonic() > end:
            return look
        await asyncio.sleep(0.2)


async def looked(client: httpx.AsyncClient, server: Server) -> Look:
    tasks = (await client.get("/soak")).json()["tasks"]
    return Look(rss_mib(server.pid), len(os.listdir(f"/proc/{server.pid}/fd")), tasks)


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


async def soak(model: str, clients: int, seconds: float, warm_up: float, seed: int) -> Report:
    longest = 300 if model == small() else 60
    options: dict[str, Any] = {
        "--name": "lane",
        "--device": "CPU",
        "--scheduler": {"num_kv_blocks": 1024 if model == small() else 256, "max_num_seqs": SLOTS},
        "--limits": {"running_max": SLOTS},
        "--drain": "0",
    }
    async with served([__file__, SERVE, model], options) as server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
            await client.get("/soak/begin")
            await Clients(server.port, "lane", longest, seed + 1).run(clients, warm_up)
            before = await at_rest(client, server)
            await client.get("/soak/begin")
            crowd = Clients(server.port, "lane", longest, seed)
            await crowd.run(clients, seconds)
            lag = (await client.get("/soak")).json()["lag_ms"]
            after = await at_rest(client, server)
            stats = (await client.get("/stats")).json()["stats"]
        assert stats["submitted_total"] == sum(stats["finished_total"].values()), stats
        finished = {reason: count for reason, count in stats["finished_total"].items() if count}
        return Report(clients, seconds, dict(sorted(crowd.ends.items())), before, after, lag, finished)


def table(report: Report) -> str:
    rows = [f"| answers that ended {how} | {count} |" for how, count in report.ends.items()]
    looks = ((name, getattr(report.before, name), getattr(report.after, name)) for name in LOOKED_AT)
    rows += [f"| {name} at rest, before and after | {before} / {after} |" for name, before, after in looks]
    rows += [f"| lag of the event loop, {name}, ms | {value:.2f} |" for name, value in report.lag_ms.items()]
    rows.append(f"| generations of the lane, warm-up included | {report.finished} |")
    return "\n".join([f"| {report.clients} clients, {report.seconds:g} s | |", "| --- | --- |", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--model", help="a folder or a GGUF file; else SmolLM2")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--short", action="store_true", help="the small model, seconds; nothing timed counts")
    parser.add_argument("--json", help="write the figures there")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    model = given.model or (small() if given.short else smollm2())
    report = asyncio.run(soak(model, given.clients, given.seconds, given.warm_up, given.seed))
    print(table(report))
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine(), **asdict(report)}, indent=1))
    for complaint in (found := report.complaints(timed=not given.short)):
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
