"""`python benchmarks/lane_bounded.py ADDRESS SPEC`: boundedgen behind the same socket, as a server would embed it.

Each request has a deadline, its client's own timeout, and a lease that its client renews. What the proxy goes on
reading for a client that has left is read here too, into the void.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import boundedgen as b

SAMPLE_S = 0.5
STEP_S = 0.1  #: how often the length of the last step is looked at
PROBE_S = 1.0
PROBE_TIMEOUT = 45.0


class BoundedLane:
    def __init__(self, pipeline: b.BoundedPipeline, writer: asyncio.StreamWriter, spec: dict[str, Any]) -> None:
        self._pipeline, self._writer, self._spec = pipeline, writer, spec
        self._inside: dict[int, tuple[b.Generation, b.Lease]] = {}
        self._left: dict[int, float] = {}  # since when
        self._tasks: set[asyncio.Task[None]] = set()
        self._steps: list[float] = []
        self._probing = False

    async def run(self, reader: asyncio.StreamReader) -> None:
        for watching in (self._sample(), self._measure_steps(), self._probe()):
            self._spawn(watching)
        self._say("ready", {})
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                operation, *arguments = json.loads(line)
                getattr(self, operation)(*arguments)
        self._writer.close()
        for task in self._tasks:
            task.cancel()

    def _say(self, *message: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what clients and the proxy send -----------------------------------------------------------------------------

    def submit(self, number: int, asked: dict[str, Any]) -> None:
        lease = None
        try:
            lease = self._pipeline.lease(asked.get("owner") or f"client-{number}", ttl=self._spec["ttl"])
            generation = self._pipeline.submit(
                asked["prompt"],
                lease=lease,
                bounds=b.Bounds(total=asked["timeout"]),
                max_new_tokens=asked["new"],
                ignore_eos=True,
            )
        except b.BoundedGenError as error:
            if lease is not None:
                lease.revoke()
            self._say("refused", number, getattr(error, "retry_after_s", None) or 1.0)
            return
        self._inside[number] = generation, lease
        self._spawn(self._follow(number, generation, lease, asked["tell"]))

    async def _follow(self, number: int, generation: b.Generation, lease: b.Lease, tell: int) -> None:
        tokens = 0
        try:
            async for chunk in generation:
                if not tokens:
                    self._say("first", number)
                tokens += len(chunk.token_ids)
                if tell and tokens >= tell:
                    tell = 0
                    self._say("told", number)
            self._say("done", number, (await generation).completion_tokens)
        except b.DeadlineExceeded as error:
            self._say("ended", number, "deadline", error.deadline.bound if error.deadline else "", tokens > 0)
        except b.GenerationError as error:
            self._say("ended", number, str(error.finish_reason), "", tokens > 0)
        finally:
            self._inside.pop(number, None)
            self._left.pop(number, None)
            lease.revoke()

    def gone(self, number: int) -> None:
        """The socket has closed: a server cancels then."""
        self.stop(number)

    def left(self, number: int) -> None:
        """Nobody here knows; it is counted, not used."""
        if number in self._inside:
            self._left[number] = time.monotonic()

    def stop(self, number: int) -> None:
        if number in self._inside:
            self._inside[number][0].cancel()

    def renew(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._inside:
                with contextlib.suppress(b.LeaseExpired):
                    self._inside[number][1].renew()

    def probing(self, on: bool) -> None:
        self._probing = on

    # --- what is measured ------------------------------------------------------------------------------------------

    async def _measure_steps(self) -> None:
        steps = 0
        while True:
            await asyncio.sleep(STEP_S)
            stats = self._pipeline.stats()
            if stats.steps_total != steps and stats.last_step_s is not None:
                steps = stats.steps_total
                self._steps.append(stats.last_step_s)

    async def _probe(self) -> None:
        while True:
            if self._probing:
                result = await self._pipeline.aprobe(timeout=PROBE_TIMEOUT)
                self._say("probe", result.verdict == b.ProbeVerdict.OK, result.seconds)
            await asyncio.sleep(PROBE_S)

    async def _sample(self) -> None:
        while True:
            stats = self._pipeline.stats()
            orphans = [at for n, at in self._left.items() if self._inside[n][0].phase == "running"]
            sample = {
                "inside": stats.running + stats.stopping,
                "waiting": stats.waiting,
                "orphans": len(orphans),
                "orphan_s": time.monotonic() - min(orphans, default=time.monotonic()),
                "usage": stats.cache_usage or 0.0,
                "steps": self._steps,
                "steps_total": stats.steps_total,
                "hopeless": stats.hopeless_total,
                "late_tokens": stats.late_tokens_total,
                "kills": sum(stats.kills_total.values()),
                "service_error": stats.service_error,
                "finished": dict(stats.finished_total),
                "deadlines": dict(stats.deadlines_total),
                "driver_lag": stats.driver_lag_s,
                "at": time.monotonic(),
            }
            self._say("sample", sample)
            self._steps = []
            await asyncio.sleep(SAMPLE_S)


def tell(pipeline: b.BoundedPipeline, port: int) -> None:
    """To Prometheus, or whoever else asks."""
    from prometheus_client import CollectorRegistry, start_http_server

    from boundedgen.exporters.prometheus import PipelineCollector

    registry = CollectorRegistry()
    registry.register(PipelineCollector({"lane": pipeline}))
    start_http_server(port, addr="127.0.0.1", registry=registry)


async def main(address: str, spec: dict[str, Any]) -> None:
    limits = b.Limits(running_max=spec["running_max"], **spec.get("limits", {}))
    bounds = b.Bounds(**spec.get("bounds", {"total": 600}))
    async with b.BoundedPipeline(spec["model"], spec["scheduler"], "CPU", limits=limits, bounds=bounds) as pipeline:
        if "metrics" in spec:
            tell(pipeline, spec["metrics"])
        reader, writer = await asyncio.open_unix_connection(address, limit=1 << 24)
        await BoundedLane(pipeline, writer, spec).run(reader)
        await pipeline.aclose(drain=0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
