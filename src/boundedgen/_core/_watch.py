"""Is the engine doing what it was told, in time? Every budget of design §3.3, and what is judged by which evidence.

Time in which the driver did not run counts against nobody (`woke`), so that a suspended machine, or a parent that was
stopped, is not taken for a hung engine. What was known before stays known: a server that stalls now and then would
never find a hang otherwise.
"""

from collections.abc import Collection, Iterator
from operator import itemgetter

from attrs import Factory, define, field

from boundedgen._bounds import Limits
from boundedgen._core._encoding import EncodePace
from boundedgen._core._events import Cause, Progress, Pulse
from boundedgen._core._pace import Pace

ACK_STEPS = 4  #: whole steps begun since a command was sent must have been reported, before its ack is overdue
LATE = 0.5  #: seconds by which a wake-up may be late before the driver is said to have stood still
_NO_RETURN = "step {} ({} tokens) did not return within {:.3g} s"
_NO_IMAGES = "images of {} pixels were not encoded within {:.3g} s"
_NO_PROGRESS = "steps return, but nothing was scheduled and nothing released for {:g} s"
_Due = tuple[float, Cause, str, tuple[object, ...]]  #: when, what, and how to say it
PARTING = 1.0  #: seconds between the end of its reports and its own, for an engine that is dying anyway
LOOK = 1.0  #: while there is work, the driver looks at least this often, so that it can tell that it was stopped


def _outside(pulse: Pulse, now: float) -> float:
    """A clock that stands still inside of steps, and while images are encoded."""
    inside = now - pulse.begun_at if pulse.in_step else 0.0
    if pulse.encoding:
        inside = now - pulse.encode_begun_at
    return now - pulse.inside_s - max(0.0, inside)


@define
class _Order:
    """A command that the engine has not acknowledged."""

    at: float
    outside: float  # reading of the outside clock
    steps: int | None = None  # begun when it was sent, at most: looked up in the wake that follows


@define
class _Reclaim:
    """A stop that the engine has taken; its release is not proved yet."""

    at: float
    outside: float
    steps: int


@define
class _Standstills:
    """Of the driver, as readings of one clock. What began before them, or in them, is given their time on top."""

    _spans: list[tuple[float, float]] = field(factory=list)

    def add(self, began: float, ended: float, oldest: float) -> None:
        """`oldest`: the beginning of all that is still judged."""
        self._spans = [span for span in self._spans if span[1] > oldest]
        self._spans.append((began, ended))

    def forget(self) -> None:
        self._spans.clear()

    def since(self, at: float) -> float:
        """`at`, moved by all the time in which the driver stood still after it."""
        if not self._spans:
            return at
        return at + sum([ended - max(at, began) for began, ended in self._spans if ended > at])


