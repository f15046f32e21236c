"""An owner of few requests beside another's burst of 1,000, on the real engine."""

import pytest
from genai.lanes import FULL, ids, lane

import boundedgen as bg

SLOTS = 8
NEW = 120


@pytest.mark.slow
def test_an_owner_of_few_requests_beside_a_burst_of_1000_waits_for_what_is_inside_and_one_turn() -> None:
    """One after the other, of a different phase of those inside each; the last comes when the burst is still there.

    It is admitted after at most `t + t / slots` (docs/promises.md), and two steps in which its word is on its way.
    """
    scheduler = {"num_kv_blocks": SLOTS * 5 + 1}
    limits = bg.Limits(running_max=SLOTS, waiting_max=2000)
    with lane(scheduler=scheduler, limits=limits, admission=bg.Admission(margin=None)) as pipeline:
        burst = [pipeline.submit(ids(32, n), owner="burst", max_new_tokens=NEW, **FULL) for n in range(1000)]
        single = []
        for n in range(30):
            burst[n * SLOTS // 4].result(30)
            single.append(pipeline.submit(ids(32, n), owner="single", max_new_tokens=NEW, **FULL).result(30))
        waiting = pipeline.stats().waiting
        served = [g.result(0) for g in burst if g.finish_reason is not None]
        for generation in burst:
            generation.cancel()
    inside = max(c.total_s - (c.queued_s or 0.0) for c in (*served, *single))
    waits = sorted(c.queued_s or 0.0 for c in single)
    print(f"\n{len(served)} of the burst; at most {inside:.2f} s inside; waits {waits[0]:.3f} to {waits[-1]:.3f} s")
    assert waiting > 100, "the burst is still there"
    assert waits[-1] <= inside + inside / SLOTS + 0.1
    assert len(served) > 100, "it is served, too"
