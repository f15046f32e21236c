"""What becomes of those inside when their engine is lost: settled, taken up again by the next one, or quarantined.

Who was new in the fatal step is a suspect: it is taken up again with no other newcomer beside it, so that the next
loss names the culprit. A second strike is quarantine.
"""

from boundedgen._core._life import Death
from boundedgen._core._occupying import Occupying
from boundedgen._core._phases import SequencePhase
from boundedgen._core._sequences import Resume, Sequence
from boundedgen._core._stays import Stay
from boundedgen._errors import FinishReason as Why

STRIKES = 2  #: quarantine
#: Engines that may fail while a sequence is inside, or be lost for whatever reason in a row without a token of it (a
#: prompt that costs the machine its memory is killed "from outside"): no fourth one is risked for it, suspect or not.
CRASHES = 3


class Resuming(Occupying):
    def _blame(self, death: Death) -> None:
        """While it is known who was inside: who may have brought it about?"""
        inside = [stay for stay in self.stays.values() if not stay.probe]
        for stay in inside:
            sequence = self.sequences.get(stay.sequence)
            if sequence is None or sequence.stay != stay.id:
                continue
            sequence.fruitless += 1
            if death.blames:
                self._strike(sequence, stay, alone=len(inside) == 1)

    def _strike(self, sequence: Sequence, stay: Stay, *, alone: bool) -> None:
        """A second strike wants better evidence than that it came in together with others."""
        sequence.crashes += 1
        sequence.suspect = alone or not stay.taken
        if alone or (sequence.suspect and not sequence.strikes):
            sequence.strikes += 1

    def _survive(self, death: Death, now: float) -> None:
        """Every sequence that was inside is taken up again, or answered."""
        for sequence in [s for s in self.sequences.values() if s.phase is SequencePhase.RUNNING]:
            self._survived(sequence, f"{death.cause.value}: {death.detail}", now)

    def _survived(self, sequence: Sequence, detail: str, now: float) -> None:
        if not self._can_go_on(sequence):
            self._lose(sequence, now, detail)
        elif sequence.strikes >= STRIKES:
            self.tally.quarantined += 1
            self._settle(sequence, Why.QUARANTINED, now, f"{sequence.crashes} engines failed on it; the last: {detail}")
        elif sequence.crashes >= CRASHES:
            self._lose(sequence, now, f"{sequence.crashes} engines failed while it was inside; the last: {detail}")
        elif sequence.fruitless >= CRASHES:
            self._lose(
                sequence, now, f"{sequence.fruitless} engines were lost before it showed a token; the last: {detail}"
            )
        else:
            sequence.resumed += 1
            self.tally.resumed += 1
            self._move(sequence, SequencePhase.WAITING)  # in its old place, once an engine is ready

    def _can_go_on(self, sequence: Sequence) -> bool:
        """It may, and there is something left to generate, from a prompt that the engine can take."""
        submission, facts = sequence.submission, self.life.facts
        if submission.resume is Resume.NEVER or facts is None or self.life.closing:
            return False
        if not sequence.tokens:
            return True
        longest = facts.max_prompt_tokens
        too_long = longest is not None and submission.prompt_tokens + sequence.tokens > longest
        return submission.resume is Resume.ALWAYS and sequence.tokens < submission.max_new_tokens and not too_long