@define
class Watch:
    limits: Limits
    pace: Pace = Factory(lambda self: Pace(self.limits), takes_self=True)
    encoding: EncodePace = Factory(lambda self: EncodePace(self.limits), takes_self=True)
    pulse: Pulse = field(factory=Pulse)
    steps: int = 0  #: steps ended, as reported
    reported_end: float = float("-inf")  #: of the last of them
    boot_at: float | None = None
    progress_at: float | None = None  #: None while the engine holds nothing
    moved_at: float = float("-inf")  #: the last progress there was, whatever the engine holds now
    _woke_at: float = float("-inf")
    _cut_at: float | None = None  # its reports have ended
    _stood: _Standstills = field(factory=_Standstills)
    _stood_outside: _Standstills = field(factory=_Standstills)
    _earlier: Pulse = field(factory=Pulse)  # of the look before the last one
    _orders: dict[tuple[str, int], _Order] = field(factory=dict)
    _reclaims: dict[int, _Reclaim] = field(factory=dict)
    _ready: bool = False

    def boot(self, now: float) -> None:
        """A new incarnation has been started."""
        self.over()
        self.boot_at, self.pulse, self._earlier, self.steps = now, Pulse(), Pulse(), 0
        self.pace.boot()
        self.encoding.boot()

    def ready(self) -> None:
        self.boot_at, self._ready = None, True

    def over(self) -> None:
        """The incarnation is being killed, or is gone: nothing is expected of it any more."""
        self.boot_at, self._ready, self.progress_at, self._cut_at = None, False, None, None
        self._stood.forget()
        self._stood_outside.forget()
        self._orders.clear()
        self._reclaims.clear()

    # --- what happened -------------------------------------------------------------------------------------------

    def woke(self, since: float, now: float) -> None:
        """The driver did not run between its last wake, at `since`, and now. Told after this wake's first look."""
        commands: list[_Order | _Reclaim] = [*self._orders.values(), *self._reclaims.values()]
        begun_at = self.pulse.begun_at if self.pulse.in_step else None
        if self.pulse.encoding:
            begun_at = self.pulse.encode_begun_at
        known = [self.boot_at, self._cut_at, self.progress_at, begun_at, *(one.at for one in commands)]
        self._stood.add(since, now, min((at for at in known if at is not None), default=now))
        outside, earlier = _outside(self.pulse, now), _outside(self._earlier, since)
        self._stood_outside.add(earlier, outside, min((one.outside for one in commands), default=outside))
        self._woke_at = now

    def looked(self, pulse: Pulse) -> None:
        """At the stamps. What was ordered in an earlier wake is sent: steps that begin from here on come after it."""
        self._earlier, self.pulse = self.pulse, pulse
        if pulse.encodes_ended > self._earlier.encodes_ended and not pulse.encoding:
            began = pulse.encode_begun_at
            self.encoding.completed(pulse.pixels, pulse.encode_ended_at - began if began > self._woke_at else None)
        for order in self._orders.values():
            order.steps = pulse.steps_begun if order.steps is None else order.steps

    def ordered(self, what: str, stay: int, now: float) -> None:
        self._orders[what, stay] = _Order(now, _outside(self.pulse, now))

    def under_way(self, commands: Collection[tuple[str, int]], now: float) -> None:
        """They did not fit into the pipe at once, and it takes them bit by bit: each bit is a beginning."""
        for command in commands:
            if command in self._orders:
                self.ordered(*command, now)

    def cut(self, now: float) -> None:
        """Its reports have ended. It is leaving, or will never be heard again."""
        self._cut_at = now

    def taken(self, what: str, stay: int) -> None:
        self._orders.pop((what, stay), None)

    def reclaiming(self, stay: int, steps: int, now: float) -> None:
        """The engine took the stop after `steps` steps had ended, or ended the stay itself in the step before."""
        self._reclaims.setdefault(stay, _Reclaim(now, _outside(self.pulse, now), steps))

    def gone(self, stay: int) -> None:
        self._reclaims.pop(stay, None)
        for what in ("admit", "stop"):
            self._orders.pop((what, stay), None)

    def reported(self, report: Progress, now: float) -> None:
        if report.steps == self.steps + 1:  # of merged ones it is not known how long each took
            took = report.ended - report.began if report.began > self._woke_at else None
            self.pace.completed(report.tokens, report.attention, took)
        self.steps, self.reported_end = report.steps, report.ended
        if report.scheduled or report.taken or report.released or report.finished:
            self.moved_at = now
            self.progress_at = None if self.progress_at is None else now

    def holding(self, anything: bool, now: float) -> None:
        """Progress is expected exactly while the engine holds something."""
        if not anything:
            self.progress_at = None
        elif self.progress_at is None:
            self.progress_at = now

    # --- what is overdue -----------------------------------------------------------------------------------------

    def step_budget(self) -> float:
        """Seconds that the step in flight may take."""
        return self.pace.budget(self.pulse)

    def _dues(self, now: float) -> list[_Due]:
        """Every instant at which something becomes overdue if nothing changes until then."""
        limits, pulse, since = self.limits, self.pulse, self._stood.since
        found: list[_Due] = []
        if self.boot_at is not None:
            at = since(self.boot_at) + limits.boot
            found.append((at, Cause.BOOT, "not ready within {:g} s", (limits.boot,)))
        if self._cut_at is not None:
            at = since(self._cut_at) + PARTING
            found.append((at, Cause.WIRE, "it lives, and its reports have ended", ()))
        if not self._ready:
            return found
        commands = self._orders or self._reclaims
        if pulse.in_step:
            budget = self.step_budget()
            step = (pulse.steps_begun, pulse.scheduled, budget)
            found.append((since(pulse.begun_at) + budget, Cause.STEP, _NO_RETURN, step))
        elif pulse.encoding:
            budget = self.encoding.budget(pulse)
            found.append((since(pulse.encode_begun_at) + budget, Cause.STEP, _NO_IMAGES, (pulse.pixels, budget)))
        else:
            found += self._outside_dues(now) if commands else ()
            if self.progress_at is not None:
                # The report of a step that just ended may still be on its way: the step itself counts as progress here.
                at = since(max(self.progress_at, pulse.ended_at, pulse.encode_ended_at)) + limits.progress
                found.append((at, Cause.PROGRESS, "no step for {:g} s with work in the engine", (limits.progress,)))
        found += self._stepping_dues() if commands else ()
        if self.progress_at is not None and self.reported_end - since(self.progress_at) > limits.progress:
            at = since(self.progress_at) + limits.progress
            found.append((at, Cause.PROGRESS, _NO_PROGRESS, (limits.progress,)))
        return found

    def _outside_dues(self, now: float) -> Iterator[_Due]:
        """Of commands, by time outside of steps: the engine is between steps, or does not step at all."""
        limits, outside, since = self.limits, _outside(self.pulse, now), self._stood_outside.since
        for (what, stay), order in self._orders.items():
            at = now - (outside - since(order.outside)) + limits.ack  # with the engine outside of steps from now on
            yield at, Cause.ACK, "{} of stay {} not taken within {:g} s outside of steps", (what, stay, limits.ack)
        for stay, reclaim in self._reclaims.items():
            at = now - (outside - since(reclaim.outside)) + limits.reclaim
            yield at, Cause.RECLAIM, "stay {} not released within {:g} s outside of steps", (stay, limits.reclaim)

    def _stepping_dues(self) -> Iterator[_Due]:
        """Of commands, by steps that returned. The step in flight is judged by its own budget only."""
        limits, since = self.limits, self._stood.since
        for (what, stay), order in self._orders.items():
            if order.steps is not None and self.steps - order.steps >= ACK_STEPS:
                at = since(order.at) + limits.ack
                yield at, Cause.ACK, "{} of stay {} not taken in {} steps", (what, stay, ACK_STEPS)
        for stay, reclaim in self._reclaims.items():
            if self.steps - reclaim.steps >= limits.reclaim_steps:
                at = since(reclaim.at)
                yield at, Cause.RECLAIM, "stay {} not released in {} steps", (stay, limits.reclaim_steps)

    def verdict(self, now: float) -> tuple[Cause, str] | None:
        """What is overdue, the earliest first; None: all is well."""
        dues = self._dues(now)
        if not dues:
            return None
        at, cause, detail, values = min(dues, key=itemgetter(0))
        return (cause, detail.format(*values)) if at <= now else None

    def next(self, now: float) -> float | None:
        """When to look again; at most LOOK seconds ahead while there is work."""
        dues = self._dues(now)
        if not dues:
            return None
        return max(now, min(min(dues, key=itemgetter(0))[0], now + LOOK))
