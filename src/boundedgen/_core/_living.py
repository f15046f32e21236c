"""The engine's life: started, ready, killed, reaped, started again or given up, closed."""

from boundedgen._core import _events as ev
from boundedgen._core._admission import Capacity
from boundedgen._core._life import Death
from boundedgen._core._phases import EnginePhase, move
from boundedgen._core._resuming import Resuming
from boundedgen._errors import FinishReason as Why

#: What health calls the phases; before the first READY, everything on the way there is STARTING.
STATES = {
    EnginePhase.STARTING: "recovering",
    EnginePhase.UP: "ready",
    EnginePhase.DYING: "recovering",
    EnginePhase.DOWN: "recovering",
    EnginePhase.FAILED: "failed",
    EnginePhase.CLOSED: "closed",
}
KILL = 9
FROM_OUTSIDE = frozenset({1, 2, 3, KILL, 15})  #: SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM: nothing in it sends these
CRASHES = {4: " (SIGILL)", 6: " (SIGABRT)", 7: " (SIGBUS)", 8: " (SIGFPE)", 11: " (SIGSEGV)", 15: " (SIGTERM)"}


class Living(Resuming):
    _state = ""
    failed_because = ""  # empty: it has not failed
    _parting: Death | None = None  # the engine is lost, and those inside are not answered yet
    _to_kill = False

    def state(self) -> str:
        """What health says, but for STALLED, which is a matter of the moment at which it is asked."""
        state = STATES[self.life.phase]
        if self.life.closing and not self.life.over:
            return "draining"
        return "starting" if state == "recovering" and self.life.facts is None else state

    def reason(self) -> str:
        """Why it is in this state, in words; empty: nothing went wrong."""
        why = self.life.why() or self.pause.why
        if not self.failed_because:
            return why
        death = self.life.death
        known = death is None or not why or death.detail == self.failed_because
        return self.failed_because if known else f"{self.failed_because}; last: {why}"

    def _became(self) -> None:
        """Tell it, if what health says has changed."""
        state = self.state()
        if state != self._state:
            self._state = state
            self._effects.append(ev.Became(state, self.reason()))

    def _spawn(self, now: float) -> None:
        incarnation = self.life.spawn(now)
        self.watch.boot(now)
        self._effects.append(ev.Spawn(incarnation))
        self._became()

    def _became_ready(self, facts: ev.EngineFacts, now: float) -> None:
        if self.life.phase is not EnginePhase.STARTING:
            return
        if facts.exact and not self.life.believes(facts.canary):
            detail = (
                f"its canary came back as {list(facts.canary)}, that of an engine before as {list(self.life.canary)}: "
                "token ids of a short greedy generation, always of the same prompt, which has to be the same each time"
            )
            self._kill(Death(ev.Cause.CANARY, detail), now)
            return
        again, lost = self.life.facts is not None, not self.life.orderly
        self.life.ready(facts, now)
        self.watch.ready()
        self.capacity = Capacity.of(facts, self.limits.running_max)
        self.ledger.open(self.capacity)
        self.clock.run(now)
        if again:
            self.tally.restarts += lost
            self.leases.grace(self.clock.at(now))
        self._became()
        self._turn_away_what_no_longer_fits(now)

    def _turn_away_what_no_longer_fits(self, now: float) -> None:
        """An engine that sizes its cache by bytes can come back smaller."""
        for sequence in [s for s in self.sequences.values() if s.cleared and s.stay is None]:
            self._enqueue(sequence, now)

    def _judge(self, now: float) -> None:
        verdict = self.watch.verdict(now) if not self.life.over else None
        if verdict is not None:
            self._kill(Death(*verdict), now)

    def _kill(self, death: Death, now: float) -> None:
        """What the engine holds is gone only when its process is."""
        self._dying(death, now)
        self._to_kill = True

    def _dying(self, death: Death, now: float) -> None:
        self._blame(death)
        self.life.die(death, now)
        self.tally.kills[death.cause.value] += 1
        self._effects.append(ev.Lost(self.life.incarnation, death.cause, death.detail, death.output))
        self.clock.stand(now)
        self.watch.over()
        self.forecast.interrupted()
        self.calm_until = 0
        self.ledger.capacity = None
        self.last_report = None  # what it used is gone with it
        self._parting = death
        self._became()

    def _part(self, now: float) -> None:
        """Answer those that were lost with the engine, then kill it.

        Part of the tick: a cancel, a lease or a deadline of the same wake wins over the loss of the engine.
        """
        death, self._parting = self._parting, None
        if death is None:
            return
        if not death.cause.orderly:
            self._survive(death, now)
        if self.life.closing:
            self._settle_all(Why.SHUTDOWN, now)
        if self._to_kill:
            self._to_kill = False
            self._effects.append(ev.Kill(self.life.incarnation, death.cause, death.detail))

    def _settle_all(self, why: Why, now: float, detail: str = "") -> None:
        for sequence in list(self.sequences.values()):
            self._settle(sequence, why, now, detail)

    def _exited(self, report: ev.Exited, now: float) -> None:
        """The process is reaped: whatever it held is gone with it."""
        if self.life.phase in (EnginePhase.STARTING, EnginePhase.UP):
            outside = -report.status in FROM_OUTSIDE
            self._dying(Death(ev.Cause.DIED, _how(report), output=report.text, outside=outside), now)
        self._to_kill = False
        for stay in list(self.stays.values()):  # also when it was given up before it left
            self._gone(stay, 0, 0.0, "died", now)
        if self.life.phase is EnginePhase.DYING:
            self._after_death(now)
            self._became()

    def _after_death(self, now: float) -> None:
        death = self.life.death
        assert death is not None
        if self.life.closing and not self._drains():
            move(self.life, EnginePhase.CLOSED)
        elif death.permanent:
            self._fail(now, death.detail)
        else:
            move(self.life, EnginePhase.DOWN)
            self._start_again(death, now)

    def _start_again(self, death: Death, now: float) -> None:
        """At once after a recycling; after a loss, when the restart policy says so."""
        life = self.life
        if death.cause.orderly:
            life.respawn_at = now
        else:
            self._effects.append(ev.DecideRestart(life.incarnation, life.failures, life.failing_since, death.cause))

    def _fail(self, now: float, detail: str) -> None:
        """Give up: everything is settled, and nothing is accepted any more."""
        move(self.life, EnginePhase.FAILED)
        self.life.respawn_at = None
        self.failed_because = detail or "nobody said why"
        self._settle_all(Why.ENGINE_FAILED, now, self.failed_because)
        self._became()

    def _live_on(self, now: float) -> None:
        """Timers of the engine's life."""
        overdue = self.life.reap_overdue_at()
        if overdue is not None and now >= overdue:
            self._unkillable(now)
        self._close_if_drained(now)
        if self.life.respawn_at is not None and now >= self.life.respawn_at:
            self._spawn(now)

    def _unkillable(self, now: float) -> None:
        """Killed, and still there: it may hold the device for ever, so no second one is started beside it."""
        if self.life.closing:
            self._settle_all(Why.SHUTDOWN, now)
            move(self.life, EnginePhase.CLOSED)
            self._became()
        else:
            self._fail(now, f"the killed engine has not left within {self.limits.reap:g} s")

    def _drains(self) -> bool:
        """There is an engine, or one comes that nobody had to lose one for; the drain is not over."""
        life = self.life
        served = life.phase in (EnginePhase.UP, EnginePhase.STARTING) or life.orderly
        return life.drain_until is not None and served

    def _close_if_drained(self, now: float) -> None:
        """While draining: close once nothing is left inside, or the time is up."""
        life = self.life
        if not life.closing or life.drain_until is None or life.phase is EnginePhase.CLOSED:
            return
        if now < life.drain_until and self.sequences and self._drains():
            return
        life.drain_until = life.respawn_at = None
        self._settle_all(Why.SHUTDOWN, now)
        if life.phase in (EnginePhase.STARTING, EnginePhase.UP):
            self._kill(Death(ev.Cause.CLOSE, "closed"), now)
        elif life.phase is not EnginePhase.DYING:
            move(life, EnginePhase.CLOSED)
        self._became()

    def _end_leases_if_over(self, now: float) -> None:
        """Nothing can be submitted any more: there is nothing left to hold a lease for."""
        if self.life.over:
            for row in self.leases.end_all():
                self._end_lease(row, "revoked", now)


def _how(report: ev.Exited) -> str:
    if report.status == ev.UNKNOWN_STATUS:
        return (
            "the process ended; how is not known, for SIGCHLD is ignored in this process or somebody else waited for it"
        )
    if report.status == -KILL:
        return "the process was killed by signal 9, not by us: by somebody, or by the kernel for want of memory"
    if report.status < 0:
        return f"the process died of signal {-report.status}{CRASHES.get(-report.status, '')}"
    return f"the process ended by itself: exit status {report.status}"
