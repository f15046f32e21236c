"""How a sequence comes in and how it is answered: its deadlines, its lease, and the one exit."""

import math

from attrs import evolve

from boundedgen._core import _events as ev
from boundedgen._core._admission import Capacity
from boundedgen._core._books import Books
from boundedgen._core._leases import Lease
from boundedgen._core._order import Order
from boundedgen._core._phases import SequencePhase
from boundedgen._core._sequences import Ended, Sequence
from boundedgen._core._times import TOTAL
from boundedgen._errors import FinishReason as Why

OUTAGE = 0.05  #: seconds without an engine that are worth a word
LONG_STEP = 1.0  #: seconds in one step that are


class Settling(Books):
    def _join_lease(self, sequence: Sequence, now: float) -> bool:
        """False: the lease it was submitted under is over."""
        submission = sequence.submission
        sequence.lease = submission.lease
        if submission.lease is None and submission.implicit_ttl is not None:
            sequence.lease = f"implicit-{sequence.id}"
            implicit = Lease(sequence.lease, submission.owner, submission.implicit_ttl)
            self.leases.grant(implicit, self.clock.at(now))
        if sequence.lease is None:
            return True
        row = self.leases.get(sequence.lease)
        if row is not None:
            row.sequences.add(sequence.id)
        return row is not None

    def _enqueue(self, sequence: Sequence, now: float) -> None:
        if sequence.later:
            return
        capacity = self.ledger.capacity
        if capacity is not None and not sequence.submission.probe and capacity.lacking(self._needs(sequence, capacity)):
            if sequence.resumed or sequence.tokens:
                self._lose(sequence, now, "it was to be continued, and does not fit the engine that came back")
            else:
                self._settle(sequence, Why.REJECTED, now, "it can never fit the cache of this engine")
        else:
            self._line(sequence).add(sequence, now)

    def _line(self, sequence: Sequence) -> Order:
        if sequence.submission.probe:
            return self.probe_queue
        return self.suspects if sequence.suspect else self.queue

    def _needs(self, sequence: Sequence, capacity: Capacity) -> tuple[int, ...]:
        submission = sequence.submission
        return capacity.needs(submission.prompt_tokens, submission.max_new_tokens, submission.sequences)

    def _end(self, sequence: int, why: Why, now: float, detail: str = "") -> bool:
        found = self.sequences.get(sequence)
        if found is None:
            return False
        self._settle(found, why, now, detail)
        return True

    def _settle(
        self,
        sequence: Sequence,
        why: Why,
        now: float,
        detail: str = "",
        *,
        bound: str = "",
        at: float = 0.0,
        results: tuple[ev.SequenceResult, ...] = (),
    ) -> None:
        """The one exit of every sequence: answer the caller, forget its timers, stop what it still has inside."""
        self._move(sequence, SequencePhase.SETTLED)
        del self.sequences[sequence.id]
        if not self.sequences:
            self.sequences.clear()  # which gives its memory back
        if sequence.later and self.switch is not None:
            self.switch.later -= 1
        self.names.remove(sequence.submission)
        self._line(sequence).remove(sequence.id)
        self._wall.set(sequence.id, None)
        self._ready.set(sequence.id, None)
        self._leave_lease(sequence)
        held, reason = sequence.stay is not None, why.value
        self._count_end(sequence, reason, bound, now)
        self._effects.append(ev.Settle(sequence.id, reason, detail, bound, at, results, held))
        if sequence.stay is not None:
            self._stop(self.stays[sequence.stay], now)

    def _count_end(self, sequence: Sequence, reason: str, bound: str, now: float) -> None:
        submission = sequence.submission
        if submission.probe:
            self.probes -= 1
            return
        self.tally.finished[reason] += 1
        self.tally.times.add(TOTAL, now - submission.submitted_at)
        if sequence.tokens and submission.sequences == 1:
            self.forecast.lengths.add(sequence.tokens, ended=reason == Why.STOP)
        if bound:
            self.tally.deadlines[bound] += 1
        self.ended.append(Ended(sequence.id, submission.label, submission.owner, reason, bound, sequence.tokens))

    def _leave_lease(self, sequence: Sequence) -> None:
        row = None if sequence.lease is None else self.leases.get(sequence.lease)
        if row is not None:
            row.sequences.discard(sequence.id)
            if sequence.submission.lease is None:
                self.leases.end(row.id)

    def _end_lease(self, row: Lease, how: str, now: float) -> None:
        self.tally.leases[how] += 1
        self._effects.append(ev.EndLease(row.id, how))
        for sequence in sorted(row.sequences):
            self._end(sequence, Why.LEASE, now, f"its lease was {how}" if how == "revoked" else "its lease expired")

    def _expire_leases(self, now: float) -> None:
        for row in self.leases.expired(self.clock.at(now)):
            self._end_lease(row, "expired", now)

    def _expire_deadlines(self, now: float) -> None:
        """Earliest first within each clock; one that is due on both is named by the earlier of the two.

        Standing still, the ready clock can still show that one is over: a bound of zero or less ends at once.
        """
        for due in self._wall.due(now):
            self._expire(self.sequences[due], now)
        for due in self._ready.due(self.clock.at(now)):
            if due in self.sequences:
                self._expire(self.sequences[due], now)

    def _expire_before(self, instant: float, now: float) -> None:
        """What a step brings that ended after a sequence's deadline comes too late, however late we hear of both."""
        for due in self._wall.due(math.nextafter(min(instant, now), -math.inf)):
            self._expire(self.sequences[due], now)

    def _lose(self, sequence: Sequence, now: float, detail: str) -> None:
        """The engine has lost it; but a deadline that has passed, though nobody looked since, was there first."""
        wall = sequence.wall_deadline()
        if wall is not None and wall.at <= now:
            self._settle(sequence, Why.DEADLINE, now, bound=wall.bound, at=wall.at)
        else:
            self._settle(sequence, Why.ENGINE_LOST, now, detail)

    def _expire(self, sequence: Sequence, now: float) -> None:
        deadline, ready = sequence.wall_deadline(), sequence.ready_deadline()
        if ready is not None:  # while it is not due it is later than now, and so not the earliest
            at = now - (self.clock.at(now) - ready.at)
            if deadline is None or at < deadline.at:
                deadline = evolve(ready, at=at)
        assert deadline is not None
        self._settle(sequence, Why.DEADLINE, now, self._meanwhile(sequence, now), bound=deadline.bound, at=deadline.at)

    def _meanwhile(self, sequence: Sequence, now: float) -> str:
        """What the engine has to do with a deadline that was reached, in words; empty: it was there, and went on."""
        said = ["it had not entered the engine"] if sequence.admitted_at is None else []
        said += ["the lane was switching adapters"] if sequence.later else []
        life, stood, pulse = self.life, self.clock.stood(now) - sequence.stood, self.watch.pulse
        if not life.up:
            doing, why = "started" if life.facts is None else "replaced", life.why()
            said.append(f"the engine was being {doing}" + (f": {why}" if why else ""))
        elif stood >= OUTAGE:
            said.append(f"for {stood:.1f} s of that the engine was being replaced")
        if life.up and pulse.in_step and (under_way := now - pulse.begun_at) >= LONG_STEP:
            said.append(f"a step had been under way for {under_way:.1f} s, of at most {self.watch.step_budget():.3g} s")
        return "; ".join(said)
