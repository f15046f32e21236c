"""The named scripts. Instants are rounds: see `scripts`."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from conformance.scripts import Admit, Script, Settings, Stop, script

SAMPLES = {"do_sample": True, "num_return_sequences": 3}
BEAMS = {"num_beams": 4, "num_return_sequences": 2}
BATCH = {"max_num_batched_tokens": 64}

ROOM = Settings(tokens=6400, scheduler=BATCH)
FULL = Settings(tokens=288, scheduler=BATCH)
FULL_AT_ONCE = Settings(tokens=288, scheduler={"max_num_batched_tokens": 2048})
WHOLE = Settings(tokens=6400, scheduler={"dynamic_split_fuse": False, "max_num_batched_tokens": 256, "max_num_seqs": 6})
WHOLE_FULL = Settings(tokens=288, scheduler=WHOLE.scheduler)
CACHING = Settings(tokens=6400, scheduler={**BATCH, "enable_prefix_caching": True})
COUNTED = Settings(tokens=6400, scheduler=BATCH, counted=True)
HYBRID = Settings("hybrid", tokens=6400, scheduler={**BATCH, "max_num_seqs": 24})
TIGHT = Settings("hybrid", tokens=288, scheduler={**BATCH, "max_num_seqs": 4})
SLOTS = Settings("hybrid", tokens=6400, scheduler={**BATCH, "max_num_seqs": 3})


@frozen
class Case:
    name: str
    script: Script


def _case(name: str, *commands: tuple[int, Admit | Stop]) -> Case:
    return Case(name, script(*commands))


def _admit(stay: int, prompt: int, new: int, **rest: Any) -> Admit:
    return Admit(stay, prompt, new, **rest)


#: What holds of every engine that has room.
ROOMY = [
    _case("one request", (0, _admit(1, 10, 5))),
    _case("one token", (0, _admit(1, 1, 1))),
    _case("the engine sleeps between two", (0, _admit(1, 10, 3)), (20, _admit(2, 10, 3))),
    _case("a prompt in parts, one behind it", (0, _admit(1, 200, 5)), (0, _admit(2, 30, 5)), (3, _admit(3, 100, 3))),
    _case(
        "decode comes before a prompt",
        *((0, _admit(n, 4, 40)) for n in range(1, 11)),
        (5, _admit(11, 300, 3)),
        (6, _admit(12, 64, 3)),
    ),
    _case("more that decode than a batch holds", *((0, _admit(n, 1, 6)) for n in range(1, 21))),
    _case("a block is full to its last token", (0, _admit(1, 32, 33)), (0, _admit(2, 31, 2)), (0, _admit(3, 33, 32))),
    _case("a stop while it decodes", (0, _admit(1, 10, 50)), (5, Stop(1))),
    _case("a stop while its prompt is computed", (0, _admit(1, 300, 50)), (2, Stop(1))),
    _case("a stop before the first step", (0, _admit(1, 10, 50)), (0, Stop(1))),
    _case("the same, beside another", (0, _admit(1, 10, 5)), (0, _admit(2, 10, 50)), (0, Stop(2))),
    _case("a stop of what waits for its turn", (0, _admit(1, 300, 5)), (0, _admit(2, 10, 50)), (1, Stop(2))),
    _case("a stop in the step of the last token", (0, _admit(1, 10, 3)), (2, Stop(1))),
    _case("a stop after the finish", (0, _admit(1, 10, 3)), (5, Stop(1)), (9, Stop(1))),
    _case("the same stop twice", (0, _admit(1, 10, 50)), (5, Stop(1)), (5, Stop(1)), (6, Stop(1))),
    _case("a stop of what never was", (0, _admit(1, 10, 5)), (2, Stop(7)), (20, Stop(7))),
    _case(
        "several stops in one step",
        *((0, _admit(n, 10 * n, 50)) for n in range(1, 5)),
        *((6, Stop(n)) for n in (3, 1, 2)),
    ),
    _case("all that run are stopped", (0, _admit(1, 10, 50)), (0, _admit(2, 50, 50)), (9, Stop(2)), (9, Stop(1))),
    _case("stop and admission in one round", (0, _admit(1, 10, 50)), (7, Stop(1)), (7, _admit(2, 10, 4))),
    _case("the table of what is held", (0, _admit(1, 10, 200)), (3, _admit(2, 10, 100)), (130, _admit(3, 5, 2))),
    _case("a deadline in the midst", (0, _admit(1, 10, 200, deadline=7.5)), (3, _admit(2, 10, 20))),
    _case("a deadline at the instant of a round", (0, _admit(1, 10, 200, deadline=7.0)), (3, _admit(2, 10, 20))),
    _case("a deadline that has passed", (0, _admit(1, 10, 20)), (3, _admit(2, 10, 20, deadline=2.0))),
    _case("a deadline that has passed, at rest", (3, _admit(2, 10, 20, deadline=2.0))),
    _case("stop and deadline in one round", (0, _admit(1, 10, 90, deadline=7.0)), (7, Stop(1)), (0, _admit(2, 9, 9))),
    _case("samples", (0, _admit(1, 40, 30, config=SAMPLES)), (0, _admit(2, 40, 30))),
    _case("samples, stopped", (0, _admit(1, 40, 30, config={**SAMPLES, "logprobs": 1})), (9, Stop(1))),
    _case("samples of a prompt that ends with its block", (0, _admit(1, 64, 40, config=SAMPLES))),
    _case("beams", (0, _admit(1, 40, 30, config=BEAMS)), (4, _admit(2, 40, 30))),
    _case("beams, stopped", (0, _admit(1, 40, 30, config=BEAMS)), (9, Stop(1)), (4, _admit(2, 40, 30))),
    _case("logprobs", (0, _admit(1, 10, 4, config={"logprobs": 1}))),
    _case("a stop token", (0, _admit(1, 40, 30, stop_at=4)), (0, _admit(2, 30, 30))),
    _case("a stop token as the first", (0, _admit(1, 40, 30, stop_at=1)), (0, _admit(2, 30, 4))),
    _case("what the engine refuses", (0, _admit(1, 0, 30)), (0, _admit(2, 30, 0)), (3, _admit(3, 30, 0))),
    _case("a refusal beside others", (0, _admit(1, 10, 9)), (3, _admit(2, 30, 0)), (3, _admit(3, 4, 5))),
    _case("a stay that is inside already", (0, _admit(1, 10, 30)), (3, _admit(1, 10, 30))),
    _case("a stay twice in one round", (0, _admit(1, 10, 30)), (0, _admit(1, 20, 30))),
    _case("a stay that was inside once", (0, _admit(1, 10, 3)), (9, _admit(1, 10, 3))),
]

#: What a cache does that is too small: admission "engine" lets it happen, and greedy single sequences survive it.
OVERFULL = [
    _case("exactly the cache", (0, _admit(1, 200, 89))),
    _case("one token more than the cache", (0, _admit(1, 200, 90))),
    _case("a prompt that can never fit, with one behind it", (0, _admit(1, 500, 30)), (1, _admit(2, 10, 30))),
    _case("the latest gives its blocks to the first", *((0, _admit(n, 100, 80)) for n in (1, 2, 3))),
    _case("whole prompts are computed anew", *((n, _admit(n, 33, 150)) for n in range(1, 7))),
    _case("a newcomer beside a stop, in a full cache", (0, _admit(1, 270, 10)), (9, Stop(1)), (9, _admit(2, 20, 4))),
    _case("the same, a step later", (0, _admit(1, 270, 10)), (9, Stop(1)), (10, _admit(2, 20, 4))),
    _case(
        "the one in front is stopped",
        *((0, _admit(n, 80, 100)) for n in (1, 2, 3, 4)),
        (40, Stop(1)),
        (41, Stop(3)),
    ),
]

#: What a cache does that is watched over: admission "adaptive".
GUARDED = [
    _case("the least urgent is paused", *((0, _admit(n, 60, 80, urgency=float(-n % 3))) for n in (1, 2, 3))),
    _case("a newcomer is turned back", *((n, _admit(n, 100, 60, urgency=0.0)) for n in (1, 2, 3))),
    _case("some are paused, some come later", *((5 * n, _admit(n, 20, 90, urgency=float(n))) for n in range(1, 9))),
    _case(
        "a stop beside a pause",
        *((0, _admit(n, 60, 80, urgency=float(n))) for n in (1, 2, 3)),
        *((at, Stop(3)) for at in range(30, 40)),
    ),
]

#: Without `dynamic_split_fuse`.
IN_WHOLE = [
    _case("prompts have steps of their own", (0, _admit(1, 100, 9)), (3, _admit(2, 100, 9)), (3, _admit(3, 200, 9))),
    _case("more than max_num_seqs", *((0, _admit(n, 20, 5 + n)) for n in range(1, 12))),
    _case("a prompt longer than a batch", (0, _admit(1, 10, 9)), (2, _admit(2, 257, 9))),
    _case("the same, with a newcomer", (0, _admit(1, 10, 9)), (2, _admit(2, 257, 9)), (2, _admit(3, 2, 9))),
]

#: A pool of as many blocks as sequences may run.
FEW_SLOTS = [
    _case("newcomers wait without a token", *((0, _admit(n, 20, 30 + 10 * n)) for n in range(1, 8))),
    _case(
        "one orphan is stopped", *((0, _admit(n, 20, 300)) for n in range(1, 5)), (0, _admit(9, 20, 1)), (50, Stop(2))
    ),
    _case(
        "all that run are stopped at once",
        *((0, _admit(n, 20, 300)) for n in range(1, 5)),
        *((0, _admit(n, 20, 1)) for n in range(5, 9)),
        *((20, Stop(n)) for n in range(1, 5)),
    ),
]

#: Prompts that were seen before.
REPEATED = [
    _case("a prompt three times", *((20 * n, _admit(n, 150, 4, text=1)) for n in (1, 2, 3))),
    _case("two of one prompt at once", (0, _admit(1, 150, 9, text=1)), (4, _admit(2, 150, 9, text=1))),
]

#: By the settings of their engine.
CASES: list[tuple[str, Settings, list[Case]]] = [
    ("plain", ROOM, ROOMY),
    ("plain, cache full", FULL, OVERFULL),
    ("plain, cache full, large batches", FULL_AT_ONCE, OVERFULL),
    ("plain, whole prompts", WHOLE, IN_WHOLE),
    ("plain, whole prompts, cache full", WHOLE_FULL, [case for case in OVERFULL if "never" not in case.name]),
    *((f"guarded, {kind}", at, GUARDED) for kind, at in (("plain", FULL), ("whole", WHOLE_FULL), ("hybrid", TIGHT))),
    ("guarded, release proved by counts", evolve(COUNTED, tokens=288), GUARDED),
    ("plain, prefix caching", CACHING, [*ROOMY[::3], *REPEATED]),
    ("plain, release proved by counts", COUNTED, ROOMY[1::2]),
    ("hybrid", HYBRID, ROOMY),
    ("hybrid, few slots", SLOTS, FEW_SLOTS),
]
