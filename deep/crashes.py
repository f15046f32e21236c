"""Faults in random order on real engine processes, under load: all are answered in time, and nothing is left behind.

    python -m deep.crashes [--faults 200] [--seed N] [--resume fail|continue] [--black-box DIR|none] [--json FILE]

Each incarnation runs the real pipeline on the small model and suffers one fault of deep/faults.py, each kind as often
as the others. Prints how each fault showed, how late the latest answer was, and the time from the fault to the next
token. Exits with 1 if a promise is broken. The seed that is printed repeats the order of the faults.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import psutil
import tenacity
from attrs import Factory, asdict, define, evolve, frozen

import boundedgen as b
from boundedgen._engine._host import ChildLink, GenAIHost
from boundedgen._text import GenAITokenizer
from boundedgen.abc import Tokenizer
from boundedgen.testing._faulty_child import MODULE
from deep.belongings import Belongings, left_behind, temporary_files
from deep.faults import Kind, dealt
from deep.lateness import Lateness
from deep.streams import Answer, Streams

MODEL = str(Path(__file__).parent.parent / "tests" / "models" / "plain")
#: In f32 the same prompt has the same greedy answer in every batch and in every incarnation.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
LIMITS = b.Limits(
    running_max=4, step=1.0, first_step=5.0, new_shape=5.0, ack=1.0, reclaim=1.0, progress=3.0, boot=60.0, reap=10.0
)
LATE_S = 0.1  #: an answer may come so much later than its deadline, on top of what the machine itself is late by
INCIDENT_S = 2.0  #: in which what is known of a lost engine is gathered
CLIENTS = 6
PATIENCE_S = 120.0


@final
class FaultyHost:
    """The real engine, each incarnation with a fault of its own; those after the last fault are sound."""

    def __init__(self, kinds: list[Kind], limits: b.Limits, rng: random.Random, notes: Path) -> None:
        self.kinds, self._limits, self._notes = kinds, limits, notes
        self.drawn = [kind.drawn(rng) for kind in kinds]
        self.starts: list[
            tuple[float, float]
        ] = []  #: when the driver's thread began to start a process, and had done so
        self._tokenizer: Tokenizer | None = None

    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = GenAITokenizer(MODEL, {})
        return self._tokenizer

    def defaults(self) -> Mapping[str, Any]:
        return {}

    def clock(self, incarnation: int) -> Path:
        """Where its engine writes when its fault was."""
        return self._notes / f"fault-{incarnation}"

    def spawn(self, incarnation: int) -> ChildLink:
        fault = self.drawn[incarnation - 1] if incarnation <= len(self.drawn) else {}
        host = GenAIHost(
            MODEL,
            {"num_kv_blocks": 64},
            "CPU",
            EXACT,
            tokenizer_properties={},
            limits=self._limits,
            tokenizer=self.tokenizer,
            module=MODULE,
            fault={**fault, "clock": str(self.clock(incarnation))} if fault else None,
        )
        began = time.monotonic()
        link = host.spawn(incarnation)
        self.starts.append((began, time.monotonic()))
        return link


@frozen
class Recovery:
    """From a fault to the first token after it, in seconds."""

    kind: str
    cause: str
    detection: float  #: until it was noticed and all who were inside are answered
    leaving: float  #: until the next process was started: looking at the old one, killing it, reaping it
    boot: float  #: until that was ready
    rest: float  #: until its first token

    @property
    def whole(self) -> float:
        return self.detection + self.leaving + self.boot + self.rest


@define
class Findings:
    streams: Streams = Factory(Streams)
    broken: list[str] = Factory(list)
    late: list[float] = Factory(list)
    recoveries: list[Recovery] = Factory(list)
    incidents: list[float] = Factory(list)  #: seconds that gathering took
    starts: list[float] = Factory(list)  #: seconds that starting a process took the driver's thread
    stats: dict[str, Any] = Factory(dict)
    machine_late: float = 0.0  #: seconds that threads waited for a processor, in all


def client(lane: b.BoundedPipeline, seed: int, stop: threading.Event, findings: Findings) -> None:
    """One request after another; some are cancelled in mid-stream, so that lost stops show."""
    rng = random.Random(seed)
    while not stop.is_set():
        prompt, total = (5, rng.randrange(3, 40)), rng.choice([0.5, 2.0, 30.0])
        asked_at = time.monotonic()
        try:
            generation = lane.submit(
                prompt, max_new_tokens=rng.randrange(5, 300), ignore_eos=True, bounds=b.Bounds(total=total)
            )
        except b.Rejected as error:
            findings.broken.append(f"refused: {error}")
            return
        findings.streams.follow(generation, prompt, rng.random(), asked_at)


def wait_for(done: Callable[..., bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


@final
class Sufferer:
    """Injects what comes from outside, and watches what becomes of it."""

    def __init__(self, lane: b.BoundedPipeline, host: FaultyHost, rng: random.Random, findings: Findings) -> None:
        self.lane, self.host, self.rng, self.findings = lane, host, rng, findings
        self._kills: dict[str, int] = dict(lane.stats().kills_total)
        self._grandchildren: list[psutil.Process] = []

    def suffer(self, incarnation: int) -> None:
        """That incarnation's fault, until the next one has spoken."""
        kind = self.host.kinds[incarnation - 1]
        if kind.inside.get("grandchild"):
            self._grandchildren = self._children()
            if not self._grandchildren:
                self._broken(f"{kind.name}: there is none")
        hurt = self._hurt(incarnation, kind) if kind.outside else None
        if not wait_for(lambda: sum(self.lane.stats().kills_total.values()) >= incarnation, PATIENCE_S):
            self._broken(f"{kind.name}: was not noticed within {PATIENCE_S:g} s")
            return
        noticed, tokens = time.monotonic(), self.lane.stats().tokens_total
        cause = self._cause(kind)
        if not wait_for(lambda: self._speaks(incarnation + 1, tokens), PATIENCE_S):
            self._broken(f"{kind.name}: no token within {PATIENCE_S:g} s")
            return
        spoken, life = time.monotonic(), self.lane._driver.governor.life
        hurt = float(self.host.clock(incarnation).read_text()) if hurt is None else hurt
        boot, ready = life.boot_s, life.ready_at
        assert boot is not None
        assert ready is not None
        spawned = ready - boot
        self.findings.recoveries.append(
            Recovery(kind.name, cause, noticed - hurt, spawned - noticed, boot, spoken - ready)
        )
        self._buried(kind)

    def _speaks(self, incarnation: int, tokens: int) -> bool:
        stats = self.lane.stats()
        return stats.incarnation >= incarnation and stats.tokens_total > tokens

    def _hurt(self, incarnation: int, kind: Kind) -> float:
        """The instant at which the signal is sent."""
        link, watch = self.lane._driver.link, self.lane._driver.governor.watch
        assert link is not None
        assert link.pid is not None
        if flood := self.host.drawn[incarnation - 1].get("flood_at"):  # which alone kills nobody
            wait_for(lambda: watch.steps > flood, PATIENCE_S)
        time.sleep(self.rng.uniform(0, 0.3))
        if sum(self.lane.stats().kills_total.values()) >= incarnation:
            self._broken(f"{kind.name}: it was gone before the signal")
        at = time.monotonic()
        os.kill(link.pid, kind.outside)
        return at

    def _children(self) -> list[psutil.Process]:
        link = self.lane._driver.link
        assert link is not None
        return list(psutil.Process(link.pid).children(recursive=True))

    def _cause(self, kind: Kind) -> str:
        before, self._kills = self._kills, dict(self.lane.stats().kills_total)
        causes = {cause for cause, count in self._kills.items() if count != before.get(cause, 0)}
        if not causes <= kind.causes or len(causes) != 1:
            self._broken(f"{kind.name}: killed for {sorted(causes)}")
        return "+".join(sorted(causes))

    def _buried(self, kind: Kind) -> None:
        left = [child for child in self._grandchildren if child.is_running() and child.status() != "zombie"]
        if left:
            self._broken(f"{kind.name}: grandchildren left behind: {left}")
        self._grandchildren = []

    def _broken(self, what: str) -> None:
        self.findings.broken.append(what)


