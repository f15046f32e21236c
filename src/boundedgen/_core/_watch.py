"""Is the engine doing what it was told, in time? Every budget of design §3.3, and what is judged by which evidence.

Evidence is judged only if it was gathered after the driver woke up: `woke` moves the beginning of every clock to now,
so that a suspended machine, or a parent that was stopped, is not taken for a hung engine.
"""

from collections.abc import Iterator

from attrs import Factory, define, field

from boundedgen._bounds import Limits
from boundedgen._core._events import Cause, Progress, Pulse
from boundedgen._core._pace import Pace

ACK_STEPS = 4  #: whole steps begun since a command was sent must have been reported, before its ack is overdue
LATE = 0.5  #: seconds by which a wake-up may be late before older evidence is void
_NO_RETURN = "step {} ({} tokens) did not return within {:.3g} s"
_NO_PROGRESS = "steps return, but nothing was scheduled and nothing released for {:g} s"
_Due = tuple[float, Cause, str, tuple[object, ...]]  #: when, what, and how to say it
LOOK = 1.0  #: while there is work, the driver looks at least this often, so that it can tell that it was stopped


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
class Watch:
    limits: Limits
    pace: Pace = Factory(lambda self: Pace(self.limits), takes_self=True)
    pulse: Pulse = field(factory=Pulse)
    steps: int = 0  #: steps ended, as reported
    reported_end: float = float("-inf")  #: of the last of them
    boot_at: float | None = None
    progress_at: float | None = None  #: None while the engine holds nothing
    moved_at: float = float("-inf")  #: the last progress there was, whatever the engine holds now
    _woke_at: float = float("-inf")
    _woke_outside: float = float("-inf")
    _orders: dict[tuple[str, int], _Order] = field(factory=dict)
    _reclaims: dict[int, _Reclaim] = field(factory=dict)
    _ready: bool = False

    def boot(self, now: float) -> None:
        """A new incarnation has been started."""
        self.over()
        self.boot_at, self.pulse, self.steps = now, Pulse(), 0
        self.pace.boot()

    def ready(self) -> None:
        self.boot_at, self._ready = None, True

    def over(self) -> None:
        """The incarnation is being killed, or is gone: nothing is expected of it any more."""
        self.boot_at, self._ready, self.progress_at = None, False, None
        self._orders.clear()
        self._reclaims.clear()

    # --- what happened -------------------------------------------------------------------------------------------

    def woke(self, now: float) -> None:
        """The driver did not run for a while; what it reads from now on is fresh, what it knew is not."""
        self._woke_at, self._woke_outside = now, self._outside(now)

    def looked(self, pulse: Pulse) -> None:
        """At the stamps. What was ordered in an earlier wake is sent: steps that begin from here on come after it."""
        self.pulse = pulse
        for order in self._orders.values():
            order.steps = pulse.steps_begun if order.steps is None else order.steps

    def ordered(self, what: str, stay: int, now: float) -> None:
        self._orders[what, stay] = _Order(now, self._outside(now))

    def taken(self, what: str, stay: int) -> None:
        self._orders.pop((what, stay), None)

    def reclaiming(self, stay: int, steps: int, now: float) -> None:
        """The engine took the stop after `steps` steps had ended, or ended the stay itself in the step before."""
        self._reclaims.setdefault(stay, _Reclaim(now, self._outside(now), steps))

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

    def _outside(self, now: float) -> float:
        """A clock that stands still inside of steps."""
        inside = now - self.pulse.begun_at if self.pulse.in_step else 0.0
        return now - self.pulse.inside_s - max(0.0, inside)

    def step_budget(self) -> float:
        """Seconds that the step in flight may take."""
        return self.pace.budget(self.pulse)

    def _since(self, at: float) -> float:
        return max(at, self._woke_at)

    def _since_outside(self, reading: float, now: float) -> float:
        """The instant at which, with the engine outside of steps from now on, the clock began at `reading`."""
        return now - (self._outside(now) - max(reading, self._woke_outside))

    def _dues(self, now: float) -> Iterator[_Due]:
        """Every instant at which something becomes overdue if nothing changes until then."""
        limits, pulse = self.limits, self.pulse
        if self.boot_at is not None:
            yield self._since(self.boot_at) + limits.boot, Cause.BOOT, "not ready within {:g} s", (limits.boot,)
        if not self._ready:
            return
        if pulse.in_step:
            budget = self.step_budget()
            step = (pulse.steps_begun, pulse.scheduled, budget)
            yield self._since(pulse.begun_at) + budget, Cause.STEP, _NO_RETURN, step
        else:
            yield from self._outside_dues(now)
        yield from self._stepping_dues(now)

    def _outside_dues(self, now: float) -> Iterator[_Due]:
        """Overdue by time outside of steps: the engine is between steps, or does not step at all."""
        limits = self.limits
        for (what, stay), order in self._orders.items():
            at = self._since_outside(order.outside, now) + limits.ack
            yield at, Cause.ACK, "{} of stay {} not taken within {:g} s outside of steps", (what, stay, limits.ack)
        for stay, reclaim in self._reclaims.items():
            at = self._since_outside(reclaim.outside, now) + limits.reclaim
            yield at, Cause.RECLAIM, "stay {} not released within {:g} s outside of steps", (stay, limits.reclaim)
        if self.progress_at is not None:
            # The report of a step that just ended may still be on its way, so the step itself counts as progress here.
            at = self._since(max(self.progress_at, self.pulse.ended_at)) + limits.progress
            yield at, Cause.PROGRESS, "no step for {:g} s with work in the engine", (limits.progress,)

    def _stepping_dues(self, now: float) -> Iterator[_Due]:
        """Overdue by steps that returned. The step in flight is judged by its own budget only."""
        limits = self.limits
        for (what, stay), order in self._orders.items():
            if order.steps is not None and self.steps - order.steps >= ACK_STEPS:
                at = self._since(order.at) + limits.ack
                yield at, Cause.ACK, "{} of stay {} not taken in {} steps", (what, stay, ACK_STEPS)
        for stay, reclaim in self._reclaims.items():
            if self.steps - reclaim.steps >= limits.reclaim_steps:
                at = self._since(reclaim.at)
                yield at, Cause.RECLAIM, "stay {} not released in {} steps", (stay, limits.reclaim_steps)
        if self.progress_at is not None and self.reported_end - self._since(self.progress_at) > limits.progress:
            yield self._since(self.progress_at) + limits.progress, Cause.PROGRESS, _NO_PROGRESS, (limits.progress,)

    def verdict(self, now: float) -> tuple[Cause, str] | None:
        """What is overdue, the earliest first; None: all is well."""
        overdue = [due for due in self._dues(now) if due[0] <= now]
        if not overdue:
            return None
        _, cause, detail, values = min(overdue, key=lambda due: due[0])
        return cause, detail.format(*values)

    def next(self, now: float) -> float | None:
        """When to look again; at most LOOK seconds ahead while there is work."""
        earliest = min([due[0] for due in self._dues(now)], default=None)
        if earliest is None:
            return None
        return max(now, min(earliest, now + LOOK))
