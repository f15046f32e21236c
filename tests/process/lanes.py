"""Pipelines over real engine processes in a test: built in one line, watched from outside, gone without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from attrs import frozen

from boundedgen import Admission, BoundedPipeline, Bounds, Generation, GenerationError, Limits, RestartPolicy
from boundedgen._core._events import Pulse
from boundedgen._engine._host import GenAIHost
from boundedgen.testing._faulty_child import MODULE
from boundedgen.testing._sim_host import SimTokenizer

MODELS = Path(__file__).parents[1] / "models"
SETTLING_S = 30.0
AT_ONCE = RestartPolicy(wait=lambda state: 0.0)  #: as often as the default one, but without a pause


def simulated_host(
    fault: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    scheduler: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    models_path: str | None = None,
) -> GenAIHost:
    """A real process with a simulated engine: no model, ready as soon as Python is."""
    return GenAIHost(
        models_path,
        {"num_kv_blocks": 4096, "max_num_seqs": 16, **(scheduler or {})},
        "CPU",
        properties or {},
        tokenizer_properties={},
        limits=limits or Limits(),
        tokenizer=SimTokenizer,
        module=MODULE,
        fault=fault,
    )


EVERYBODY = Admission(margin=None)  #: who has too little time is let in all the same: tests/core/test_hopeless.py


def simulated_lane(
    fault: Mapping[str, Any] | None = None,
    *,
    limits: Limits | None = None,
    restart: RestartPolicy | None = None,
    bounds: Bounds | None = None,
    lease_ttl: float | None = None,
    device_lock: Path | None = None,
    **scheduler: Any,
) -> BoundedPipeline:
    return BoundedPipeline(
        None,
        engine=simulated_host(fault, limits, scheduler),
        limits=limits,
        restart=restart or AT_ONCE,
        bounds=bounds,
        lease_ttl=lease_ttl,
        device_lock=device_lock,
        admission=EVERYBODY,
    )


def plain_lane(
    *, limits: Limits | None = None, restart: RestartPolicy | None = None, **scheduler: Any
) -> BoundedPipeline:
    """The small real model, on the CPU."""
    settings = {"num_kv_blocks": 64, **scheduler}
    return BoundedPipeline(
        MODELS / "plain", settings, "CPU", limits=limits, restart=restart or AT_ONCE, admission=EVERYBODY
    )


def engine_pid(lane: BoundedPipeline) -> int:
    link = lane._driver.link
    assert link is not None
    assert link.pid is not None
    return link.pid


def pulse(lane: BoundedPipeline) -> Pulse:
    link = lane._driver.link
    return Pulse() if link is None else link.pulse()


def until(done: Callable[[], bool], timeout: float = SETTLING_S, what: str = "") -> float:
    """Seconds until `done()`; the test fails after `timeout`."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < timeout, f"not within {timeout} s: {what or done}"
        time.sleep(0.002)
    return time.monotonic() - began


def until_in_step(lane: BoundedPipeline, *, for_s: float = 0.0) -> None:
    """The engine has been inside of one step for `for_s` seconds."""

    def inside() -> bool:
        seen = pulse(lane)
        return seen.in_step and time.monotonic() - seen.begun_at >= for_s

    until(inside, what=f"a step of {for_s} s")


def at_rest(lane: BoundedPipeline, timeout: float = SETTLING_S) -> None:
    """Nothing waits, runs or is held, and all blocks are free."""

    def resting() -> bool:
        stats = lane.stats()
        return not (stats.waiting or stats.running or stats.stopping or stats.blocks_reserved)

    until(resting, timeout, "a lane at rest")


def gone(pid: int, timeout: float) -> float:
    """Seconds until the process has left; a zombie, which somebody else has to reap, has."""

    def left() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        return True

    return until(left, timeout, f"the end of process {pid}")


