"""What callers see of their generations: one answer each, in time, and streams that never take anything back."""

from __future__ import annotations

import threading
import time
from collections import Counter

from attrs import Factory, define, frozen

import boundedgen as b


@frozen
class Answer:
    at: float  #: monotonic
    late: float  #: seconds after its deadline that the caller had it; below 0: before it
    settled_late: float  #: likewise, that the pipeline had settled it
    resumed: int


@define
class Streams:
    """Filled by all callers of a run. Their requests are greedy, on an engine that computes in f32 throughout."""

    ends: Counter[str] = Factory(Counter)
    answers: list[Answer] = Factory(list)
    broken: list[str] = Factory(list)
    compared: int = 0  #: answers that had a token in common with an earlier one to the same prompt
    continued: int = 0  #: of streams read to their end, those that more than one engine has worked on
    _longest: dict[tuple[int, ...], tuple[int, ...]] = Factory(dict)  #: what a prompt was answered with so far
    _lock: threading.Lock = Factory(threading.Lock)

    def follow(self, generation: b.Generation, prompt: tuple[int, ...], way: float, asked_at: float) -> None:
        """To its end, in one piece or as a stream, or a little of it."""
        shown: list[int] = []
        try:
            with generation:
                if way < 0.4:
                    next(iter(generation), None)
                    generation.cancel()
                elif way < 0.7:
                    for chunk in generation:
                        shown += chunk.token_ids
                completion = generation.result()
        except b.GenerationError:
            completion = generation.partial
        now, total = time.monotonic(), generation.bounds.total
        assert total is not None
        with self._lock:
            self.answers.append(Answer(now, now - asked_at - total, completion.total_s - total, completion.resumed))
            self.ends[str(completion.finish_reason)] += 1
            self.look(completion, prompt, tuple(shown), generation.max_new_tokens, streamed=0.4 <= way < 0.7)

    def look(
        self, completion: b.Completion, prompt: tuple[int, ...], shown: tuple[int, ...], wanted: int, *, streamed: bool
    ) -> None:
        """Is it what the stream has shown, as long as it was to be, and what the same prompt was answered before?"""
        ids, whole = completion.token_ids, completion.finish_reason is b.FinishReason.LENGTH
        if whole and len(ids) != wanted:
            self.broken.append(f"{len(ids)} tokens of {wanted}, resumed {completion.resumed}")
        if streamed and (shown != ids if whole else shown != ids[: len(shown)]):
            self.broken.append(f"a stream showed {shown}, the answer is {ids}, resumed {completion.resumed}")
        self.continued += streamed and completion.resumed > 0
        before = self._longest.get(prompt, ())
        common = min(len(before), len(ids))
        self.compared += common > 0
        if before[:common] != ids[:common]:
            self.broken.append(f"another stream than before for {prompt}, resumed {completion.resumed}")
        if len(ids) > len(before):
            self._longest[prompt] = ids
