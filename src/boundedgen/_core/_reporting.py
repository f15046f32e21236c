"""What a report of the engine changes."""

from collections.abc import Iterable

from boundedgen._core import _events as ev
from boundedgen._core._admission import AHEAD
from boundedgen._core._phases import SequencePhase, StayPhase
from boundedgen._core._sequences import Sequence
from boundedgen._core._switching import Switching
from boundedgen._core._times import FIRST_TOKEN, NEXT_TOKEN, STEP
from boundedgen._errors import FinishReason as Why

CACHE_TRIES = 3  #: stays that the engine may end for lack of cache before the sequence is given up


class Reporting(Switching):
    def _progressed(self, report: ev.Progress, now: float) -> None:
        if not self.life.up:
            return
        if report.steps - self.watch.steps <= 1:  # of merged ones it is not known which step was in time
            self._expire_before(report.ended, now)
        if report.steps > self.watch.steps:
            self.last_report = report
        if report.rss_bytes is not None:
            self.life.rss_bytes = report.rss_bytes
        self._count_steps(report)
        self.tally.accepted_tokens += report.accepted
        self.tally.proposed_tokens += report.proposed
        self.watch.reported(report, now)
        for id_ in report.taken:
            self._taken(id_)
        self._shown(report.shown(), now)
        for finish in report.finished:
            self._finished(finish, now)
        for id_ in report.stopping:
            self._stop_taken(id_, report.steps - 1, now)
        for id_ in report.paused:
            self._paused(id_)
        for refusal in report.refused:
            self._refused(refusal, now)
        for id_, tokens in report.counted:
            if (stay := self.stays.get(id_)) is not None:
                self._effects.append(ev.Counted(stay.sequence, tokens))
        for release in report.released:
            self._released(release, now)
        if report.held is not None:
            self._reconcile(frozenset(report.held), now)

    def _count_steps(self, report: ev.Progress) -> None:
        """Of those that are merged it is known how long all of them took, and not each."""
        steps = report.steps - self.watch.steps
        if steps > 0:
            self.tally.steps += steps
            self.tally.times.add(STEP, (report.ended - report.began) / steps, steps)

    def _taken(self, id_: int) -> None:
        stay = self.stays.get(id_)
        if stay is not None and not stay.taken:
            stay.taken = True
            self.watch.taken("admit", id_)
            self._let_in(stay)

    def _shown(self, outputs: Iterable[tuple[int, tuple[int, ...], tuple[float, ...]]], now: float) -> None:
        """What all of them have generated: one a running sequence, so that here each line counts.

        Most had their last token in one wake, so that the times between two are few: each is counted once.
        """
        reading = self.clock.at(now)
        since: dict[float, int] = {}  # tokens, by when the one before each was shown
        for id_, token_ids, logprobs in outputs:
            stay = self.stays.get(id_)
            if stay is None or stay.phase is not StayPhase.ADMITTED:  # that of a settled one is not
                self.tally.late_tokens += len(token_ids)
                continue
            sequence = stay.occupant
            before = stay.heard(len(token_ids), now, reading)
            if self.trial is not None:
                self._tried(stay)
            if stay.expected < sequence.tokens + AHEAD:
                self._outgrown(sequence, stay)
            if not stay.probe:
                self.tally.tokens += len(token_ids)
                if before is None:
                    self.tally.times.add(FIRST_TOKEN, now - sequence.submission.submitted_at)
                else:
                    since[before] = since.get(before, 0) + 1
                if len(token_ids) > 1:
                    since[now] = since.get(now, 0) + len(token_ids) - 1
            if self.life.failures:
                self.life.served(now, self._forget_after)
            if sequence.bounds.first_token is not None or sequence.bounds.next_token is not None:
                self._ready.set(sequence.id, sequence.ready_at())
            self._effects.append(ev.Emit(sequence.id, token_ids, logprobs))
        for before, tokens in since.items():
            self.tally.times.add(NEXT_TOKEN, now - before, tokens)

    def _finished(self, finish: ev.Finish, now: float) -> None:
        """The engine ended it by itself, and holds it until the release that follows."""
        stay = self.stays.get(finish.stay)
        if stay is None:
            return
        self.watch.taken("stop", stay.id)  # if one is under way: what has ended is not stopped again
        self.watch.reclaiming(stay.id, self.watch.steps - 1, now)
        if stay.phase is not StayPhase.ADMITTED:
            return
        sequence = self.sequences[stay.sequence]
        self._move(stay, StayPhase.STOPPING)
        stay.longest = max((len(r.token_ids) for r in finish.results), default=None)
        tokens = sequence.tokens + sum(len(r.token_ids) for r in finish.results)
        if tokens > sequence.tokens:
            self.tally.tokens += tokens - sequence.tokens
            sequence.tokens = tokens
            self.life.served(now, self._forget_after)
        if finish.why == "ignored":
            self._lost_to_the_cache(sequence, now)
        elif not tokens:  # what ends it is a token too, and is among them: there is no empty answer
            self._lose(sequence, now, "the engine finished it without a token")
        else:
            if finish.results:  # it has shown nothing before
                self.tally.times.add(FIRST_TOKEN, now - sequence.submission.submitted_at)
            self._settle(sequence, Why(finish.why), now, results=finish.results)

    def _lost_to_the_cache(self, sequence: Sequence, now: float) -> None:
        """One that had shown nothing yet is tried again; any other cannot be continued."""
        sequence.lost += 1
        if sequence.tokens or sequence.lost >= CACHE_TRIES:
            self._settle(sequence, Why.CACHE_EXHAUSTED, now, "the engine ran out of cache blocks")
        else:
            self._move(sequence, SequencePhase.WAITING)  # in its old place, once its old stay is GONE
            self.tally.requeued += 1

    def _stop_taken(self, id_: int, steps: int, now: float) -> None:
        """Also for one that the child stopped at its deadline before we did."""
        stay = self.stays.get(id_)
        if stay is None:
            return
        self.watch.taken("stop", id_)
        self.watch.reclaiming(id_, steps, now)
        if stay.phase is StayPhase.ADMITTED:
            self._move(stay, StayPhase.STOPPING)
            stay.stop_at = now

    def _refused(self, refusal: ev.Refusal, now: float) -> None:
        stay = self.stays.get(refusal.stay)
        if stay is None:
            return
        sequence = self.sequences.get(stay.sequence)
        if refusal.code == ev.NO_ROOM:
            self._turned_back(stay)
        self._gone(stay, 0, 0.0, "refused", now)
        if sequence is not None and refusal.code != ev.NO_ROOM:
            self._settle(sequence, Why.REJECTED, now, refusal.text)

    def _released(self, release: ev.Release, now: float) -> None:
        self.tally.late_tokens += release.late_tokens
        stay = self.stays.get(release.stay)
        if stay is None:
            return
        facts = self.life.facts
        sequence = self.sequences.get(stay.sequence)
        self._gone(stay, release.steps, release.seconds, "" if facts is None else facts.proof, now)
        if sequence is not None and sequence.phase is SequencePhase.RUNNING:
            # Stopped by the child at its deadline, which our own timer has not seen yet; or lost without a word.
            self._lose(sequence, now, "the engine let go of it without an answer")
