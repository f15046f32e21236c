"""What is set aside for a sequence: all that it may ever need, or, where it can be paused, what is expected of it.

Under Admission "adaptive" all reservations fit when somebody is let in, as under "reserve". Later they need not: what
outgrows its reservation gets a larger one, for what is inside goes on, whatever the books say. That the blocks in use
fit all the same is kept by the engine's process (`_engine/_guard.py`), which pauses the least urgent before a step
could need more than there are, and turns back a newcomer for whom there is no room.
"""

import math

from boundedgen._core import _events as ev
from boundedgen._core._admission import AHEAD, CALM, Capacity
from boundedgen._core._phases import SequencePhase
from boundedgen._core._sequences import Sequence
from boundedgen._core._settling import Settling
from boundedgen._core._stays import Stay


class Adapting(Settling):
    def _pausable(self, sequence: Sequence) -> bool:
        """It can be stopped and continued without anybody's noticing, at any length that it can come to."""
        submission, facts, gap = sequence.submission, self.life.facts, sequence.bounds.next_token
        if self.admission.policy != "adaptive" or not submission.continuable or facts is None:
            return False
        longest = submission.prompt_tokens + submission.max_new_tokens - 1
        fits = facts.max_prompt_tokens is None or longest <= facts.max_prompt_tokens
        return submission.sequences == 1 and fits and (gap is None or gap == math.inf)

    def _claim(self, sequence: Sequence) -> ev.Claim | None:
        if self.admission.policy != "adaptive" or sequence.submission.probe:
            return None
        rank = (float(sequence.submission.priority), -sequence.total_at, -float(sequence.id))
        return ev.Claim(self._pausable(sequence), rank)

    def _expected_of(self, sequence: Sequence) -> int:
        """Tokens that are set aside for: more of them each time that it was paused, so that it is paused ever less."""
        most = sequence.submission.max_new_tokens
        if self.admission.policy != "adaptive" or not self._pausable(sequence):
            return most
        share = 1.0 - (1.0 - self.admission.covered) / 2 ** min(sequence.paused, 64)
        expected = self.forecast.expected_tokens(most, share, sequence.tokens)
        return min(most, max(expected, sequence.tokens + AHEAD))

    def _reservation(self, sequence: Sequence, expected: int, capacity: Capacity) -> tuple[int, ...]:
        if self.admission.policy == "engine":
            return (0,) * len(capacity.pools)
        submission = sequence.submission
        return capacity.needs(submission.prompt_tokens, expected, submission.sequences)

    def _outgrown(self, sequence: Sequence, stay: Stay) -> None:
        """It has shown tokens: is what is set aside for it still enough?"""
        capacity, most = self.ledger.capacity, sequence.submission.max_new_tokens
        if stay.probe or capacity is None or min(most, sequence.tokens + AHEAD) <= stay.expected:
            return
        stay.expected = self._expected_of(sequence)
        needs = self._reservation(sequence, stay.expected, capacity)
        self.ledger.change(stay.needs, needs)
        stay.needs = needs

    # --- paused, turned back -------------------------------------------------------------------------------------

    def _paused(self, id_: int) -> None:
        """The engine's process stopped it to make room. It waits in its old place, until its old stay is GONE."""
        stay = self.stays.get(id_)
        sequence = None if stay is None else self.sequences.get(stay.sequence)
        if sequence is not None and sequence.stay == id_ and sequence.phase is SequencePhase.RUNNING:
            self._move(sequence, SequencePhase.WAITING)
            sequence.paused += 1
            self.tally.paused += 1
        self._stay_calm()

    def _turned_back(self, stay: Stay) -> None:
        """There was no room for it: what was inside had grown since it was let in."""
        sequence = self.sequences.get(stay.sequence)
        if sequence is not None and sequence.phase is SequencePhase.RUNNING:
            self._move(sequence, SequencePhase.WAITING)
            self.tally.requeued += 1
            if stay.first:  # as if it had never been let in: its bound `queued` goes on
                sequence.admitted_at = None
                self._schedule(sequence)
        self._stay_calm()

    def _stay_calm(self) -> None:
        self.calm_until = self.watch.steps + CALM

    def _calm(self) -> bool:
        """It was full a moment ago, and nobody has left: whoever came in would be paused, or have others paused."""
        return self.watch.steps < self.calm_until and any(not stay.probe for stay in self.stays.values())

    def _has_left(self, stay: Stay) -> None:
        """A stay is GONE. Unless its sequence waits to come in again, that is room for others."""
        sequence = self.sequences.get(stay.sequence)
        if not stay.probe and (sequence is None or sequence.phase is not SequencePhase.WAITING):
            self.calm_until = 0
