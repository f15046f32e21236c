"""100,000 that wait, each with a deadline and a lease: what one costs the whole core, and what stays of them; and what
a step costs it. Times depend on the machine, calls of functions do not."""

import gc
import random
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

from core.governed import Governed, facts

from boundedgen import Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen._core._leases import Lease
from boundedgen._core._recording import Recorded
from boundedgen._core._sequences import Submission

MANY = 100_000
MOST_US = 20.0  #: at the median, of each; on a quiet machine
MARGIN = 8.0  #: this is none, and in slow hours takes 50
TTL = 1000.0
AFTER_A_STEP = ("expire", "admit")


class Crowd:
    """One slot, and many who wait for it."""

    def __init__(self) -> None:
        lane = Governed(Limits(waiting_max=MANY, leases_max=MANY, ended_kept=0), ready=False)
        lane.ready(facts(ev.PoolFacts("kv", 1000, 4), running_max=1))
        self.governor, self.now = lane.governor, lane.now
        self._steps = 0
        self._inside: list[int] = []  # stays

    def turn(self) -> None:
        """The end of every wake."""
        self.governor.tick(self.now)
        self._inside += [effect.stay for effect in self.governor.poll() if isinstance(effect, ev.Admit)]
        self.governor.next_wakeup()

    def asked(self, number: int, total: float) -> Submission:
        """By a caller, in his thread; under a lease that is granted."""
        owner, lease = f"owner-{number % 1000}", f"lease-{number}"
        self.governor.grant(Lease(lease, owner, TTL), self.now)
        bounds = Bounds(total=total)
        return Submission(number, 4, 8, bounds=bounds, submitted_at=self.now, owner=owner, lease=lease)

    def submit(self, asked: Submission) -> None:
        self.governor.submit(asked, self.now)
        self.turn()

    def cancel(self, number: int) -> None:
        self.governor.cancel(number, self.now)
        self.turn()

    def renew(self, number: int) -> None:
        self.governor.renew(f"lease-{number}", self.now, self.now)
        self.turn()

    def pass_until(self, instant: float) -> None:
        self.now = max(self.now, instant)
        self.turn()

    def step(self, **news: object) -> None:
        """A step of the engine, and what it reports."""
        self._steps += 1
        self.governor.pulse(ev.Pulse(self._steps, self._steps, self.now, self.now), self.now)
        report = ev.Progress(1, self._steps, self.now, self.now, 1, 0.0, None, **news)  # type: ignore[arg-type]
        self.governor.receive(report, self.now)

    def make_room(self) -> None:
        stay = self._inside.pop()
        outputs, finished = (ev.Output(stay, (1,)),), (ev.Finish(stay, "length"),)
        self.step(taken=(stay,), outputs=outputs, finished=finished, released=(ev.Release(stay, 0, 0.0, 0),))

    def let_go(self) -> None:
        """Of what was stopped inside."""
        stays, self._inside = self._inside, []
        self.step(stopping=tuple(stays), released=tuple(ev.Release(stay, 1, 0.0, 0) for stay in stays))
        self.turn()


