"""A signal handler raises, at whatever instant of a call: no place, share, lease or sequence stays behind."""

import dis
import gc
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from core.hand_engine import lane, until

import boundedgen as b

SEED = 20261129
SAMPLES = 400
MOST = 3 * SAMPLES


class Interrupt(BaseException):
    """What the handler raises."""


class At:
    """Raises at the nth instant at which Python looks for signals in boundedgen's code; counts them if `nth` is None.

    Those are: on entry of a function, after a call, and before a loop's next round.
    """

    def __init__(self, nth: int | None) -> None:
        self.seen = 0
        self._nth = nth

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Any:
        if "/boundedgen/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look()

    def _look(self) -> Callable[[FrameType, str, object], Any]:
        before = "RESUME"

        def look(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal before
            if event == "opcode":
                if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                    self.seen += 1
                    if self.seen == self._nth:
                        raise Interrupt
                before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            return look

        return look

    def run(self, call: Callable[[], object]) -> bool:
        """False: interrupted."""
        before = sys.gettrace()
        kept = None  # beyond the tracing: a generation that is dropped is cancelled, and that is not to be interrupted
        sys.settrace(self)
        try:
            kept = call()
        except Interrupt:
            return False
        finally:
            sys.settrace(before)
            del kept
        return True


CALLS: dict[str, Callable[[b.BoundedPipeline, b.Lease], object]] = {
    "submit": lambda lane, lease: lane.submit([5], max_new_tokens=3, owner="me"),
    "submit under a lease": lambda lane, lease: lane.submit("x", max_new_tokens=3, lease=lease),
    "submit what never fits": lambda lane, lease: refused(lambda: lane.submit([5] * 200, max_new_tokens=900)),
    "lease": lambda lane, lease: lane.lease("me", ttl=5),
    "renew": lambda lane, lease: lease.renew(),
    "generate_many": lambda lane, lease: lane._serving.submit_all(calls(3)),
}


def calls(number: int) -> Iterator[Callable[[], Any]]:
    from boundedgen._serving import calls_of

    return calls_of([[5]] * number, None, {"max_new_tokens": 3, "owner": "me"})


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(b.Rejected):
        call()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that came inside a __del__
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_instant_of_a_call_loses_nothing(name: str) -> None:
    limits = b.Limits(
        waiting_max=MOST, owner_max=MOST, leases_max=MOST, progress=1e6
    )  # none is refused for want of room
    with lane(limits=limits) as (pipeline, engine):
        lease = pipeline.lease("me", ttl=3000, max_sequences=MOST)
        whole = At(None)
        assert whole.run(lambda: CALLS[name](pipeline, lease))
        rng = random.Random(SEED)
        chosen = rng.sample(range(1, whole.seen), min(SAMPLES, whole.seen - 1))
        cut = sum(not At(nth).run(lambda: CALLS[name](pipeline, lease)) for nth in chosen)
        assert cut > 0.3 * len(chosen)  # not each call looks for signals as often as the first
        gc.collect()
        engine.clock.skip(10)  # leases that nobody holds
        door, driver = pipeline._serving._admitting._door, pipeline._driver
        until(lambda: not driver.governor.sequences and not driver.flows and len(driver.cells) == 1)
        homes = [door._places, *door._owners.values(), lease._places]
        assert [len(home) for home in homes if home is not None] == [MOST] * len(homes)
        assert len(pipeline._leasing._left) == MOST - 1
        stats = pipeline.stats()
        assert stats.submitted_total == sum(stats.finished_total.values())
