"""What "reserve" and "adaptive" make of the same overload, in simulated time: the table of docs/overload.md.

    python benchmarks/policies.py [--rate 6] [--seconds 60] [--seed 1]

Calls ask for 512 tokens each, and their answers have 20 to 79; the cache holds three such calls. Four of five are
chats of 20 users, with `priority=1` and 15 s each, the others batches of one owner, with 120 s.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence

from attrs import define, evolve, field

import boundedgen as b
from boundedgen.testing import SimModel, Simulation

POLICIES = ("reserve", "adaptive")
PROMPT, LIMIT = 30, 512  #: tokens
CHATS = 0.8  #: of all calls
USERS = 20
TIME = {"chat": 15.0, "batch": 120.0}  #: seconds that a call has
MODEL = evolve(SimModel(), step_s=0.05, natural_length=lambda prompt: 20 + sum(prompt) * 37 % 60)


@define
class Seen:
    """By clients, and at the end by `stats()`."""

    answered: dict[str, list[float]] = field(factory=lambda: {kind: [] for kind in TIME})  #: seconds, by kind
    told: list[float] = field(factory=list)  #: seconds to wait, of those that were refused
    ended: dict[str, list[float]] = field(factory=lambda: {"queued": [], "total": []})  #: seconds, by bound
    usage_max: float = 0.0

    @property
    def calls(self) -> int:
        return sum(map(len, (*self.answered.values(), self.told, *self.ended.values())))


async def call(simulation: Simulation, kind: str, rng: random.Random, seen: Seen) -> None:
    began, owner = simulation.now, f"user{rng.randrange(USERS)}" if kind == "chat" else "batch"
    prompt = [rng.randrange(3, 200) for _ in range(PROMPT)]
    arguments = {"bounds": b.Bounds(total=TIME[kind]), "owner": owner, "priority": int(kind == "chat")}
    try:
        await simulation.pipeline.agenerate(prompt, max_new_tokens=LIMIT, **arguments)
        seen.answered[kind].append(simulation.now - began)
    except b.Saturated as error:
        seen.told.append(error.retry_after_s)
    except b.DeadlineExceeded as error:
        bound = "" if error.deadline is None else error.deadline.bound
        seen.ended[bound].append(simulation.now - began)


async def arrivals(simulation: Simulation, rate: float, seconds: float, rng: random.Random, seen: Seen) -> None:
    until = simulation.now + seconds
    async with asyncio.TaskGroup() as calls:
        while simulation.now < until:
            await asyncio.sleep(rng.expovariate(rate))
            kind = "chat" if rng.random() < CHATS else "batch"
            calls.create_task(call(simulation, kind, rng, seen))


def measured(policy: str, rate: float, seconds: float, seed: int) -> Seen:
    seen = Seen()
    admission, limits = b.Admission(policy=policy), b.Limits(waiting_max=100)
    with Simulation(model=MODEL, admission=admission, limits=limits) as simulation:
        simulation.run(arrivals(simulation, rate, seconds, random.Random(seed), seen))
        seen.usage_max = simulation.pipeline.stats().cache_usage_max or 0.0
    return seen


def median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} s" if values else "none"


def spread(values: Sequence[float]) -> str:
    return f"{median(values)}, {max(values):.3g} s" if values else "none"


def table(columns: Sequence[Seen]) -> str:
    rows = [
        ("answered", [str(sum(map(len, c.answered.values()))) for c in columns], '`finished_total["stop"]`'),
        ("chats: within (median, longest)", [spread(c.answered["chat"]) for c in columns], "`Completion.total_s`"),
        ("batches: within (median, longest)", [spread(c.answered["batch"]) for c in columns], ""),
        ("refused at once, 429", [str(len(c.told)) for c in columns], '`rejected_total["Saturated"]`'),
        ("their `retry_after_s` (median, longest)", [spread(c.told) for c in columns], ""),
        ("not let in at their turn, 503", [str(len(c.ended["queued"])) for c in columns], "`hopeless_total`"),
        ("they had waited (median)", [median(c.ended["queued"]) for c in columns], ""),
        ("too late, 504", [str(len(c.ended["total"])) for c in columns], '`deadlines_total["total"]`'),
        ("cache in use at most", [f"{c.usage_max:.0%}" for c in columns], "`cache_usage_max`"),
    ]
    (calls,) = {column.calls for column in columns}
    lines = [[f"Of {calls}", *(f'"{policy}"' for policy in POLICIES), "Seen as"], ["---"] * (len(POLICIES) + 2)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (*lines, *([name, *cells, at] for name, cells, at in rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=6.0, help="calls a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(table([measured(policy, asked.rate, asked.seconds, asked.seed) for policy in POLICIES]))


if __name__ == "__main__":
    main()