def median_us(act: Callable[[Any], None], over: Iterable[Any], before: Callable[[], None] = lambda: None) -> float:
    """Of the quietest tenth of the time: what others do on the machine is not asked."""
    taken = []
    for each in over:
        before()
        began = time.perf_counter()
        act(each)
        taken.append(time.perf_counter() - began)
    tenth = -(-len(taken) // 10)
    return 1e6 * min(statistics.median(taken[n : n + tenth]) for n in range(0, len(taken), tenth))


def figures(crowd: Crowd, over: list[int]) -> dict[str, float]:
    """Microseconds that one of each kind adds to a wake, and of a wake; at the end nobody waits.

    What comes with a step is beside a wake after a step: the step's own code has taken the place of a wake's in the
    processor's cache by then, and a wake alone takes a tenth longer.
    """
    rng, began = random.Random(100), crowd.now
    crowd.submit(crowd.asked(-over[0], 1e6))  # holds the slot meanwhile
    crowd.step(taken=tuple(crowd._inside))
    totals = {number: rng.uniform(500.0, 900.0) for number in over}
    found = {"submit": median_us(crowd.submit, (crowd.asked(number, totals[number]) for number in over))}
    some = rng.sample(over, len(over) // 10)
    found["renew"] = median_us(crowd.renew, some)
    found["cancel"] = median_us(crowd.cancel, some)
    others = sorted(totals.keys() - set(some), key=totals.__getitem__)[: len(some)]
    found["expire"] = median_us(lambda number: crowd.pass_until(began + totals[number]), others, crowd.step)
    found["admit"] = median_us(lambda _: crowd.turn(), some, crowd.make_room)
    wake, woken = (median_us(lambda _: crowd.turn(), some, before) for before in (lambda: None, crowd.step))
    crowd.pass_until(began + TTL + 1.0)  # the leases of all others end
    crowd.let_go()
    assert not crowd.governor.leases
    assert not crowd.governor.sequences
    added = {name: us - (woken if name in AFTER_A_STEP else wake) for name, us in found.items()}
    return added | {"wake": wake, "after a step": woken}


def footprint(thing: object) -> int:
    """Bytes of all that `thing` holds."""
    seen, found, total = set(), [thing], 0
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        found += gc.get_referents(one)
    return total


def test_100_000_with_deadlines_and_leases_cost_the_core_what_one_does_and_leave_no_memory_behind() -> None:
    crowd = Crowd()
    figures(crowd, list(range(1, 2000)))
    before = footprint(crowd.governor)
    found = figures(crowd, list(range(MANY, 2 * MANY)))
    print(", ".join(f"{name} {us:.1f} us" for name, us in found.items()))
    assert footprint(crowd.governor) < before + (1 << 14)
    assert max(found.values()) < MARGIN * MOST_US


# --- calls -------------------------------------------------------------------------------------------------------


def calls(act: Callable[[], object]) -> int:
    """Of Python functions."""
    found = 0

    def count(frame: FrameType, event: str, given: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found - 1


def test_one_of_a_crowd_that_waits_costs_few_calls() -> None:
    """Medians: now and then a heap is made anew."""
    crowd = Crowd()
    crowd.submit(crowd.asked(-1, 1e6))
    crowd.step(taken=tuple(crowd._inside))
    asked = [crowd.asked(number, 499.0 + number) for number in range(1, 501)]
    wake = calls(crowd.turn)
    found = {"wake": wake, "submit": statistics.median(calls(partial(crowd.submit, one)) for one in asked) - wake}
    found["cancel"] = statistics.median(calls(partial(crowd.cancel, number)) for number in range(10, 20)) - wake
    crowd.step()
    found["expire"] = calls(partial(crowd.pass_until, crowd.now + 500.0)) - wake
    crowd.make_room()
    found["admit"] = calls(crowd.turn) - wake
    print(found)
    most = {"wake": 72, "submit": 55, "cancel": 35, "expire": 65, "admit": 80}
    assert {name: n for name, n in found.items() if n > most[name]} == {}


class Decoding:
    """So many inside, each of which has a token a step. The wakes are the driver's."""

    def __init__(self, many: int) -> None:
        self.governor, self.now, self._steps = Recorded(Limits(), keep=1000), 100.0, 0
        self.governor.start(self.now)
        self.wake(ev.Ready(1, facts(ev.PoolFacts("kv", 10_000, 4), running_max=many)))
        for number in range(1, many + 1):
            bounds = Bounds(total=600)
            self.governor.submit(Submission(number, 4, 1000, bounds=bounds, submitted_at=self.now), self.now)
        self._stays = [effect.stay for effect in self.wake() if isinstance(effect, ev.Admit)]
        assert len(self._stays) == many
        self.step(taken=tuple(self._stays))

    def step(self, **news: Any) -> None:
        self._steps += 1
        self.now += 0.01
        self.governor.pulse(ev.Pulse(self._steps + 1, self._steps, self.now, self.now, 0.01 * self._steps), self.now)
        self.wake(ev.Progress(1, self._steps, self.now - 0.01, self.now, 1, 0.0, None, **news))

    def token(self) -> None:
        self.step(outputs=tuple(ev.Output(stay, (7,)) for stay in self._stays))

    def wake(self, *reports: ev.Report) -> list[ev.Effect]:
        for report in reports:
            self.governor.receive(report, self.now)
        self.governor.leases_due(self.now)
        self.governor.tick(self.now)
        effects = self.governor.poll() + self.governor.poll()
        self.governor.next_wakeup()
        self.governor.census()
        self.governor.reason()
        return effects


def test_a_step_costs_few_calls_and_a_token_hardly_any() -> None:
    one, many = Decoding(1), Decoding(16)
    for lane in (one, many):
        lane.token()
    few, more = calls(one.token), calls(many.token)
    print(few, more)
    assert few < 140
    assert (more - few) / 15 <= 5  # that make a report and an effect, and those of this test
