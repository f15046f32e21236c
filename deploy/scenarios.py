"""Runs in which something goes wrong, each scraped once a second: real engines where they can be made to do it.

The others are real processes with a simulated engine in it (`boundedgen.testing`), which misbehaves on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

import boundedgen as b
from boundedgen._engine._host import GenAIHost
from boundedgen.testing._faulty_child import MODULE
from boundedgen.testing._sim_host import SimTokenizer
from deploy.scraped import Recording, free_port, served

ROOT = Path(__file__).resolve().parent.parent
PLAIN = ROOT / "tests" / "models" / "plain"


@frozen
class Scenario:
    what: str  #: the event
    engine: str  #: "real" or "simulated"
    fires: frozenset[str]  #: these alerts and no others
    run: Callable[[Recording], None]
    repeated: int = 1  #: so many times one after the other: a minute of it stands for many
    every: float = 1.0  #: seconds between two rows
    row: int = 1  #: so many seconds a row stands for: a second of the replay is a minute of that day


def alerts(*names: str) -> frozenset[str]:
    return frozenset(f"Boundedgen{name}" for name in names)


# --- lanes and their clients -----------------------------------------------------------------------------------------


def simulated(fault: Mapping[str, Any], limits: b.Limits, **more: Any) -> b.BoundedPipeline:
    host = GenAIHost(
        None,
        {"num_kv_blocks": 4096, "max_num_seqs": 4},
        "CPU",
        {},
        tokenizer_properties={},
        limits=limits,
        tokenizer=SimTokenizer,
        module=MODULE,
        fault=fault,
    )
    return b.BoundedPipeline(None, engine=host, limits=limits, **more)


def plain(**more: Any) -> b.BoundedPipeline:
    return b.BoundedPipeline(PLAIN, {"num_kv_blocks": 256, "max_num_seqs": 4}, "CPU", **more)


@contextlib.contextmanager
def clients(pipeline: b.BoundedPipeline, count: int, *, tokens: int = 200, total: float = 8.0) -> Iterator[None]:
    """So many, each with one request after the other, and a second of patience after one that failed."""
    over = threading.Event()
    numbers = itertools.count()

    def client(own: int) -> None:
        while not over.is_set():
            prompt = [5, next(numbers) % 200]
            try:
                with pipeline.submit(
                    prompt, max_new_tokens=tokens, ignore_eos=True, bounds=b.Bounds(total=total), owner=f"client {own}"
                ) as generation:
                    generation.result()
            except b.BoundedGenError:
                over.wait(1.0)

    threads = [threading.Thread(target=client, args=(own,), daemon=True) for own in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def until(done: Callable[[], object], within: float) -> None:
    end = time.monotonic() + within
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within} s")
        time.sleep(0.002)


def engine_of(pipeline: b.BoundedPipeline) -> int:
    until(lambda: pipeline.stats().engine_pid is not None, 60)
    pid = pipeline.stats().engine_pid
    assert pid is not None
    return pid


def stop_in_a_step(pipeline: b.BoundedPipeline) -> None:
    """SIGSTOP, in the middle of a step."""
    pid = engine_of(pipeline)
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        if pipeline.stats().step_current_s > 0:
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def replay(recording: Recording, *, leases: bool) -> None:
    """benchmarks/incident.py: agents behind a proxy, all of them gone at once, and the next ones come."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import incident

    port = free_port()
    spec: dict[str, Any] = {"metrics": port}
    manners = incident.MANNERS
    if not leases:  # as a server has it that takes over neither leases nor its clients' timeouts
        manners = evolve(manners, ttl=600.0, proxy=300.0, timeout=600.0)
        spec |= {"ttl": 600.0, "bounds": {"total": 60}}
    tokens = asyncio.run(incident.tokens_of_a_generation())
    day = incident.Day("boundedgen", tokens, roll=20.0, end=60.0 if leases else 75.0, lane=spec, manners=manners)

    async def played() -> None:
        playing = asyncio.create_task(day.play())
        await day.rolled.wait()
        recording.mark()
        await playing

    with recording.of(f"127.0.0.1:{port}"):
        asyncio.run(played())
    assert day.told.orphaned, "nobody was inside when the clients vanished"


def hang(recording: Recording) -> None:
    with plain() as pipeline, served(pipeline) as address, clients(pipeline, 6):
        time.sleep(15)  # its first steps, of each size, have budgets of their own
        with recording.of(address):
            time.sleep(15)
            recording.mark()
            stop_in_a_step(pipeline)
            until(lambda: pipeline.stats().restarts_total, 60)
            time.sleep(16)


def restart_loop(recording: Recording) -> None:
    pipeline = plain()
    with contextlib.closing(pipeline), served(pipeline) as address:
        pipeline.wait_ready()
        with recording.of(address):
            time.sleep(10)
            recording.mark()
            while pipeline.health().live:
                if pipeline.health().ready:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(engine_of(pipeline), signal.SIGKILL)
                    until(lambda: not pipeline.health().ready, 10)
                time.sleep(0.05)
            time.sleep(16)


