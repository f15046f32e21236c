"""How much work the coming step is, at most: what the stamps say of it while it runs, and budgets are measured by."""

from __future__ import annotations

from typing import final

from attrs import define

from boundedgen.abc import Request


@final
@define(eq=False)
class _Work:
    """What is left to compute of one request, as far as a loop that only counts steps can know."""

    prompt: int  #: tokens
    sequences: int
    computed: int = 0  #: prompt tokens scheduled so far, at most
    decodes_since: int = 0  #: step
    over: bool = False  #: stopped or ended: the engine may look at it once more, or leave its share to the others


@final
class Workload:
    """Of all that are inside. `room`: tokens that a step schedules at most.

    Those that decode are kept as sums, so that a step costs the same however many they are.
    """

    def __init__(self, room: int, each: int = 1) -> None:
        """`each`: tokens that one sequence takes of a step while it decodes, its candidates included."""
        self._room, self._each = room, each
        self._steps = 0
        self._prompts: dict[int, _Work] = {}  # not all computed; in order of arrival
        self._decoding: dict[int, _Work] = {}
        self._tokens = 0  # that those schedule in each step
        self._context = 0  # those times their context, in the last step
        self._spared = 0  # of those tokens: by whom the engine may give to others

    def enter(self, stay: int, request: Request) -> None:
        self._prompts[stay] = _Work(request.prompt_tokens, sequences_of(request))

    def over(self, stay: int) -> None:
        """It was stopped, or has ended."""
        work = self._prompts.get(stay) or self._decoding.get(stay)
        if work is not None and not work.over:
            work.over = True
            self._spared += work.sequences if stay in self._decoding else 0

    def gone(self, stay: int) -> None:
        if self._prompts.pop(stay, None) is None and (work := self._decoding.pop(stay, None)) is not None:
            self._tokens -= work.sequences
            self._context -= work.sequences * (work.prompt + self._steps - work.decodes_since)
            self._spared -= work.sequences if work.over else 0

    def shown(self, stay: int, tokens: int) -> None:
        """It brought several tokens with one step, so that its context has grown by as many."""
        if (work := self._decoding.get(stay)) is not None:
            work.prompt += tokens - 1
            self._context += work.sequences * (tokens - 1)

    def schedule(self) -> tuple[int, int]:
        """Tokens that the next step schedules of all of them at most, and the sum of them times their context.

        The engine takes what decodes first, then prompts in the order of their arrival. It is no bound for a prompt
        that waits for blocks inside, which none does whose were reserved.
        """
        self._steps += 1
        self._context += self._tokens
        tokens, context = self._each * self._tokens, self._each * self._context
        if self._prompts:
            more, area = self._prefill(self._room - tokens + self._each * self._spared)
            tokens, context = tokens + more, context + area
        return tokens, context

    def _prefill(self, room: int) -> tuple[int, int]:
        scheduled = attention = 0
        for stay, work in list(self._prompts.items()):
            tokens = min(work.prompt - work.computed, max(0, room))
            work.computed += tokens
            room -= 0 if work.over else tokens
            scheduled += tokens
            attention += tokens * work.computed
            if work.computed >= work.prompt:
                self._decodes(stay, work)
        return scheduled, attention

    def _decodes(self, stay: int, work: _Work) -> None:
        """From the next step on."""
        del self._prompts[stay]
        self._decoding[stay] = work
        work.decodes_since = self._steps
        self._tokens += work.sequences
        self._context += work.sequences * work.prompt
        self._spared += work.sequences if work.over else 0


def sequences_of(request: Request) -> int:
    """That the engine computes for it at once."""
    return max(_count(request, "num_beams"), _count(request, "num_return_sequences"))


def _count(request: Request, name: str) -> int:
    value = request.config.get(name)
    return value if isinstance(value, int) else 1