def run(kinds: list[Kind], seed: int, *, resume: str = "fail", black_box: Path | None = None) -> Findings:
    """`black_box` is an empty folder, or None: there is to be no black box."""
    rng, findings = random.Random(seed), Findings()
    limits = evolve(LIMITS, incidents_kept=len(kinds) + 1)
    with temporary_files() as notes, Lateness() as machine:
        host = FaultyHost(kinds, limits, rng, notes)
        before = Belongings.now()
        policy = b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never, resume=resume)  # type: ignore[arg-type]
        with b.BoundedPipeline(
            None, engine=host, limits=limits, restart=policy, black_box=black_box, admission=b.Admission(margin=None)
        ) as lane:
            _under_load(lane, host, rng, findings)
            lane.close()
            stats = lane.stats()
        for number in range(len(kinds)):
            host.clock(number + 1).unlink(missing_ok=True)
        findings.broken += left_behind(before)
    findings.stats = stats.to_dict()
    findings.machine_late = machine.whole
    findings.broken += _settled_once(stats, findings.streams, len(kinds), resume)
    findings.late = [answer.late for answer in findings.streams.answers]
    findings.starts = [end - began for began, end in host.starts]
    findings.broken += [
        _how_late(answer, machine, host.starts)
        for answer in findings.streams.answers
        if answer.late > LATE_S + machine.of(answer.at - answer.late, answer.at)
    ]
    if black_box is not None:
        findings.broken += _incidents(black_box, findings)
    return findings


