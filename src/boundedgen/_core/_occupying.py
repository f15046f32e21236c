"""How a sequence gets into the engine, and how its stay there ends."""

from boundedgen._core import _events as ev
from boundedgen._core._adapting import Adapting
from boundedgen._core._phases import SequencePhase, StayPhase
from boundedgen._core._sequences import Sequence
from boundedgen._core._stays import Stay
from boundedgen._core._times import QUEUED
from boundedgen._errors import FinishReason as Why


class Occupying(Adapting):
    def _admit_what_fits(self, now: float) -> None:
        """In the order of the line: one that does not fit yet is not overtaken."""
        capacity = self.ledger.capacity
        if not self.life.up or capacity is None:
            return
        if not self.ledger.probe_held and (probe := self.probe_queue.head()) is not None:
            self._admit(probe, (), now)
        while line := self.suspects or self.queue:
            if self.ledger.full() or self._shut():  # whoever is next
                self.forecast.waits(now)
                return
            sequence = line.head()
            assert sequence is not None
            expected = self._expected_of(sequence)
            needs = self._reservation(sequence, expected, capacity)
            if not self.ledger.fits(needs):
                self.forecast.waits(now)
                return
            if (why := self._hopeless(sequence, now)) is not None:
                self.tally.hopeless += 1
                self._settle(sequence, Why.DEADLINE, now, why, bound="queued", at=sequence.total_at)
            else:
                self._admit(sequence, needs, now, expected)
        self.forecast.interrupted()

    def _shut(self) -> bool:
        """Nobody is let in, whoever it may be: it is to become empty, a suspect is being tried, or it was full."""
        return self.pause.on or self.trial is not None or self._calm()

    def _hopeless(self, sequence: Sequence, now: float) -> str | None:
        """Why it is not let in any more: others can use the time that it will not have; None: it is let in."""
        margin, submission = self.admission.margin, sequence.submission
        if margin is None or sequence.admitted_at is not None or submission.sequences > 1 or len(self.queue) < 2:
            return None
        left, most = sequence.total_at - now, submission.max_new_tokens
        if self._takes(sequence, most) * (1.0 + margin) <= left:  # cheaper to find out than how long it may become
            return None
        service = self._takes(sequence, self.forecast.expected_tokens(most))
        if service * (1.0 + margin) <= left:
            return None
        counted = f", {service * (1.0 + margin):.3g} s with Admission.margin" if margin else ""
        return f"it would take about {service:.3g} s{counted}, and {left:.3g} s were left"

    def _takes(self, sequence: Sequence, tokens: int) -> float:
        """Seconds inside, as far as is known."""
        return self.forecast.service_s(sequence.submission.prompt_tokens, tokens) or 0.0

    def _admit(self, sequence: Sequence, needs: tuple[int, ...], now: float, expected: int = 1) -> None:
        self._line(sequence).admit(sequence, now)
        self._last_stay += 1
        probe = sequence.submission.probe
        if not probe:
            self.forecast.admitted(now, others_wait=len(self.queue) > 0)
        incarnation, before = self.life.incarnation, sequence.tokens
        stay = Stay(
            self._last_stay,
            sequence.submission,
            incarnation,
            needs,
            now,
            sequence,
            sequence.id,
            probe=probe,
            before=before,
            expected=expected,
            first=sequence.admitted_at is None,
            entered=self.watch.steps,
        )
        if probe:
            self.ledger.probe_held = True
        else:
            self.ledger.reserve(needs)
        self.stays[stay.id] = stay
        sequence.stay = stay.id
        if sequence.suspect:
            self.trial = stay.id
        self._move(sequence, SequencePhase.RUNNING)
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            if sequence.bounds.queued is not None:  # which is met
                self._schedule(sequence)
        self.watch.ordered("admit", stay.id, now)
        self.watch.holding(True, now)
        times, followed = (sequence.resumed, sequence.paused), len(self.queue) > 0
        admit = ev.Admit(incarnation, stay.id, sequence.id, sequence.total_at, *times, self._claim(sequence), followed)
        self._effects.append(admit)

    def _let_in(self, stay: Stay) -> None:
        """The engine has taken it, or can no longer turn it back: what is counted once is never taken back."""
        if stay.first and not stay.probe:
            self.tally.prompt_tokens += stay.submission.prompt_tokens
            self.tally.times.add(QUEUED, stay.admitted_at - stay.submission.submitted_at)

    def _gone(self, stay: Stay, steps: int, seconds: float, proof: str, now: float) -> None:
        """The one exit of every stay."""
        forced = stay.phase is StayPhase.STOPPING and stay.stop_at is not None
        self._move(stay, StayPhase.GONE)
        del self.stays[stay.id]
        self.watch.gone(stay.id)
        if not stay.taken and proof != "refused":
            self._let_in(stay)
        self._tried(stay)
        self._has_left(stay)
        if stay.probe:
            self.ledger.probe_held = False
        else:
            self.ledger.give_back(stay.needs)
            self.queue.used(stay.submission, stay.computed(self.watch.steps))
            if proof == "refused":
                self.queue.spared(stay.submission)
            self._learn(stay)
        if forced and proof not in ("died", "refused"):
            self.tally.reclaim(steps, seconds)
        self.watch.holding(bool(self.stays), now)
        self._effects.append(ev.Prove(stay.sequence, stay.id, steps, seconds, proof))
        sequence = self.sequences.get(stay.sequence)
        if sequence is not None and sequence.stay == stay.id:
            sequence.stay = None
            if sequence.phase is SequencePhase.WAITING:
                self._enqueue(sequence, now)

    def _learn(self, stay: Stay) -> None:
        last_at = stay.occupant.token_at
        if stay.first_at is not None and last_at is not None and stay.submission.sequences == 1:
            first_s, total_s = stay.first_at - stay.admitted_at, last_at - stay.admitted_at
            self.forecast.left(stay.submission.prompt_tokens + stay.before, stay.tokens, first_s, total_s)

    def _tried(self, stay: Stay) -> None:
        """It has shown a token, or is gone: whoever waits for the end of its trial may come in."""
        if self.trial == stay.id:
            self.trial = None

    def _reconcile(self, held: frozenset[int], now: float) -> None:
        """The child's table against ours, by id."""
        for ghost in sorted(held - self.stays.keys()):
            self.tally.ghosts += 1
            self._effects.append(ev.Stop(self.life.incarnation, ghost))
        for stay in [s for s in self.stays.values() if s.taken and s.id not in held]:
            self.tally.forgotten += 1
            sequence = self.sequences.get(stay.sequence)
            self._gone(stay, 0, 0.0, "reconciled", now)
            if sequence is not None and sequence.phase is SequencePhase.RUNNING:
                self._lose(sequence, now, "the engine no longer knows it")
