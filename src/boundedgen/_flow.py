"""One generation as the driver and its readers share it: what came out so far, how it ended, who waits for it.

The driver only appends and wakes; it never waits for a reader. Readers take what is new since they last looked. Text
is made in the reader's thread.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from boundedgen._completion import Alternative, Chunk, Completion, Reclamation
from boundedgen._core._events import Admit, Emit, Prove, SequenceResult, Settle
from boundedgen._core._sequences import Submission
from boundedgen._door import Place
from boundedgen._errors import FinishReason
from boundedgen._generation_config import after
from boundedgen._scenery import Scenery
from boundedgen._text import TextStream
from boundedgen._wakers import Wakers
from boundedgen.abc import Request

_keys = itertools.count()


class Ending(NamedTuple):
    """What is known of a generation once it is settled, without any text of it. Instants are monotonic."""

    submission: Submission
    reason: str  #: a FinishReason value
    bound: str  #: for DEADLINE: which one
    detail: str
    admitted_at: float | None  #: the first time
    first_token_at: float | None
    settled_at: float
    output_tokens: int  #: of all its sequences
    results: int  #: sequences that came of it
    incarnations: tuple[int, ...]  #: of the engines that it was inside
    resumed: int  #: times that it was taken up again


class Flow:
    """See the module's docstring. `text` makes a fresh stream of text; `now` is monotonic."""

    def __init__(
        self,
        submission: Submission,
        prompt: Sequence[int],
        config: Mapping[str, Any],
        text: Callable[[], TextStream],
        now: Callable[[], float],
        wakers: Callable[[], Wakers] = Wakers,
    ) -> None:
        self.submission = submission
        self.prompt = prompt
        self.config = config
        self.now = now
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.settled: Settle | None = None
        self.reclaimed: Reclamation | None = None
        self.admitted_at: float | None = None
        self.inside = False  #: admitted, and not waiting again since
        self.incarnations: tuple[int, ...] = ()  #: of the engines that it was inside
        self.left: Prove | None = None  #: of the stay that it had when it was last put back
        self.resumed = 0  #: times that it was taken up again after the loss of an engine
        self.first_token_at: float | None = None
        self.settled_at: float | None = None
        self.wakers = wakers()  # whoever waits for the end, or for the proof of release
        self.news_wakers = wakers()  # whoever waits for anything new; woken at every token
        self.place: Place | None = None  #: in the queue; given back when it stops waiting
        self.shares: Sequence[Place] = ()  #: of its owner's and its lease's; given back when it is settled
        self.scenery: Scenery | None = None  #: for a model that sees, in place of `prompt`
        self.prompt_kind = ""  #: "text", "tokens" or "chat"; empty: a probe's
        self.traceparent: str | None = None  #: as the caller gave it
        self.on_end: Callable[[Ending], object] | None = None  #: told by whoever settles it; raises and awaits nothing
        # The reader's side.
        self.reading_since: float | None = None
        self.read_at = submission.submitted_at
        self.patience = float("inf")  #: seconds; the ttl of a lease that reading renews
        self._there_since = submission.submitted_at  # without a pause longer than that
        self.unread_since: float | None = None
        self._readers: dict[int, Callable[[], bool]] = {}  # waiting in a call right now, unless it says: gone
        self._new_text = text
        self._text = text()
        self._taken = 0
        self._spoken: list[str] = []
        self._flushed = False
        self._whole: str | None = None  # all of the text, once it is settled and somebody asked
        self._taking = threading.RLock()  # readers among themselves; the driver never takes it

    # --- the driver's side ---------------------------------------------------------------------------------------

    def admit(self, now: float) -> None:
        self.inside = True
        if self.admitted_at is None:
            self.admitted_at = now
        self.stop_waiting()

    def request(self, effect: Admit) -> Request:
        """What the engine is asked for; one that is taken up again, for what is left of it."""
        self.resumed, shown = effect.resumed, len(self.token_ids)
        if effect.incarnation not in self.incarnations:
            self.incarnations = (*self.incarnations, effect.incarnation)
        if self.scenery is not None:
            text, images, tokens = self.scenery.text, self.scenery.images, len(self.scenery)
            asked = (effect.stay, (), self.config, effect.deadline, 0, effect.claim, effect.followed)
            return Request(*asked, text, images, tokens)
        if not shown:
            return Request(effect.stay, self.prompt, self.config, effect.deadline, 0, effect.claim, effect.followed)
        prompt = [*self.prompt, *self.token_ids]
        left = after(self.config, shown, effect.resumed + effect.paused)
        return Request(effect.stay, prompt, left, effect.deadline, shown, effect.claim, effect.followed)

    def wait_again(self, effect: Prove, admitted_at: float | None) -> None:
        """The engine let go of it, and it is not over: that is no reclamation yet. `admitted_at`: None if it was turned
        back before it was inside for the first time."""
        self.inside, self.left, self.admitted_at = False, effect, admitted_at

    def stop_waiting(self) -> None:
        if self.place is not None:
            self.place.back()

    def give_back(self) -> None:
        """What the door lent."""
        self.stop_waiting()
        for share in self.shares:
            share.back()

    def emit(self, effect: Emit, now: float) -> None:
        if self.first_token_at is None:
            self.first_token_at = now
            if self.scenery is not None:
                self.scenery.forget()
        if not self._readers and (self.unread_since is None or not self.untaken):
            self.unread_since = now  # before the tokens: a reader that takes them says last that it did
        if effect.logprobs:
            self.logprobs.extend(effect.logprobs)
        self.token_ids.extend(effect.token_ids)
        self.news_wakers.wake()

    def inherit(self, other: "Flow") -> list[tuple[Place, Place]]:
        """What that one, which it supersedes, still has at the door and this one could not take: to whom, from whom."""
        mine, theirs = self.place, other.place
        moved = []
        if mine is not None and theirs is not None and not mine.taken and mine.take_place_of(theirs):
            moved.append((mine, theirs))
        lacking = [share for share in self.shares if not share.taken]
        return moved + [(share, one) for share in lacking for one in other.shares if share.take_from(one)]

    def take_back(self, moved: list[tuple[Place, Place]]) -> None:
        """It is not superseded after all, and has again what it needs of what it lent."""
        for place, mine in moved:
            mine.take_from(place)
        if self.admitted_at is not None:  # looked at afterwards: whoever ends it meanwhile gives back what it has then
            self.stop_waiting()
        if self.settled is not None:
            self.give_back()

    def settle(self, effect: Settle, now: float) -> None:
        if effect.results and not self.token_ids:
            self.logprobs.extend(effect.results[0].logprobs)
            self.token_ids.extend(effect.results[0].token_ids)
            self.first_token_at = now
        self.settled_at = now
        self.prompt = ()  # it is never admitted again
        if self.scenery is not None:
            self.scenery.forget()
        self.settled = effect
        self.give_back()
        if self.on_end is not None:  # before anybody hears of it: what is told of it is on its way by then
            tell, self.on_end = self.on_end, None  # which knows more than a handle that is kept should
            tell(self.ending())
        self.news_wakers.wake()
        self.wakers.wake()

    def ending(self) -> Ending:
        """Once it is settled."""
        settled = self.settled
        assert settled is not None
        assert self.settled_at is not None
        of_all = sum(len(result.token_ids) for result in settled.results)
        return Ending(
            submission=self.submission,
            reason=settled.reason,
            bound=settled.bound,
            detail=settled.detail,
            admitted_at=self.admitted_at,
            first_token_at=self.first_token_at,
            settled_at=self.settled_at,
            output_tokens=of_all or len(self.token_ids),
            results=len(settled.results) or 1,
            incarnations=self.incarnations,
            resumed=self.resumed,
        )

    def counted(self, tokens: int) -> None:
        """The engine's own count of its prompt, where another was expected."""
        if self.scenery is not None:
            self.scenery.counted(tokens)

    def prove(self, effect: Prove) -> None:
        self.reclaimed = Reclamation(steps=effect.steps, seconds=effect.seconds, proof=effect.proof)
        self.wakers.wake()

    def neglected_since(self) -> float | None:
        """Since when its stream, once begun, has text that nobody took; None: it has none."""
        since = self.unread_since
        if self.reading_since is None or since is None or self._attended() or not self.untaken:
            return None
        return max(since, self.read_at)  # it was there until then, be it only to wait

    def presence(self, now: float) -> tuple[float, float]:
        """From when to when somebody was there, with no pause longer than `patience`; one who waits is there now."""
        return self._there_since, now if self._attended() else self.read_at

    def _attended(self) -> bool:
        """Somebody waits. A coroutine whose loop was closed does not, though nothing told it so."""
        return bool(self._readers) and any(not gone() for gone in list(self._readers.values()))

    # --- the readers' side ---------------------------------------------------------------------------------------

    @property
    def untaken(self) -> bool:
        return len(self.token_ids) > self._taken

    @property
    def news(self) -> bool:
        """There is something to take, or an end to be told."""
        return self.settled is not None or self.untaken

    @contextlib.contextmanager
    def reader(self, gone: Callable[[], bool] = bool) -> Iterator[None]:
        """Whoever waits inside is there, unless `gone()`: that renews an implicit lease; nothing is held against it."""
        key = next(_keys)
        self._here()
        self._readers[key] = gone
        try:
            yield
        finally:
            self.read_at = self.now()
            self._readers.pop(key, None)

    def begin_reading(self) -> None:
        self._here()
        self.reading_since = self.read_at

    def _here(self) -> None:
        """Somebody is there. After too long a pause this is a new beginning, which saves no lease that was over."""
        now = self.now()
        if not self._readers and now - self.read_at > self.patience:
            self._there_since = now
        self.read_at = now

    @property
    def done(self) -> bool:
        return self.settled is not None

    def take(self) -> Chunk | None:
        """What is new for the one stream; None when nothing is (any more, if it is settled)."""
        with self._taking:
            return self._take()

    def _take(self) -> Chunk | None:
        over = self.settled is not None  # read before the tokens: after it no more can come
        self._here()
        self.unread_since = None
        end = len(self.token_ids)
        ids = tuple(self.token_ids[self._taken : end])
        logprobs = tuple(self.logprobs[self._taken : end])
        self._taken = end
        text = self._text.feed(ids) if ids else ""
        if over and not self._flushed:
            self._flushed = True
            text += self._text.flush(stopped=self._stopped_by_string(self.token_ids))
        if not ids and not text:
            return None
        self._spoken.append(text)
        return Chunk(text=text, token_ids=ids, logprobs=logprobs if self.config.get("logprobs") else ())

    def text(self) -> str:
        """All text so far: what was streamed, and what was not. It does not take anything from the stream."""
        with self._taking:
            if self._flushed:
                return "".join(self._spoken)
            if self._whole is not None:
                return self._whole
            whole = self._new_text()
            over = self.settled is not None
            text = whole.feed(self.token_ids[:])
            if over:
                text = self._whole = text + whole.flush(stopped=self._stopped_by_string(self.token_ids))
            return text

    def _stopped_by_string(self, ids: Sequence[int]) -> bool:
        """The engine ended it at a stop string, and not at a stop token."""
        if (
            self.settled is None
            or self.settled.reason != FinishReason.STOP.value
            or not self.config.get("stop_strings")
        ):
            return False
        ends = {self.config.get("eos_token_id"), *self.config.get("stop_token_ids", ())}
        return not ids or ids[-1] not in ends

    def completion(self) -> Completion:
        """The output so far, or all of it."""
        settled = self.settled
        submission, now = self.submission, self.now()
        results = () if settled is None else settled.results
        with_logprobs = bool(self.config.get("logprobs"))
        ids = tuple(self.token_ids)
        return Completion(
            text=self.text(),
            token_ids=ids,
            finish_reason=None if settled is None else FinishReason(settled.reason),
            prompt_tokens=submission.prompt_tokens,
            completion_tokens=len(ids),
            queued_s=_since(submission.submitted_at, self.admitted_at),
            first_token_s=_since(submission.submitted_at, self.first_token_at),
            total_s=(now if self.settled_at is None else self.settled_at) - submission.submitted_at,
            resumed=self.resumed,
            seed=self.config["rng_seed"] if self.config.get("do_sample") else None,
            score=results[0].score if results else None,
            logprobs=tuple(self.logprobs[: len(ids)]) if with_logprobs else (),
            alternatives=tuple(self._alternative(r, with_logprobs) for r in results[1:]),
            id=submission.id,
            label=submission.label,
        )

    def _alternative(self, result: SequenceResult, with_logprobs: bool) -> Alternative:
        text, ids = self._new_text(), result.token_ids
        stopped = len(ids) < self.submission.max_new_tokens and self._stopped_by_string(ids)
        return Alternative(
            text=text.feed(ids) + text.flush(stopped=stopped),
            token_ids=ids,
            score=result.score,
            logprobs=result.logprobs if with_logprobs else (),
        )


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start
