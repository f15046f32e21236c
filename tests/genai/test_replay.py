"""The record of a run on the real engine replays through the core and ends where the run ended."""

import os
import random
import signal

from genai.lanes import lane

import boundedgen as b
from boundedgen._core._recording import Recorded, portrait, replay


def test_a_real_run_with_every_kind_of_end_and_a_death_is_told_again() -> None:
    rng = random.Random(20261129)
    with lane(limits=b.Limits(running_max=4, recorded=500), restarts=1) as pipeline:
        for round_ in range(6):
            lease = pipeline.lease("owner", ttl=rng.uniform(0.02, 5))
            generations = [
                pipeline.submit(
                    "hello" * rng.randrange(1, 9),
                    max_new_tokens=rng.randrange(1, 60),
                    bounds=rng.choice([None, b.Bounds(total=0.0), b.Bounds(total=rng.uniform(0.001, 0.05))]),
                    lease=rng.choice([None, lease]) if lease.live else None,
                )
                for _ in range(12)
            ]
            for generation in rng.sample(generations, 3):
                generation.cancel()
            link = pipeline._driver.link
            if round_ == 3 and link is not None and link.pid is not None:
                os.kill(link.pid, signal.SIGKILL)
            pipeline.generate_many(["x"] * 2, max_new_tokens=3)
    governor = pipeline._driver.governor
    assert isinstance(governor, Recorded)
    record = governor.record()
    assert len(record.inputs) >= 500
    assert portrait(replay(record)[0]) == portrait(governor)
