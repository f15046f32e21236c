"""A lane at capacity and beyond, while its clients misbehave: the raw loop, then boundedgen, load by load.

    python benchmarks/overload.py [--seconds 180] [--loads 0.5 1 2 4] [--small] [--json FILE]

Arrivals are open (Poisson, seeded) at a multiple of what the raw loop serves in a closed one: its median over fresh
processes, one before and one after each load, since the same program is by up to 15 % faster in one process, or in one
minute, than in another. A client gives up after its own timeout and tries again at once; some vanish in mid-stream and
some stop, on top of those that are counted; a proxy goes on reading for whoever has left (benchmarks/clients.py). Both
contestants are the same engine settings in a fresh process each, one after the other, and the clients are a process of
their own. Exits 1 if boundedgen does less than 0.9 of capacity at a load from 1 up, over all of it or in its last
third, counted by steps, or if its probe takes too long.

Counted by steps, what was served is held against the steps that were made, and that against the same figure of the raw
loop: the machine may be slower in one load than in another, and a step is a step. On a machine that has become faster
since its capacity was measured, fewer arrive than it could serve: nine tenths of those that came are enough then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from attrs import asdict, evolve
from clients import GOOD, Clients, Manners, Rate, lane
from figures import machine
from workload import Workload, small, smollm2

HELD = 0.9  #: of capacity
SCRIPTS = {"raw": "lane_raw.py", "boundedgen": "lane_bounded.py"}


def quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def spec(work: Workload, manners: Manners) -> dict[str, Any]:
    return {"model": work.model, "scheduler": work.scheduler(), "running_max": work.sequences, "ttl": manners.ttl}


async def raw_capacity(work: Workload, manners: Manners, given: argparse.Namespace) -> Rate:
    """Of a raw loop in a process of its own, in a closed loop."""
    async with lane(SCRIPTS["raw"], spec(work, manners), manners, given.seed) as clients:
        rate = await clients.closed_loop(work.sequences, given.warm)
        await clients.stop()
    return rate


async def one(
    name: str, work: Workload, manners: Manners, load: float, capacity: float, given: argparse.Namespace
) -> dict[str, Any]:
    """One contestant at one load; `capacity` in requests a second."""
    async with lane(SCRIPTS[name], spec(work, manners), manners, given.seed) as clients:
        own = await clients.closed_loop(work.sequences, given.warm)
        idle = await probed_idle(clients, name)
        clients.restart()
        probing = start_probing(clients, name)
        await clients.arrive(load * capacity, given.seconds)
        probing()
        row = figures(clients, given.seconds)
        await clients.stop()
    return {"contestant": name, "load": load, "own_capacity": own.per_s, "probe_idle": idle, **row}


def start_probing(clients: Clients, name: str) -> Any:
    if name == "boundedgen":
        clients.say("probing", True)
        return lambda: clients.say("probing", False)
    return asyncio.create_task(clients.probe()).cancel


async def probed_idle(clients: Clients, name: str) -> float:
    """Median seconds of a probe on the idle lane."""
    clients.restart()
    stop = start_probing(clients, name)
    await asyncio.sleep(6.5)
    stop()
    await asyncio.sleep(0.3)
    return statistics.median(seconds or 0.0 for _, seconds in clients.probes)


def figures(clients: Clients, seconds: float) -> dict[str, Any]:
    counted = [a for a in clients.attempts if a.kind == GOOD]
    done = [a for a in counted if a.how == "done" and a.ended is not None and a.ended <= seconds]
    ended = [a.ended or 0.0 for a in done]
    thirds = [clients.rate(ended, k * seconds / 3, (k + 1) * seconds / 3) for k in range(3)]
    whole = clients.rate(ended, 0.0, seconds)
    times = [(a.ended or 0) - a.sent for a in done]
    answered = [s if s is not None else 45.0 for _, s in clients.probes]
    steps = [s for sample in clients.samples for s in sample["steps"]]
    refusals = [(a.ended or 0) - a.sent for a in clients.attempts if a.how == "refused"]
    last = clients.samples[-1] if clients.samples else {}
    return {
        "came_per_s": clients.came / seconds,
        "steps_per_s": clients.steps(0.0, seconds) / seconds,
        "attempts": len(clients.attempts),
        "done_per_s": whole.per_s,
        "done_per_step": whole.per_step,
        "done_per_s_thirds": [third.per_s for third in thirds],
        "done_per_step_thirds": [third.per_step for third in thirds],
        "total_p50": quantile(times, 0.5),
        "total_p99": quantile(times, 0.99),
        "first_p50": quantile([a.first - a.sent for a in done if a.first is not None], 0.5),
        "late_inside": sum(a.entered and a.how in ("deadline", "gave up") for a in counted),
        "refused": len(refusals),
        "refusal_p50": quantile(refusals, 0.5),
        "refusal_p99": quantile(refusals, 0.99),
        "gave_up": sum(a.how == "gave up" for a in counted),
        "ended": {how: sum(a.how == how for a in counted) for how in {a.how for a in counted}},
        "hopeless": last.get("hopeless"),
        "inside_max": max((s["inside"] for s in clients.samples), default=0),
        "waiting_max": max((s["waiting"] for s in clients.samples), default=0),
        "orphans_max": max((s["orphans"] for s in clients.samples), default=0),
        "orphans_last": last.get("orphans"),
        "probe_p50": quantile(answered, 0.5),
        "probe_p99": quantile(answered, 0.99),
        "probes": len(answered),
        "step_p50": quantile(steps, 0.5),
        "step_p99": quantile(steps, 0.99),
        "step_max": max(steps, default=None),
        "died": not clients.alive,
        "sent_late_p50": quantile(clients.late, 0.5),
        "sent_late_p99": quantile(clients.late, 0.99),
        "last_sample": {k: v for k, v in last.items() if k != "steps"},
        "series": {
            "goodput_by_second": [sum(int(a.ended or -1) == s for a in done) for s in range(int(seconds))],
            "samples": [
                {k: s.get(k) for k in ("at", "inside", "waiting", "orphans", "usage")} for s in clients.samples
            ],
            "probes": clients.probes,
        },
    }


def goodput(row: dict[str, Any], capacity: Rate) -> list[float]:
    """As shares of capacity: by time, in the last third of it, by steps, and in the last third by steps."""
    per_step = capacity.per_step or float("inf")
    by_time = [row["done_per_s"] / capacity.per_s, row["done_per_s_thirds"][2] / capacity.per_s]
    return by_time + [(rate or 0.0) / per_step for rate in (row["done_per_step"], row["done_per_step_thirds"][2])]


def shown(row: dict[str, Any], capacity: Rate) -> str:
    def number(name: str, digits: int = 2) -> str:
        return "-" if row[name] is None else f"{row[name]:.{digits}f}"

    cells = (
        f"{row['load']:g}", row["contestant"], *(f"{share:.2f}" for share in goodput(row, capacity)),
        f"{row['done_per_s'] / row['came_per_s']:.2f}", number("steps_per_s", 1),
        number("total_p50", 1), number("total_p99", 1), row["late_inside"], row["gave_up"], row["refused"],
        row["hopeless"] if row["hopeless"] is not None else "-", row["inside_max"], row["waiting_max"],
        row["orphans_max"], f"{number('probe_idle', 3)} {number('probe_p50', 3)} {number('probe_p99', 3)}",
        f"{number('step_p50', 3)} {number('step_max', 3)}", "died" if row["died"] else "",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


COLUMNS = (
    *("load", "contestant", "goodput", "in the last third", "by steps", "in the last third"),
    *("of those that came", "steps/s", "p50 s", "p99 s", "late inside", "gave up", "refused"),
    *("hopeless", "inside max", "waiting max", "orphans max", "probe idle, p50, p99 s", "step p50, max s", "end"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


def probe_allowed(row: dict[str, Any]) -> float:
    return 2.0 * float(row["probe_idle"]) + float(row["step_max"] or 0.0)


def complaints(rows: list[dict[str, Any]], capacity: Rate) -> list[str]:
    found = []
    for row in rows:
        if row["contestant"] != "boundedgen":
            continue
        _, _, whole, last = goodput(row, capacity)
        for name, share, done in (
            ("goodput by steps", whole, row["done_per_s"]),
            ("in the last third", last, row["done_per_s_thirds"][2]),
        ):
            if row["load"] >= 1.0 and max(share, done / row["came_per_s"]) < HELD:
                found.append(f"load {row['load']:g}: {name} {share:.2f}, below {HELD}")
        if row["probe_p99"] is None or row["probe_p99"] > probe_allowed(row):
            found.append(f"load {row['load']:g}: probe p99 {row['probe_p99']} s, allowed {probe_allowed(row):.3f} s")
    return found


def median(rates: list[Rate]) -> Rate:
    per_step = [rate.per_step for rate in rates if rate.per_step is not None]
    return Rate(statistics.median(rate.per_s for rate in rates), statistics.median(per_step) if per_step else None)


async def contest(
    work: Workload, manners: Manners, arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[Rate]]:
    """Rows, and the capacities of the raw loop in between."""
    rows, capacities = [], [await raw_capacity(work, manners, arguments)]
    for load in arguments.loads:
        for name in arguments.contestants:
            rows.append(await one(name, work, manners, load, median(capacities).per_s, arguments))
            capacities.append(await raw_capacity(work, manners, arguments))
            done, capacity = rows[-1], capacities[-1]
            print(
                f"{name} at {load:g}: {done['done_per_s']:.2f}/s, {done['done_per_step'] or 0:.4f} a step; "
                f"capacity {capacity.per_s:.2f}/s, {capacity.per_step or 0:.4f} a step",
                flush=True,
            )
    return rows, capacities


def arguments_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each load")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--contestants", nargs="+", choices=tuple(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--sequences", type=int, default=8, help="slots")
    parser.add_argument("--small", action="store_true", help="the project's own small model instead of SmolLM2")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds of each closed loop")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in asdict(Manners()).items():
        if name != "vocab":
            parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--json", help="write the figures there")
    return parser.parse_args()


def main() -> int:
    arguments = arguments_given()
    model, vocab = (small(), 259) if arguments.small else (smollm2(), 40_000)
    given = {name: getattr(arguments, name) for name in asdict(Manners()) if name != "vocab"}
    manners = evolve(Manners(), vocab=vocab, **given)
    work = Workload("overload", model, arguments.sequences, manners.prompt, manners.new, vocab)
    rows, capacities = asyncio.run(contest(work, manners, arguments))
    capacity = median(capacities)
    print(HEAD, *(shown(row, capacity) for row in rows), sep="\n")
    of_time, of_steps = [c.per_s for c in capacities], [c.per_step or 0.0 for c in capacities]
    print(f"capacity {capacity.per_s:.2f} requests a second ({min(of_time):.2f} to {max(of_time):.2f})")
    print(f"and {capacity.per_step or 0:.4f} a step ({min(of_steps):.4f} to {max(of_steps):.4f})")
    print(f"clients were sent late by p99 {max(row['sent_late_p99'] or 0 for row in rows):.3f} s at most")
    if arguments.json:
        Path(arguments.json).parent.mkdir(parents=True, exist_ok=True)
        told = {
            "machine": machine(),
            "manners": asdict(manners),
            "capacities": [asdict(c) for c in capacities],
            "rows": rows,
        }
        Path(arguments.json).write_text(json.dumps(told, indent=1))
    for complaint in (found := complaints(rows, capacity)):
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
