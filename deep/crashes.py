"""Faults in random order on real engine processes, under load: all are answered in time, and nothing is left behind.

    python -m deep.crashes [--faults 200] [--seed N]

Each incarnation runs the real pipeline on the small model and suffers one fault: inside of a step (an exception, a
crash, an exit, a hang that holds the interpreter lock, garbage or a cut frame on the wire, lost stops) or from outside
(SIGKILL, SIGSTOP, SIGSEGV). Prints how each fault showed, how late the latest answer was, and the time from the fault
to the next token. Exits with 1 if a promise is broken. The seed that is printed repeats the order of the faults.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import psutil
import tenacity
from attrs import Factory, define

import boundedgen as b
from boundedgen._engine._host import ChildLink, GenAIHost
from boundedgen._text import GenAITokenizer
from boundedgen.abc import Tokenizer
from boundedgen.testing._faulty_child import MODULE

MODEL = str(Path(__file__).parent.parent / "tests" / "models" / "plain")
INSIDE = ("raise_at", "crash_at", "exit_at", "hang_at", "garbage_at", "cut_at", "stale_at", "ignore_stops")
OUTSIDE = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGSEGV": signal.SIGSEGV}
LIMITS = b.Limits(
    running_max=4, step=0.5, first_step=2.0, new_shape=2.0, ack=0.5, reclaim=0.5, progress=2.0, boot=60.0, reap=10.0
)
LATE_S = 0.1  #: an answer may come so much later than its deadline, on top of what the machine itself is late by
CLIENTS = 6
PATIENCE_S = 120.0


@final
class FaultyHost:
    """The real engine, each incarnation with a fault of its own."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.fault = ""
        self.before = 0  # faults that were asked for in earlier incarnations
        self.wanted: list[str] = []
        self._tokenizer: Tokenizer | None = None

    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = GenAITokenizer(MODEL, {})
        return self._tokenizer

    def defaults(self) -> Mapping[str, Any]:
        return {}

    def spawn(self, incarnation: int) -> ChildLink:
        self.fault = self.wanted.pop() if self.wanted else ""
        asked = {} if self.fault not in INSIDE else {self.fault: self.rng.randrange(5, 80)}
        host = GenAIHost(
            MODEL,
            {"num_kv_blocks": 64},
            "CPU",
            {},
            tokenizer_properties={},
            limits=LIMITS,
            tokenizer=self.tokenizer,
            module=MODULE,
            fault=asked or None,
        )
        return host.spawn(incarnation)


@define
class Findings:
    ends: Counter[str] = Factory(Counter)
    broken: list[str] = Factory(list)
    late: list[float] = Factory(list)
    seen: Counter[str] = Factory(Counter)  #: by fault: how it showed
    recovery: list[float] = Factory(list)  #: seconds from the fault being noticed to the next token


def client(lane: b.BoundedPipeline, seed: int, stop: threading.Event, findings: Findings) -> None:
    """One request after another; some are cancelled in mid-stream, so that lost stops show."""
    rng = random.Random(seed)
    while not stop.is_set():
        bounds = b.Bounds(total=rng.choice([0.5, 2.0, 30.0]))
        asked = time.monotonic()
        try:
            generation = lane.submit(
                [5, rng.randrange(3, 259)], max_new_tokens=rng.randrange(5, 300), ignore_eos=True, bounds=bounds
            )
        except b.Rejected as error:
            findings.broken.append(f"refused: {error}")
            return
        with contextlib.suppress(b.GenerationError), generation:
            if rng.random() < 0.5:
                next(iter(generation), None)
                generation.cancel()
            generation.result()
        if not wait_for(lambda g=generation: g.finish_reason is not None, PATIENCE_S):
            findings.broken.append("not answered at all")
            return
        assert bounds.total is not None
        findings.late.append(time.monotonic() - asked - bounds.total)
        findings.ends[str(generation.finish_reason)] += 1


def wait_for(done: Any, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def suffer(lane: b.BoundedPipeline, host: FaultyHost, rng: random.Random, findings: Findings) -> None:
    """One incarnation's fault, until the next incarnation has spoken."""
    fault, incarnation, link = host.fault, lane.stats().incarnation, lane._driver.link
    if fault in OUTSIDE:
        time.sleep(rng.uniform(0, 0.3))
        assert link is not None
        assert link.pid is not None
        os.kill(link.pid, OUTSIDE[fault])
    kills = dict(lane.stats().kills_total)
    if not wait_for(lambda: lane.stats().kills_total != kills or lane.stats().incarnation != incarnation, PATIENCE_S):
        findings.broken.append(f"{fault} was not noticed within {PATIENCE_S:g} s")
        return
    noticed = time.monotonic()
    after = dict(lane.stats().kills_total)
    findings.seen[f"{fault}: " + "+".join(cause for cause in after if after[cause] != kills.get(cause))] += 1
    tokens = lane.stats().tokens_total
    if not wait_for(lambda: lane.stats().incarnation > incarnation and lane.stats().tokens_total > tokens, PATIENCE_S):
        findings.broken.append(f"no token within {PATIENCE_S:g} s of {fault}")
        return
    findings.recovery.append(time.monotonic() - noticed)


def run(faults: int, seed: int) -> Findings:
    rng, findings, stop = random.Random(seed), Findings(), threading.Event()
    host = FaultyHost(rng)
    kinds = [*INSIDE, *OUTSIDE]
    host.wanted = [rng.choice(kinds) for _ in range(faults)]
    me = psutil.Process()
    descriptors = me.num_fds()
    policy = b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never)
    with b.BoundedPipeline(None, engine=host, limits=LIMITS, restart=policy) as lane:
        clients = [
            threading.Thread(target=client, args=(lane, rng.randrange(1 << 32), stop, findings)) for _ in range(CLIENTS)
        ]
        for thread in clients:
            thread.start()
        for _ in range(faults):
            suffer(lane, host, rng, findings)
            if findings.broken:
                break
        stop.set()
        for thread in clients:
            thread.join(PATIENCE_S)
        stats = lane.stats()
    if stats.restarts_total != faults and not findings.broken:
        findings.broken.append(f"{stats.restarts_total} restarts for {faults} faults")
    if stats.submitted_total != sum(stats.finished_total.values()):
        findings.broken.append(f"{stats.submitted_total} submitted, {sum(stats.finished_total.values())} answered")
    children = me.children(recursive=True)
    if children:
        findings.broken.append(f"processes left behind: {children}")
    if me.num_fds() > descriptors + 3:  # the tokenizer's files
        findings.broken.append(f"{me.num_fds()} descriptors after, {descriptors} before")
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    findings = run(arguments.faults, arguments.seed)
    for shown, count in sorted(findings.seen.items()):
        print(f"  {count:4}  {shown}")
    late = sorted(findings.late)
    print(f"{sum(findings.ends.values())} generations: {dict(findings.ends)}")
    print(
        f"latest answer {1e3 * max(late):.0f} ms after its deadline; "
        f"{sum(x > LATE_S for x in late)} later than {LATE_S:g} s"
    )
    if len(findings.recovery) > 1:
        cuts = statistics.quantiles(findings.recovery, n=20)
        print(
            f"fault noticed -> next token: median {cuts[9]:.2f} s, p95 {cuts[18]:.2f} s, "
            f"max {max(findings.recovery):.2f} s"
        )
    findings.broken += [f"{x:.3f} s late" for x in late if x > LATE_S]
    print("broken: " + "; ".join(findings.broken) if findings.broken else "every promise was kept")
    return 1 if findings.broken else 0


if __name__ == "__main__":
    sys.exit(main())
