"""Hours of mixed traffic on the real engine: memory, descriptors, threads and tables have to stay flat.

    python -m deep.soak [--minutes 60] [--seed N] [--kill-every S] [--json FILE]

Traffic comes in waves of random bounds, leases, lengths, stops and readers that leave. Between two waves the lane is at
rest, and looked at there. Exits with 1, and says what grew, if the last quarter is above the second one. The seed that
is printed repeats the traffic (not the engine's timing).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from attrs import asdict, frozen

import boundedgen as b

MODEL = str(Path(__file__).parent.parent / "tests" / "models" / "plain")
WAVE = 48  #: sequences
REST = 60.0  #: seconds within which a wave is over, whatever it is made of
MIB = 1 << 20
#: What each figure may grow by, in its own unit, from the second quarter to the last: noise of the allocators, no leak.
MAY_GROW = {"parent_mib": 4.0, "engine_mib": 8.0, "descriptors": 0.0, "threads": 0.0, "rows": 0.0, "objects": 2000.0}


@frozen
class Sample:
    """A lane at rest."""

    at_s: float
    parent_mib: float
    engine_mib: float
    descriptors: int
    threads: int
    rows: int  #: in the tables of the driver and the governor, where none should be
    objects: int  #: that Python's collector knows


class Soak:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.kills = 0

    def run(self, seconds: float, kill_every: float) -> None:
        limits = b.Limits(running_max=8, waiting_max=256)
        scheduler = {"num_kv_blocks": 128, "max_num_batched_tokens": 256, "max_num_seqs": 8}
        with b.BoundedPipeline(
            MODEL, scheduler, "CPU", limits=limits, restart=for_ever(), admission=b.Admission(margin=None)
        ) as lane:
            began = time.monotonic()
            killed = began
            while (now := time.monotonic()) - began < seconds:
                kill = kill_every and now - killed > kill_every
                self.wave(lane, kill=bool(kill))
                killed = now if kill else killed
                self.rest(lane)
                self.samples.append(self.look(lane, time.monotonic() - began))
            stats = lane.stats()
            assert stats.submitted_total == sum(stats.finished_total.values()) == sum(self.ends.values()), stats
            assert stats.restarts_total == self.kills, (stats.restarts_total, self.kills)

    def wave(self, lane: b.BoundedPipeline, *, kill: bool) -> None:
        lease = lane.lease("owner", ttl=self.rng.uniform(0.01, 2))
        readers = [
            threading.Thread(target=self.read, args=(self.submit(lane, lease), self.rng.random())) for _ in range(WAVE)
        ]
        for reader in readers:
            reader.start()
        if kill:
            self.kill(lane)
        for reader in readers:
            reader.join(REST)
            assert not reader.is_alive(), "a reader waits for ever"
        lease.revoke()

    def submit(self, lane: b.BoundedPipeline, lease: b.Lease) -> b.Generation:
        rng = self.rng
        prompt = [rng.randrange(3, 259) for _ in range(rng.choice([1, 5, 40, 200]))]
        bounds = rng.choice(
            [None, None, b.Bounds(total=rng.uniform(0, 0.2)), b.Bounds(queued=0.05), b.Bounds(first_token=1)]
        )
        several = rng.random() < 0.1 and (bounds is None or bounds.first_token is None)
        config: dict[str, Any] = {"num_beams": 2, "ignore_eos": True} if several else {}
        under = lease if lease.live and rng.random() < 0.3 else None
        with contextlib.suppress(b.LeaseExpired):
            return lane.submit(prompt, bounds=bounds, lease=under, max_new_tokens=rng.randrange(1, 150), **config)
        return lane.submit(prompt, max_new_tokens=3)

    def read(self, generation: b.Generation, way: float) -> None:
        """To the end, or not: by waiting, streaming, leaving or cancelling."""
        with contextlib.suppress(b.GenerationError), generation:
            if way < 0.4:
                generation.result()
            elif way < 0.7:
                list(generation)
            elif way < 0.85:
                next(iter(generation), None)
            else:
                generation.cancel()
        with contextlib.suppress(b.GenerationError):
            generation.result(REST)
        assert generation.finish_reason is not None
        self.ends[generation.finish_reason.value] += 1

    def kill(self, lane: b.BoundedPipeline) -> None:
        link = lane._driver.link
        if link is not None and link.pid is not None and lane.health().ready:
            self.kills += 1
            os.kill(link.pid, signal.SIGKILL)

    def rest(self, lane: b.BoundedPipeline) -> None:
        """Until nothing is inside and the engine is there."""
        until = time.monotonic() + REST
        while time.monotonic() < until:
            stats = lane.stats()
            if not (stats.waiting or stats.running or stats.stopping or stats.leases) and lane.health().ready:
                return
            time.sleep(0.01)
        raise AssertionError(f"not at rest within {REST:g} s: {lane.stats(sequences=True)}")

    def look(self, lane: b.BoundedPipeline, at: float) -> Sample:
        gc.collect()
        me, driver = psutil.Process(), lane._driver
        assert driver.link is not None
        governor = driver.governor
        return Sample(
            at_s=at,
            parent_mib=me.memory_info().rss / MIB,
            engine_mib=psutil.Process(driver.link.pid).memory_info().rss / MIB,
            descriptors=me.num_fds(),
            threads=threading.active_count(),
            rows=len(driver.flows) + len(driver.cells) + len(governor.sequences) + len(governor.stays),
            objects=len(gc.get_objects()) - len(self.samples),  # what this soak itself keeps
        )


def for_ever() -> b.RestartPolicy:
    import tenacity

    return b.RestartPolicy(wait=tenacity.wait_fixed(0.05), stop=tenacity.stop_never)


def grown(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """What is higher in the last quarter than in the second by more than it may: both medians."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = {}
    for name, most in MAY_GROW.items():
        before, after = (statistics.median(getattr(s, name) for s in part) for part in (early, late))
        if after - before > most:
            found[name] = (before, after)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--kill-every", type=float, default=0.0, help="seconds between two SIGKILLs of the engine; 0: none"
    )
    parser.add_argument("--json", help="write all samples there")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    soak = Soak(arguments.seed)
    soak.run(60 * arguments.minutes, arguments.kill_every)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(sample) for sample in soak.samples]))
    for sample in soak.samples[:: max(1, len(soak.samples) // 12)]:
        print(" ".join(f"{name}={value:.1f}" for name, value in asdict(sample).items()))
    print(f"{sum(soak.ends.values())} generations in {len(soak.samples)} waves: {dict(soak.ends)}; {soak.kills} kills")
    found = grown(soak.samples)
    print(f"grew: {found}" if found else "flat")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
