"""The state machine for downstream projects: what holds passes, what is planted is found, and its hooks are called."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import rule, run_state_machine_as_test

import boundedgen as b
from boundedgen._core._admission import Ledger
from boundedgen._core._deadlines import ReadyClock
from boundedgen._core._governor import Governor
from boundedgen._core._leases import Leases
from boundedgen._core._order import Order
from boundedgen._core._sequences import Sequence
from boundedgen._core._times import NEXT_TOKEN, Times
from boundedgen._core._watch import Watch
from boundedgen._flow import Flow
from boundedgen._serving import Serving
from boundedgen.testing import BoundedMachine, SimModel

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

QUICK = settings(
    max_examples=40,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class Counting(BoundedMachine):
    """Remembers what its runs came to."""

    ends: ClassVar[Counter[str]] = Counter()
    kills: ClassVar[Counter[str]] = Counter()
    states: ClassVar[Counter[str]] = Counter()
    simulated: ClassVar[list[float]] = []

    def check(self) -> None:
        self.states[self.simulation.pipeline.health().state.value] += 1

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "simulation"):
            stats = self.simulation.pipeline.stats()
            self.ends.update(stats.finished_total)
            self.kills.update(stats.kills_total)
            self.simulated.append(self.simulation.now - 1000)


ENDS = {
    "stop", "length", "cancelled", "deadline", "lease", "engine_lost", "cache_exhausted", "engine_failed", "shutdown",
}  # fmt: skip
KILLS = {"step", "boot", "died", "reclaim", "ack"}
STATES = {"starting", "ready", "recovering", "draining", "failed", "closed"}


def test_the_promises_hold_and_the_runs_come_to_everything(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    for round_ in range(30):
        run_state_machine_as_test(seed(round_)(Counting), settings=settings(QUICK, max_examples=10, derandomize=False))
        if (+Counting.ends).keys() >= ENDS and (+Counting.kills).keys() >= KILLS and Counting.states.keys() >= STATES:
            break
    else:
        pytest.fail(f"not all was met: {Counting.ends}, {Counting.kills}, {Counting.states}")
    with capsys.disabled():
        hours, took = sum(Counting.simulated) / 3600, time.perf_counter() - began
        print(f"\n{len(Counting.simulated)} runs, {hours:.1f} simulated hours, {+Counting.ends}: {took:.1f} s")


# --- bugs that are planted -------------------------------------------------------------------------------------------


def late_deadlines(patch: pytest.MonkeyPatch) -> None:
    found = Sequence.wall_at

    def late(self: Sequence) -> float | None:
        due = found(self)
        return None if due is None else due + 0.05

    patch.setattr(Sequence, "wall_at", late)


def tokens_twice(patch: pytest.MonkeyPatch) -> None:
    emit = Flow.emit

    def twice(self: Flow, effect: Any, now: float) -> None:
        emit(self, effect, now)
        self.token_ids.extend(effect.token_ids[:1] if len(self.token_ids) == 3 else ())

    patch.setattr(Flow, "emit", twice)


def capacity_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "fits", lambda *_: True)


def stops_that_are_not_sent(patch: pytest.MonkeyPatch) -> None:
    stop = Governor._stop

    def unsent(self: Governor, stay: Any, now: float) -> None:
        stop(self, stay, now)
        self.watch.taken("stop", stay.id)
        self._effects[:] = [effect for effect in self._effects if type(effect).__name__ != "Stop"]

    patch.setattr(Governor, "_stop", unsent)


def kills_of_sound_engines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watch, "step_budget", lambda _: 0.3)


def waiting_is_lost_with_the_engine(patch: pytest.MonkeyPatch) -> None:
    part = Governor._part

    def all_go(self: Governor, now: float) -> None:
        part(self, now)
        if not self.life.up and self.life.incarnation and self.life.facts is not None:
            self._settle_all(b.FinishReason.ENGINE_LOST, now)

    patch.setattr(Governor, "_part", all_go)


def the_last_comes_first(patch: pytest.MonkeyPatch) -> None:
    def last(self: Order) -> Sequence | None:
        return max(self._waiting.values(), key=lambda row: row.id, default=None)

    patch.setattr(Order, "head", last)


def leases_without_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "grace", lambda *_: None)


def leases_that_run_during_an_outage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadyClock, "stand", lambda *_: None)


def a_failed_lane_accepts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Serving, "refuse_unless_open", lambda _: None)


def a_cancel_that_waits(patch: pytest.MonkeyPatch) -> None:
    cancel = b.Generation.cancel

    def wait(self: b.Generation) -> bool:
        self._driver.join(0.01)
        return cancel(self)

    patch.setattr(b.Generation, "cancel", wait)


def ends_that_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    count = Governor._count_end

    def twice(self: Governor, sequence: Sequence, reason: str, bound: str, now: float) -> None:
        count(self, sequence, reason, bound, now)
        if reason == b.FinishReason.CANCELLED:
            count(self, sequence, reason, bound, now)

    patch.setattr(Governor, "_count_end", twice)


def times_that_are_taken_back(patch: pytest.MonkeyPatch) -> None:
    add = Times.add

    def less(self: Times, kind: int, seconds: float, times: int = 1) -> None:
        add(self, kind, seconds, -times if kind == NEXT_TOKEN and sum(self.rows[kind]) > 3 else times)

    patch.setattr(Times, "add", less)


def blocks_that_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "give_back", lambda *_: None)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    late_deadlines: "promise 1",
    tokens_twice: "promise 1",
    capacity_without_end: "promise 2",
    stops_that_are_not_sent: "promise 2",
    kills_of_sound_engines: "promise 3",
    waiting_is_lost_with_the_engine: "promise",
    the_last_comes_first: "promise 5",
    leases_without_grace: "promise 6",
    leases_that_run_during_an_outage: "promise 6",
    a_failed_lane_accepts: "promise|refuse",
    a_cancel_that_waits: "promise 9|a probe takes no longer|ended CANCELLED for no reason",  # which cancels, too
    ends_that_are_counted_twice: "promise 10",
    times_that_are_taken_back: "promise 10",
    blocks_that_are_not_given_back: "Failing test case",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=PLANTED[plant]):
        run_state_machine_as_test(BoundedMachine, settings=settings(QUICK, max_examples=300))


# --- what a subclass can do ------------------------------------------------------------------------------------------


class Served(BoundedMachine):
    """A server that answers each request twice, and counts."""

    fault_kinds = ()
    seen: ClassVar[Counter[str]] = Counter()

    def make_engine(self, draw: Any) -> SimModel:
        return SimModel(boot_s=0.5, running_max=2)

    def make_limits(self, draw: Any) -> b.Limits:
        return b.Limits()

    def begin(self) -> None:
        self.asked = 0
        self.seen["begun"] += 1

    def check(self) -> None:
        self.seen["checked"] += 1
        assert len(self.oracle.rows) >= self.asked

    def inject(self) -> None:
        """No faults here."""

    @rule()
    def serve(self) -> None:
        if self.ask([5, 6, 7], max_new_tokens=3) is not None:
            self.asked += 1


class Broken(Served):
    def check(self) -> None:
        super().check()
        assert self.asked < 1, "the server is broken"


def test_a_subclass_says_what_is_simulated_and_checks_its_own_server() -> None:
    run_state_machine_as_test(Served, settings=settings(QUICK, max_examples=5))
    assert Served.seen["begun"] == 5
    assert Served.seen["checked"] > 50


def test_a_failing_check_of_a_subclass_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="the server is broken"):
        run_state_machine_as_test(Broken, settings=settings(QUICK, max_examples=20))


TestBounded = BoundedMachine.TestCase
TestBounded.settings = settings(QUICK, max_examples=20)