def _how_late(answer: Answer, machine: Lateness, starts: list[tuple[float, float]]) -> str:
    """And whether the driver's thread was starting a process meanwhile."""
    due = answer.at - answer.late
    starting = max((end - began for began, end in starts if began < answer.at and end > due), default=0.0)
    return (
        f"an answer {answer.late:.3f} s late, settled {answer.settled_late:.3f} s late; "
        f"the machine {machine.of(due, answer.at):.3f} s, the start of a process took {starting:.3f} s"
    )


def _under_load(lane: b.BoundedPipeline, host: FaultyHost, rng: random.Random, findings: Findings) -> None:
    stop = threading.Event()
    clients = [
        threading.Thread(target=client, daemon=True, args=(lane, rng.randrange(1 << 32), stop, findings))
        for _ in range(CLIENTS)
    ]
    sufferer = Sufferer(lane, host, rng, findings)
    for thread in clients:
        thread.start()
    for incarnation in range(1, len(host.kinds) + 1):
        sufferer.suffer(incarnation)
        if findings.broken:
            break
    stop.set()
    for thread in clients:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            findings.broken.append("a caller was not answered at all")


def _settled_once(stats: b.SchedulerStats, streams: Streams, faults: int, resume: str) -> list[str]:
    broken = list(streams.broken)
    if stats.restarts_total != faults and not broken:
        broken.append(f"{stats.restarts_total} restarts for {faults} faults")
    told = {reason: count for reason, count in stats.finished_total.items() if count}
    if told != dict(streams.ends) or stats.submitted_total != sum(streams.ends.values()):
        broken.append(f"{stats.submitted_total} submitted, ended {told}; their callers saw {dict(streams.ends)}")
    seen = sum(answer.resumed for answer in streams.answers)
    if seen > stats.resumed_total or (resume == "fail" and stats.resumed_total):
        broken.append(f"{stats.resumed_total} resumed, their callers saw {seen}")
    return broken


def _incidents(where: Path, findings: Findings) -> list[str]:
    """Each fault has left exactly one, of its cause, gathered in time."""
    told = [json.loads(path.read_text()) for path in where.glob("*/incident.json")]
    findings.incidents = sorted(page["evidence"]["seconds"] for page in told)
    kept = sorted((page["incarnation"], page["cause"]) for page in told)
    wanted = [(number, recovery.cause) for number, recovery in enumerate(findings.recoveries, 1)]
    broken = [] if kept == wanted else [f"incidents of {len(kept)}, not {len(wanted)}: {set(kept) ^ set(wanted)}"]
    return broken + [f"an incident took {took:.2f} s" for took in findings.incidents if took > INCIDENT_S]


def spread(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=20) if len(values) > 1 else values * 19
    return f"median {cuts[9]:.3f} s, p95 {cuts[18]:.3f} s, max {max(values):.3f} s"


def told(findings: Findings) -> None:
    shown = Counter(f"{r.kind}: {r.cause}" for r in findings.recoveries)
    for what, count in sorted(shown.items()):
        print(f"  {count:4}  {what}")
    print(f"{sum(findings.streams.ends.values())} generations: {dict(findings.streams.ends)}")
    print(
        f"resumed {findings.stats['resumed_total']}; greedy answers compared {findings.streams.compared}, "
        f"streams read to the end that were continued {findings.streams.continued}"
    )
    if late := findings.late:
        print(
            f"latest answer {1e3 * max(late):.0f} ms after its deadline, {sum(x > LATE_S for x in late)} later than "
            f"{LATE_S:g} s; threads waited for a processor for {findings.machine_late:.1f} s in all"
        )
    if findings.recoveries:
        print(f"fault -> next token: {spread([r.whole for r in findings.recoveries])}")
        for part in ("detection", "leaving", "boot", "rest"):
            print(f"  {part:9} {spread([getattr(r, part) for r in findings.recoveries])}")
    if findings.starts:
        print(f"starting a process took the driver's thread {spread(findings.starts)}")
    if findings.incidents:
        print(f"{len(findings.incidents)} incidents, gathered in {spread(findings.incidents)}")
    print("broken: " + "; ".join(findings.broken) if findings.broken else "every promise was kept")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--resume", choices=("fail", "continue"), default="fail")
    parser.add_argument("--black-box", help="an empty folder for incidents, or none; default: a temporary one")
    parser.add_argument("--json", help="write all figures there")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, resume {arguments.resume}", flush=True)
    logging.getLogger("boundedgen").setLevel(logging.CRITICAL)  # it has a page to say of every fault
    kinds = dealt(arguments.faults, random.Random(arguments.seed))
    with temporary_files() as own:
        box = None if arguments.black_box == "none" else Path(arguments.black_box or own / "incidents")
        findings = run(kinds, arguments.seed, resume=arguments.resume, black_box=box)
    told(findings)
    if arguments.json:
        recoveries = [asdict(recovery) for recovery in findings.recoveries]
        figures = {"recoveries": recoveries, "late": findings.late, "stats": findings.stats}
        Path(arguments.json).write_text(json.dumps(figures))
    return 1 if findings.broken else 0


if __name__ == "__main__":
    sys.exit(main())
