"""How much work the coming step is, at most: what the stamps say of it while it runs, and budgets are measured by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from attrs import define

from boundedgen.abc import Request


@final
@define(eq=False)
class Work:
    """What is left to compute of one request, as far as a loop that only counts steps can know."""

    prompt: int  #: tokens
    sequences: int
    computed: int = 0  #: prompt tokens scheduled so far, at most
    produced: int = 0  #: steps of decoding so far
    over: bool = False  #: stopped or ended: the engine may look at it once more, or leave its share to the others

    @classmethod
    def of(cls, request: Request) -> Work:
        sequences = max(_count(request, "num_beams"), _count(request, "num_return_sequences"))
        return cls(len(request.prompt), sequences)

    def schedule(self, room: int) -> tuple[int, int]:
        """Tokens that the next step schedules of it at most, and those times their context."""
        if self.computed < self.prompt:
            tokens = min(self.prompt - self.computed, room)
            self.computed += tokens
            return tokens, tokens * self.computed
        self.produced += 1
        return self.sequences, self.sequences * (self.prompt + self.produced)


def schedule(works: Iterable[Work], room: int) -> tuple[int, int]:
    """Tokens that the next step schedules of all of them at most, and the sum of them times their context.

    In order of arrival: the engine takes what decodes first, but prompts in their order, so that no prompt has one that
    decodes behind it. It is no bound for a prompt that waits for blocks inside, which none does whose were reserved.
    """
    scheduled = attention = 0
    for work in works:
        tokens, area = work.schedule(max(0, room))
        room -= 0 if work.over else tokens
        scheduled += tokens
        attention += area
    return scheduled, attention


def _count(request: Request, name: str) -> int:
    value = request.config.get(name)
    return value if isinstance(value, int) else 1