def unreclaimed(recording: Recording) -> None:
    """Steps of 2.5 s and an engine that ignores stops: after three of them it is killed."""
    limits = b.Limits(running_max=4)
    fault = {"ignore_stops": True, "step_s": 2.5, "incarnations": [1]}
    with simulated(fault, limits) as pipeline, served(pipeline) as address, recording.of(address):
        generations = [pipeline.submit([5, n], max_new_tokens=500, ignore_eos=True) for n in range(3)]
        until(lambda: pipeline.stats().running == 3, 30)
        time.sleep(5)
        recording.mark()
        for generation in generations:
            generation.cancel()
        until(lambda: pipeline.stats().restarts_total, 60)
        time.sleep(16)


def no_progress(recording: Recording) -> None:
    """Steps return at once and do nothing."""
    limits = b.Limits(running_max=4)
    with (
        simulated({"stall_at": 500, "step_s": 0.02, "incarnations": [1]}, limits) as pipeline,
        served(pipeline) as address,
        recording.of(address),
        clients(pipeline, 3, total=60.0, tokens=5000),
    ):
        until(lambda: pipeline.stats().steps_total >= 499, 60)
        recording.mark()
        until(lambda: pipeline.stats().restarts_total, 60)
        time.sleep(16)


def not_ready(recording: Recording) -> None:
    """The next engine needs longer than `boot`, which is 15 s here, each time."""
    fault = {"boot_s": 3600, "incarnations": list(range(2, 99))}
    pipeline = simulated(fault, b.Limits(running_max=4, boot=15))
    with contextlib.closing(pipeline), served(pipeline) as address:
        pipeline.wait_ready()
        with recording.of(address):
            time.sleep(5)
            recording.mark()
            os.kill(engine_of(pipeline), signal.SIGKILL)
            time.sleep(40)


def full(recording: Recording) -> None:
    """Ten times more clients than it can serve, and none of them waits as long as it is told."""
    limits = b.Limits(running_max=4, waiting_max=4)
    with simulated({"step_s": 0.05}, limits) as pipeline, served(pipeline) as address, clients(pipeline, 24, tokens=20):
        time.sleep(5)
        with recording.of(address):
            time.sleep(60)
    recording.event = 0.0


def server_stopped(recording: Recording) -> None:
    """The process of the server itself stands still for some seconds."""
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "deploy.scenarios", str(port)], cwd=ROOT, stdin=subprocess.PIPE)
    try:
        with recording.of(f"127.0.0.1:{port}"):
            until(lambda: len(recording.rows) > 10, 60)
            recording.mark()
            server.send_signal(signal.SIGSTOP)
            time.sleep(5)
            server.send_signal(signal.SIGCONT)
            time.sleep(20)
        server.communicate(timeout=20)
    finally:
        server.kill()
        server.wait()


def serve(port: int) -> None:
    """A lane in use, until its standard input ends."""
    with simulated({"step_s": 0.02}, b.Limits(running_max=4)) as pipeline, served(pipeline, port), clients(pipeline, 3):
        sys.stdin.read()


def lives(recording: Recording) -> None:
    """Nothing goes wrong: a lane that is full, and whose queue moves."""
    with plain() as pipeline, served(pipeline) as address, clients(pipeline, 8, tokens=400):
        time.sleep(5)
        with recording.of(address):
            time.sleep(40)
    recording.event = 0.0


SCENARIOS: Mapping[str, Scenario] = {
    "incident": Scenario(
        "the incident replay, a second of it for a minute: all clients vanish while their proxy reads on; leases are "
        "of a minute",
        "real",
        alerts("OrphanWave"),
        lambda recording: replay(recording, leases=True),
        every=5 / 60,
        row=5,
    ),
    "incident_without_leases": Scenario(
        "the replay in its own seconds, without leases and timeouts of the clients, and 60 s for each: orphans fill "
        "slots and queue",
        "real",
        alerts("QueueOld"),
        lambda recording: replay(recording, leases=False),
    ),
    "hang": Scenario(
        "the engine is stopped (SIGSTOP) in the middle of a step, under load",
        "real",
        alerts("LaneWedged", "EngineLost"),
        hang,
    ),
    "restart_loop": Scenario(
        "the engine is killed (SIGKILL) each time that it is ready, until the lane gives up",
        "real",
        alerts("EngineLost", "RestartLoop", "LaneFailed"),
        restart_loop,
    ),
    "unreclaimed": Scenario(
        "the engine ignores stops, and its steps take 2.5 s",
        "simulated",
        alerts("Unreclaimed", "EngineLost"),
        unreclaimed,
    ),
    "no_progress": Scenario(
        "steps return and do nothing", "simulated", alerts("NoProgress", "EngineLost"), no_progress
    ),
    "not_ready": Scenario(
        "the engine is killed, and the next ones do not come up within Limits.boot (15 s here)",
        "simulated",
        alerts("LaneNotReady", "EngineLost", "RestartLoop"),
        not_ready,
    ),
    "saturated": Scenario(
        "six times as many clients as fit, which come again at once: the recorded minute, twenty times",
        "simulated",
        alerts("Saturated"),
        full,
        repeated=20,
    ),
    "server_stopped": Scenario(
        "the server's process is stopped for 5 s", "simulated", alerts("DriverLag"), server_stopped
    ),
    "busy": Scenario("nothing: a full lane whose queue moves", "real", alerts(), lives),
}

if __name__ == "__main__":
    serve(int(sys.argv[1]))
