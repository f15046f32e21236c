"""What probes are answered while a real engine is killed or stopped, and replaced."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from process.lanes import engine_pid, kill, plain_lane, until

from boundedgen import BoundedPipeline, Limits
from boundedgen.endpoints import liveness, readiness, startup

pytestmark = pytest.mark.timeout(60)

BUDGET = 1.0
NIMBLE = Limits(step=BUDGET, step_max=2.0, first_step=1.0, new_shape=1.0, ack=BUDGET, reclaim=BUDGET, progress=BUDGET)
EVERY_S = 0.005


@contextlib.contextmanager
def probed(lane: BoundedPipeline) -> Iterator[list[tuple[int, int, int]]]:
    """Start-up, liveness and readiness, as an orchestrator with very short periods is answered."""
    seen: list[tuple[int, int, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            health = lane.health()
            seen.append((startup(health).status, liveness(health).status, readiness(health, lane.stats()).status))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(10)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_an_orchestrator_leaves_alone_a_lane_whose_engine_is_replaced(how: signal.Signals) -> None:
    with plain_lane(limits=NIMBLE) as lane, probed(lane) as seen:
        lane.generate([5], max_new_tokens=3, ignore_eos=True)
        generation = lane.submit([5, 6, 7], max_new_tokens=1500, ignore_eos=True)
        until(lambda: len(generation.partial.token_ids) >= 4)
        kill(engine_pid(lane), how)
        until(lambda: not lane.health().ready, what="that it is noticed")
        until(lambda: lane.stats().restarts_total == 1 and lane.health().ready, what="another engine")
        time.sleep(10 * EVERY_S)
        seen = seen[:]  # of the closing, nothing
    assert {(started, live) for started, live, _ in seen} == {(200, 200)}
    changes = [ready for n, (_, _, ready) in enumerate(seen) if n == 0 or seen[n - 1][2] != ready]
    assert changes[0] == changes[-1] == 200
    assert 503 in changes, "work was sent to a lane without an engine"
