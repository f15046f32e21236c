"""Stop strings that begin in what an earlier engine showed of a generation, and end in what this one generates of it.

An engine looks for them in its last `window` tokens, as many as the longest one is encoded to, and withholds these:
before it showed a token it had looked at that and at the `window` after it. So if what was withheld comes again as it
was, there is nothing to find. If it does not (it is sampled anew, or rounded otherwise), a stop string can straddle the
cut, and the engine, which looks at its own tokens only, would miss it. This looks as the engine does (2026.4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final


@final
class CutStops:
    """`shown` are the tokens before the cut, `strings` the stop strings; `window` is in tokens."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], shown: Sequence[int], strings: Iterable[str], window: int
    ) -> None:
        self._decode = decode
        self._strings = tuple(strings)
        self._window = window
        self._left = window - 1  # after so many tokens the engine looks at no less than we do
        self._tail = list(shown[-window:])

    def end_in(self, token_ids: Sequence[int]) -> int | None:
        """How many of `token_ids`, which come next, are left where a stop string ends among them. None: none does."""
        for number, token in enumerate(token_ids[: self._left], 1):
            self._tail = [*self._tail, token][-self._window :]
            if len(self._tail) == self._window and self._found():
                return number
        self._left = max(0, self._left - len(token_ids))
        return None

    def _found(self) -> bool:
        text = self._decode(self._tail)
        return any(string in text for string in self._strings)
