"""A thousand generations whose consumers leave in every way that Python allows."""

import gc
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from genai.lanes import F32, PLAIN, at_rest, lane
from genai.leaving import WAYS, Visit
from genai.witness import Stalls, Ticks, Witness, percentile, witness

import boundedgen as bg

SEED = 20261129
GENERATIONS = 1000
CONSUMERS = 16
SLACK_S = 0.1
#: Ends that a visitor may meet; everything else is a failure of the test.
EXPECTED = (bg.DeadlineExceeded, bg.LeaseLost, bg.GenerationCancelled, bg.LeaseExpired)


def _visit(pipeline: bg.BoundedPipeline, number: int) -> str:
    leave: Callable[[Visit], None] = WAYS[number % len(WAYS)]
    try:
        leave(Visit(pipeline, SEED + number))
    except EXPECTED as error:
        return type(error).__name__
    except StopIteration:  # a stop string ended it before its first chunk
        return "empty"
    return "left"


def _run(pipeline: bg.BoundedPipeline) -> Counter[str]:
    with ThreadPoolExecutor(CONSUMERS, thread_name_prefix="consumer") as consumers:
        ends = Counter(consumers.map(lambda number: _visit(pipeline, number), range(GENERATIONS)))
    gc.collect()
    return ends


def _print(seen: Witness, ends: Counter[str], late: list[float], stalls: Stalls, ticks: Ticks, took: float) -> None:
    reasons = Counter(effects[0].reason for effects in seen.settled.values())
    steps = Counter(p.steps for proofs in seen.proofs.values() for p in proofs if p.proof != "never_held")
    print(f"\nseed {SEED}: {len(seen.settled)} generations in {took:.1f} s; {dict(reasons)}; consumers: {dict(ends)}")
    print(f"steps from stop to proof of release: {dict(sorted(steps.items()))}")
    p50, p99, p999 = (f"{percentile(late, part) * 1e3:.1f}" for part in (0.5, 0.99, 0.999))
    print(f"answered after the bound: p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, max {max(late) * 1e3:.1f} ms")
    print(f"at most, the machine stood still for {stalls.longest_s * 1e3:.1f} ms, ", end="")
    print(f"and a thread of this process waited {ticks.longest_s * 1e3:.1f} ms for the interpreter")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings(r"ignore:Exception in thread .*\(die\):pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thousand_generations_are_each_answered_once_in_time_and_proved_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = {"num_kv_blocks": 300, "max_num_batched_tokens": 1024}
    with witness(monkeypatch) as seen, lane(PLAIN, scheduler, properties=F32, restarts=0) as pipeline:
        gc.freeze()  # a full collection of all that pytest has imported takes as long as the slack
        began = time.monotonic()
        with Stalls() as stalls, Ticks() as ticks:
            ends = _run(pipeline)
            stats = at_rest(pipeline)
        took = time.monotonic() - began
        gc.unfreeze()
    lateness = seen.lateness()
    _print(seen, ends, [late for _, late in lateness.values()], stalls, ticks, took)
    refused = stats.rejected_total.get("LeaseExpired", 0) + ends["LeaseExpired"]
    assert stats.submitted_total + refused == GENERATIONS
    assert len(seen.settled) == stats.submitted_total
    assert {len(effects) for effects in seen.settled.values()} == {1}, "settled more than once"
    assert not seen.emitted_late, "something was emitted after the end"
    assert seen.proofs.keys() == seen.settled.keys(), "without a proof of release"
    assert {len(proofs) for proofs in seen.proofs.values()} == {1}
    assert {p.proof for proofs in seen.proofs.values() for p in proofs} <= {"perf_metrics", "never_held"}
    assert max(p.steps for proofs in seen.proofs.values() for p in proofs) <= 2
    assert stats.reclaim.steps_max <= 2
    # What the machine did not run, and the time in which consumers had the interpreter, is not the driver's.
    own = [late - max(stalls.within(due, due + late), ticks.within(due, due + late)) for due, late in lateness.values()]
    assert percentile(own, 0.999) <= SLACK_S
    assert sum(late > 0 for _, late in lateness.values()) > GENERATIONS // 50, "hardly any bound was ever reached"