def kill(pid: int, how: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


FULL: dict[str, Any] = {"ignore_eos": True}


def error_of(generation: Generation, timeout: float = 30.0) -> BaseException | None:
    """None: it ended normally."""
    try:
        generation.result(timeout)
    except GenerationError as error:
        return error
    return None


def many(lane: BoundedPipeline, count: int, tokens: int = 2_000) -> list[Generation]:
    return [lane.submit([5, number], max_new_tokens=tokens, **FULL) for number in range(count)]


# --- what this process has open ----------------------------------------------------------------------------------


@frozen
class Traces:
    """What an engine could leave behind in this process and on this machine."""

    descriptors: int
    threads: int
    children: frozenset[int]
    shared_memory: frozenset[str]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> Traces:
        me = psutil.Process()
        children = frozenset(child.pid for child in me.children(recursive=True))
        return cls(me.num_fds(), threading.active_count(), children, _names("/dev/shm"), _names("/tmp"))

    def beyond(self, before: Traces) -> dict[str, Any]:
        """What there is more of now. Threads are Python's: those of OpenVINO's own pools come once and stay."""
        more = {
            "descriptors": max(0, self.descriptors - before.descriptors),
            "threads": max(0, self.threads - before.threads),
            "children": self.children - before.children,
            "shared_memory": self.shared_memory - before.shared_memory,
            "temporary": {name for name in self.temporary - before.temporary if "boundedgen" in name},
        }
        return {name: value for name, value in more.items() if value}


def _names(folder: str) -> frozenset[str]:
    return frozenset(os.listdir(folder))


def no_more_than(before: Traces) -> None:
    """Fails if what was there `before` has not become all that there is again; threads may take a moment to end."""
    end = time.monotonic() + 5.0
    while (more := Traces.now().beyond(before)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not more, more


# --- what the machine itself is late by ----------------------------------------------------------------------------

_CONTROL = """
import heapq, json, os, random, select, threading, time

bell, ring = os.pipe()
due, arrivals, late, draw = [], [], [], random.Random(3)

def wait(within):
    gate = threading.Lock()
    gate.acquire()
    at = time.monotonic() + within
    arrivals.append((at, id(gate), gate))
    os.write(ring, b"x")
    gate.acquire()
    late.append(time.monotonic() - at)
    sum(range(30_000))

def caller():
    while True:
        wait(draw.uniform(0.02, 0.4))

def driver():
    poller = select.epoll()
    poller.register(bell, select.EPOLLIN)
    while True:
        left = max(0.0, due[0][0] - time.monotonic()) if due else 1.0
        if poller.poll(left):
            os.read(bell, 4096)
        while arrivals:
            heapq.heappush(due, arrivals.pop())
        sum(range(10_000))
        while due and due[0][0] <= time.monotonic():
            heapq.heappop(due)[2].release()

for work in [driver] + [caller] * 20:
    threading.Thread(target=work, daemon=True).start()
while True:
    time.sleep(0.2)
    seen, late[:] = late[:], []
    print(json.dumps(seen), flush=True)
"""


class Stall:
    """How late this machine lets deadlines be kept, meanwhile, by a bare Python program of the same shape.

    Twenty threads wait, one wakes them, each does half a millisecond of work: no engine, no library. A machine that
    is shared with others is late for it too.
    """

    def __enter__(self) -> Stall:
        self._process = subprocess.Popen([sys.executable, "-c", _CONTROL], stdout=subprocess.PIPE, text=True)
        self.late: list[float] = []
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        out, _ = self._process.communicate()
        for line in out.splitlines():
            with contextlib.suppress(ValueError):
                self.late += json.loads(line)

    @property
    def p99(self) -> float:
        return percentile(self.late, 0.99)


def percentile(values: list[float], rank: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(rank * len(ordered)))]


def in_ms(values: list[float]) -> str:
    ranks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return " ".join(f"{name} {percentile(values, rank) * 1e3:.1f}" for name, rank in ranks.items()) + " ms"


# --- other processes that use the library ---------------------------------------------------------------------------


@contextlib.contextmanager
def script(
    source: str, *arguments: object, flags: Sequence[str] = (), places: Sequence[str] = (), **popen: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `source`, with the tests importable; killed in the end, or after SETTLING_S.

    `places`: its PYTHONPATH, instead.
    """
    path = os.pathsep.join(places or [str(MODELS.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *flags, "-c", source, *map(str, arguments)],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **popen},
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    patience = threading.Timer(SETTLING_S, process.kill)
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        process.kill()
        process.communicate()
        patience.join()


def said(process: subprocess.Popen[str], what: str = "") -> str:
    """The next line that it prints; the test fails if there is none, or another than `what`."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the script ended with {process.wait(5)}"
    assert what in line, line
    return line
