"""The engine replaced by one that is built otherwise (other adapters), at a moment at which nobody relies on this one.

Whoever was submitted before the switch is served by this engine, since that is what he asked; whoever comes while it is
under way waits for what it comes to. So the switch happens when nobody from before is left, and not at all if that
takes longer than whoever asked for it will wait: nobody is thrown out for it. The moment is that of recycling, and so
is the way: the engine ends in order, holding nothing, and the next one is started at once. One that does not start
is followed by one that is built as the last one that served.
"""

from boundedgen._core import _events as ev
from boundedgen._core._life import Death
from boundedgen._core._phases import EnginePhase, SequencePhase, move
from boundedgen._core._recycling import Recycling
from boundedgen._core._sequences import Sequence
from boundedgen._core._switch import Switch

SWITCHES = "switching adapters"
WAITS = "switching adapters, once those are served that were submitted before"


class Switching(Recycling):
    def _hold_back(self, sequence: Sequence) -> None:
        """If it comes while a switch is under way."""
        if self.switch is not None and not sequence.submission.probe:
            sequence.later = True
            self.switch.later += 1

    def _recycle(self, now: float) -> None:
        """A switch does all that a recycling would."""
        if self.switch is None:
            super()._recycle(now)
            return
        self.pause.over()
        self._go_on(self.switch, now)
        if self.switch is not None and self.switch.before is None:
            self.pause.why = WAITS

    def _part(self, now: float) -> None:
        """With those that were lost with their engine, nobody may be left who needs it as it was."""
        super()._part(now)
        if self.switch is not None and not self.life.up:
            self._go_on(self.switch, now)

    def _recycle_at(self) -> float | None:
        if self.switch is None:
            return super()._recycle_at()
        return self.switch.until if self.switch.before is None else None

    def _go_on(self, switch: Switch, now: float) -> None:
        life = self.life
        if life.over or (life.closing and switch.before is None):
            self._switched("closed", now, self.failed_because)
        elif switch.before is None and not self._from_before(switch) and life.phase is not EnginePhase.STARTING:
            self._exchange(switch, now)
        elif switch.before is None and now >= switch.until:
            self._switched("late", now, f"{self._from_before(switch)} that were submitted before were not served yet")

    def _from_before(self, switch: Switch) -> int:
        """Sequences that are to be served by the engine as it is, or are still held by it."""
        return max(len(self.stays), len(self.sequences) - self.probes - switch.later)

    def _exchange(self, switch: Switch, now: float) -> None:
        """The next engine is another one, and its canary may be. If there is none just now, it is started as it is."""
        life = self.life
        switch.before, switch.ended, switch.canary = self.equipment, life.incarnation, life.canary
        self._equip(switch.number, ())
        if life.up:
            self._kill(Death(ev.Cause.RECYCLE, SWITCHES), now)

    def _equip(self, number: int, canary: tuple[int, ...]) -> None:
        self.equipment, self.life.canary, self.life.doubted = number, canary, ()
        self._effects.append(ev.Equip(number))

    def _became_ready(self, facts: ev.EngineFacts, now: float) -> None:
        super()._became_ready(facts, now)
        if self.life.up and self.switch is not None and self.switch.before is not None:
            self._switched("done", now)

    def _after_death(self, now: float) -> None:
        """An engine with new equipment that was never ready: the old one served, so that is taken again, at once."""
        switch, life = self.switch, self.life
        new = switch is not None and switch.before is not None and life.incarnation > switch.ended
        if switch is None or switch.before is None or not new or life.closing:
            super()._after_death(now)
            return
        death = life.death
        assert death is not None
        self._equip(switch.before, switch.canary)
        move(life, EnginePhase.DOWN)
        life.respawn_at = now
        self._switched("failed", now, f"{death.cause.value}: {death.detail}", death.kind)

    def _switched(self, outcome: str, now: float, detail: str = "", kind: str = "") -> None:
        """It is over, one way or the other: those that came meanwhile wait like everybody."""
        switch = self.switch
        assert switch is not None
        self.switch = None
        self.pause.over()
        self._effects.append(ev.Switched(switch.number, outcome, detail, kind))
        for sequence in [s for s in self.sequences.values() if s.later] if switch.later else ():
            sequence.later = False
            if sequence.cleared and sequence.phase is SequencePhase.WAITING:
                self._enqueue(sequence, now)
