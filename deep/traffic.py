"""Traffic that makes the raw engine die in seconds at a full cache, though each request fits alone. Seeded, endless.

Greedy ones, beams and several samples, prompts with shared beginnings, many of them stopped in mid-air
(engine-facts: the engine's preemption is what fails).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

BLOCK = 32  #: tokens
BLOCKS = 6  #: of the cache, for requests
PROBE = 1  #: block, which boundedgen adds for `probe`; the bare loop gets it too
AT_ONCE = 16
SCHEDULER: Mapping[str, Any] = {"num_kv_blocks": BLOCKS, "max_num_batched_tokens": 256, "max_num_seqs": 64}


@frozen
class Asked:
    prompt: tuple[int, ...]
    config: Mapping[str, Any]
    stop_after: float | None  #: seconds from its submission; None: it is not stopped
    total: float  #: seconds within which its caller wants an answer

    @property
    def results(self) -> int:
        return int(self.config.get("num_return_sequences", 1))

    @property
    def sequences(self) -> int:
        return max(int(self.config.get("num_beams", 1)), self.results)

    @property
    def blocks(self) -> int:
        tokens = len(self.prompt) + int(self.config["max_new_tokens"]) - 1
        return self.sequences * -(-tokens // BLOCK)


def requests(seed: int) -> Iterator[Asked]:
    rng = random.Random(seed)
    beginnings = [tuple(rng.randrange(3, 259) for _ in range(150)) for _ in range(4)]
    while True:
        asked = _one(rng, beginnings)
        if asked.blocks <= BLOCKS:
            yield asked


def _one(rng: random.Random, beginnings: list[tuple[int, ...]]) -> Asked:
    shared = rng.choice(beginnings)[: rng.randrange(1, 151)]
    own = tuple(rng.randrange(3, 259) for _ in range(rng.randrange(0, 1 + min(20, 150 - len(shared)))))
    kind = rng.random()
    config: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 121), "ignore_eos": rng.random() < 0.7}
    if kind < 0.3:
        beams = rng.choice([2, 4])
        config |= {"num_beams": beams, "num_return_sequences": rng.randrange(1, beams + 1)}
    elif kind < 0.6:
        config |= {
            "do_sample": True,
            "num_return_sequences": rng.randrange(1, 4),
            "rng_seed": rng.randrange(1, 1 << 30),
        }
    stop_after = rng.expovariate(1 / 0.05) if rng.random() < 0.5 else None
    return Asked(shared + own, config, stop_after, rng.choice([0.5, 2.0, 10.0]))
