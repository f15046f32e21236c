"""The governor: the only place where sequences, stays, leases and the engine change. Pure; time is passed in.

Inputs are the methods; every one takes `now`. What has to happen in the world comes out of `poll()` as effects.
The order within a wake is the driver's: `pulse`, all reports, all commands, `tick`, `poll`. That order decides who
wins a tie: finish > cancel > lease > earliest deadline > engine lost; and expiry comes before admission.
"""

from collections.abc import Collection

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen._core._deadlines import earliest
from boundedgen._core._idling import Idling
from boundedgen._core._leases import Lease
from boundedgen._core._life import Death
from boundedgen._core._phases import EnginePhase
from boundedgen._core._reporting import Reporting
from boundedgen._core._sequences import Sequence, Submission
from boundedgen._core._switch import Switch
from boundedgen._core._watch import LATE
from boundedgen._errors import FinishReason as Why

_DEFAULT = Admission()


class Governor(Reporting):
    """See the module's docstring.

    `forget_after`: seconds of serving after which failed incarnations are forgotten.
    """

    def __init__(self, limits: Limits, admission: Admission = _DEFAULT, *, forget_after: float = 60.0) -> None:
        super().__init__(limits, admission, forget_after=forget_after)
        self._idling = Idling(limits.probe_idle)
        self._now = 0.0  # of the last input
        self._expected: float | None = None  # the instant that the driver was told to wake up at

    # --- inputs: users -------------------------------------------------------------------------------------------

    def give_up(self, kind: str, detail: str, now: float) -> None:
        """Something the pipeline cannot do without can never be had (the tokenizer, for one)."""
        death = Death(ev.Cause.BOOT, detail, permanent=True, kind=kind)
        if self.life.phase in (EnginePhase.STARTING, EnginePhase.UP):
            self._kill(death, now)
        elif self.life.phase is EnginePhase.DYING:
            self.life.death = death
        elif self.life.phase is EnginePhase.DOWN:
            self.life.death = death
            self._fail(now, detail)

    def start(self, now: float) -> None:
        """Start the first incarnation."""
        self.clock.stand(now)
        self._spawn(now)

    def submit(self, submission: Submission, now: float) -> None:
        """Take a sequence: from here on it is settled exactly once."""
        sequence = Sequence(submission, self.clock.at(now), self.clock.stood(now))
        self.sequences[sequence.id] = sequence
        self._census = None
        if submission.probe:
            self.probes += 1
        else:
            self.tally.submitted += 1
        self._schedule(sequence)
        if self.life.phase is EnginePhase.FAILED:
            self._settle(sequence, Why.ENGINE_FAILED, now, self.failed_because)
        elif self.life.closing:
            self._settle(sequence, Why.SHUTDOWN, now)
        elif not self._join_lease(sequence, now):
            self._settle(sequence, Why.LEASE, now, "its lease was over when it was submitted")
        else:
            self._accept(sequence, now)

    def _accept(self, sequence: Sequence, now: float) -> None:
        """The one that it supersedes ends after it has its place, so that its class and its owner wait on."""
        newest = self.names.newest(sequence.submission)
        first = None if newest is None else self.sequences.get(newest)
        self.names.add(sequence.submission)
        if first is not None:
            sequence.take_the_place_of(first)
        self._hold_back(sequence)
        if sequence.cleared:
            self._enqueue(sequence, now)
        if first is not None and sequence.id in self.sequences:  # else it can never fit
            self._settle(first, Why.CANCELLED, now, f"superseded by generation {sequence.id}")

    def clear(self, sequence: int, now: float) -> None:
        """What had to be found out before it could be admitted is found out."""
        found = self.sequences.get(sequence)
        if found is not None and not found.cleared:
            found.cleared = True
            self._enqueue(found, now)

    def refuse(self, sequence: int, detail: str, now: float) -> None:
        """What was found out makes it invalid."""
        self._end(sequence, Why.REJECTED, now, detail)

    def cancel(self, sequence: int, now: float, why: Why = Why.CANCELLED) -> bool:
        """False: it was settled before, and nothing changes."""
        return self._end(sequence, why, now)

    def tighten(self, sequence: int, bounds: Bounds, at: float, now: float) -> None:
        """`total` counts from submission, the rest from `at`. Bounds only shrink."""
        found = self.sequences.get(sequence)
        if found is not None:
            found.shrink(bounds, at, self.clock.at(at))
            self._schedule(found)
            if found.id in self._line(found):  # an earlier deadline is an earlier turn
                self._line(found).add(found, now)

    def grant(self, row: Lease, now: float) -> None:
        """`row` is live from now for its ttl."""
        self.tally.leases["granted"] += 1
        if self.life.over:  # nothing to hold it for
            self.tally.leases["revoked"] += 1
            self._effects.append(ev.EndLease(row.id, "revoked"))
        else:
            self.leases.grant(row, self.clock.at(now))

    def renew(self, lease: str, at: float, now: float) -> bool:
        """The owner was there at `at`, which can be later than the wake that hears of it. False: it is over."""
        held = self.leases.renew(lease, self.clock.at(at))
        self.tally.leases["renewed"] += held
        return held

    def revoke(self, lease: str, now: float) -> None:
        row = self.leases.end(lease)
        if row is not None:
            self._end_lease(row, "revoked", now)

    def expire(self, lease: str, now: float) -> None:
        """A lease that `leases_due` told of, and of which there is no newer evidence."""
        row = self.leases.end(lease)
        if row is not None:
            self._end_lease(row, "expired", now)

    def seen(self, lease: str, at: float, now: float, since: float | None = None) -> None:
        """A reader of something under a lease that reading renews was there at `at`, and from `since` until then."""
        self.leases.seen(lease, self.clock.at(at if since is None else since), self.clock.at(at))

    def restart(self, delay_s: float | None, now: float) -> None:
        """The restart policy's answer. None: give up."""
        life = self.life
        if life.phase is not EnginePhase.DOWN or life.closing or life.respawn_at is not None:
            return
        if delay_s is None:
            self._fail(now, "the restart budget is used up")
        else:
            self.life.respawn_at = now + max(0.0, delay_s)

    def exchange(self, number: int, drain_s: float, now: float) -> None:
        """Go on with engines built from the equipment `number`, once nobody is left who was submitted before."""
        if self.switch is not None:
            self._effects.append(ev.Switched(number, "busy"))
            return
        self.switch = Switch(number, now + drain_s)
        if self.life.over or self.life.closing:
            self._switched("closed", now, self.failed_because)

    def keep(self, number: int, now: float) -> None:
        """Whoever asked for that waits no longer: it is dropped, unless the engine is being exchanged already."""
        if self.switch is not None and self.switch.number == number and self.switch.before is None:
            self._switched("dropped", now)

    def close(self, drain_s: float, now: float) -> None:
        """Nothing new; what is inside may end by itself until the drain is over. A later call can only shorten it."""
        if self.life.phase is EnginePhase.CLOSED:
            return
        until = now + drain_s
        self.life.closing = True
        self.life.drain_until = until if self.life.drain_until is None else min(until, self.life.drain_until)
        self._became()

    # --- inputs: the engine --------------------------------------------------------------------------------------

    def pulse(self, pulse: ev.Pulse, now: float) -> None:
        """The step stamps, read just now. The first input of a wake: what is heard after it is judged by it."""
        self.watch.looked(pulse)
        self._notice_a_standstill(now)

    def under_way(self, commands: Collection[tuple[str, int]], now: float) -> None:
        """Commands that the pipe takes bit by bit, and took some of since the last wake. After `pulse`."""
        self.watch.under_way(commands, now)

    def receive(self, report: ev.Report, now: float) -> None:
        """A report of another incarnation, or of one that is being killed, changes nothing (but its exit counts)."""
        if report.incarnation != self.life.incarnation:
            return
        if isinstance(report, ev.Exited):
            self._exited(report, now)
        elif self.life.phase in (EnginePhase.STARTING, EnginePhase.UP):
            self._receive_live(report, now)

    def _receive_live(self, report: ev.Report, now: float) -> None:
        match report:
            case ev.Progress():
                self._progressed(report, now)
            case ev.Ready():
                self.life.rss_bytes = report.rss_bytes
                self._became_ready(report.facts, now)
            case ev.BootFailed():
                self._kill(Death(ev.Cause.BOOT, report.text, report.permanent, report.kind), now)
            case ev.StepRaised():
                self._kill(Death(ev.Cause.STEP_RAISED, report.text), now)
            case ev.WireEnded():
                self.watch.cut(now)
            case ev.WireBroken():
                self._kill(Death(ev.Cause.WIRE, report.text), now)

    # --- inputs: time --------------------------------------------------------------------------------------------

    def _notice_a_standstill(self, now: float) -> None:
        if self._expected is not None and now > self._expected + LATE:
            self.watch.woke(self._now, now)
            self._expected = None

    def tick(self, now: float) -> None:
        """Leases, then deadlines, then the engine's life and those lost with it, then admission; then, is it idle?"""
        self._notice_a_standstill(now)
        self._now = now
        self._expire_leases(now)
        self._expire_deadlines(now)
        self._judge(now)
        self._live_on(now)
        self._recycle(now)
        self._part(now)
        self._end_leases_if_over(now)
        self._admit_what_fits(now)
        idle = self.life.up and not self.sequences and not self.stays
        if self._idling.due(idle, now):
            self._effects.append(ev.Probe())

    def leases_due(self, now: float) -> list[str]:
        """Leases that the next tick at `now` would end: the driver asks for late evidence of them first."""
        return self.leases.overdue(self.clock.at(now))

    def next_wakeup(self) -> float | None:
        """The instant at which `tick` has something to do if nothing else happens; None: never."""
        readings = [self._ready.earliest(), self.leases.earliest()]
        instants = [self.clock.instant(r) for r in readings if r is not None]
        instants += [self._wall.earliest(), self.life.next(), self.watch.next(self._now)]
        instants += [self._recycle_at(), self._idling.next()]
        self._expected = earliest(instants)
        return self._expected

    def poll(self) -> list[ev.Effect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
