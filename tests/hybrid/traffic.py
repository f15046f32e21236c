"""Mixed traffic on a small cache: greedy, beams and samples; stopped, timed out, orphaned, or left to finish."""

import contextlib
import random
import time
from typing import Any

import boundedgen as bg

STUCK_S = 30.0


def mixed_run(pipeline: bg.BoundedPipeline, rnd: random.Random, *, block: int = 32, requests: int = 5) -> list[str]:
    """A few requests at once, each of which fits alone; how they ended. Raises TimeoutError if one is stuck."""
    lease = pipeline.lease("run", ttl=rnd.uniform(0.01, 0.2))
    shared = [rnd.randint(3, 258) for _ in range(4 * block)]
    generations = []
    for _ in range(rnd.randint(2, requests)):
        call = _call(rnd, shared, block)
        orphan = lease if rnd.random() < 0.2 else None
        try:
            generations.append(pipeline.submit(**call, lease=orphan))
        except bg.LeaseExpired:
            generations.append(pipeline.submit(**call))
    for generation in generations:
        if rnd.random() < 0.25:
            time.sleep(rnd.uniform(0, 0.01))
            generation.cancel()
    ends = [_end(generation) for generation in generations]
    lease.revoke()
    return ends


def _call(rnd: random.Random, shared: list[int], block: int) -> dict[str, Any]:
    """At most 12 blocks in all."""
    kind = rnd.choice(["greedy", "greedy", "beams", "samples"])
    sequences = 1 if kind == "greedy" else rnd.choice([2, 3, 4])
    tokens = 12 // sequences * block
    prompt = rnd.randint(1, min(len(shared), tokens - 1))
    own = [rnd.randint(3, 258) for _ in range(prompt)]
    config: dict[str, Any] = {
        "greedy": {},
        "beams": {"num_beams": sequences, "num_return_sequences": rnd.randint(1, sequences)},
        "samples": {"do_sample": True, "num_return_sequences": sequences, "rng_seed": rnd.randint(1, 999)},
    }[kind]
    return {
        "prompt": shared[:prompt] if rnd.random() < 0.5 else own,
        "max_new_tokens": rnd.randint(1, min(100, tokens - prompt)),
        "ignore_eos": rnd.random() < 0.8,
        "bounds": bg.Bounds(total=rnd.uniform(0.005, 0.2)) if rnd.random() < 0.2 else None,
        **config,
    }


def _end(generation: bg.Generation) -> str:
    with contextlib.suppress(bg.GenerationCancelled, bg.DeadlineExceeded, bg.LeaseLost):
        generation.result(STUCK_S)
    generation.wait_reclaimed(STUCK_S)
    assert generation.finish_reason is not None
    return generation.finish_reason.value
