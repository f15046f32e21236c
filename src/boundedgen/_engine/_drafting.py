"""Engines that draft: several tokens a step, of which some may be candidates that nobody has verified.

Measured on 2026.4.1: what comes with a step is verified, and is cut by the engine at an end and at max_new_tokens. What
comes after a stop, and with a request that is IGNORED, is not: it can hold candidates, and -1 where there was none. So
that is dropped, and not counted either. Stop strings are looked for here: with drafts the engine's own search can make
`step` raise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, final

from attrs import define

from boundedgen._engine._defect import Defect
from boundedgen._kinds import Chosen

_SLACK = 16  #: tokens without text of their own that may lie within a stop string


@final
@define(eq=False)
class Drafts:
    """Of an engine: drafted tokens that were taken, and of how many, since somebody asked."""

    accepted: int = 0
    proposed: int = 0

    def take(self) -> tuple[int, int]:
        found = self.accepted, self.proposed
        self.accepted = self.proposed = 0
        return found


@final
class StopStrings:
    """Looks for `strings` in the text of a growing list of ids, with `shown` before them."""

    def __init__(self, decode: Callable[[Sequence[int]], str], strings: Iterable[str], shown: Sequence[int]) -> None:
        self._decode = decode
        self._strings = tuple(strings)
        self._window = max(len(string.encode()) for string in self._strings) + _SLACK  # a token has a byte at least
        self._tail = list(shown[-self._window :])

    def end_in(self, token_ids: Sequence[int]) -> int | None:
        """How many of `token_ids`, which come next, are left where a stop string ends among them. None: none does."""
        tail = self._tail
        if self._in([*tail, *token_ids]):
            for number in range(1, len(token_ids) + 1):
                if self._in([*tail, *token_ids[:number]]):
                    return number
        self._tail = [*tail, *token_ids][-self._window :]
        return None

    def _in(self, ids: Sequence[int]) -> bool:
        text = self._decode(ids)
        return any(string in text for string in self._strings)


@final
@define(eq=False)
class Drafted:
    """Of one request: which of the tokens that came with a step are its output."""

    drafts: Drafts
    most: int  #: candidates a step
    left: int  #: tokens
    ends: Collection[int]  #: token ids that end it
    stops: StopStrings | None
    began: bool = False

    def cut(self, token_ids: Sequence[int], *, lost: bool) -> tuple[int, str]:
        """How many of them count, and why it ends there, if it has not ended by itself. `lost`: it was IGNORED."""
        if lost:
            return 0, ""
        verified = next((at for at, token in enumerate(token_ids) if token < 0), len(token_ids))
        kept = min(verified, self.left)
        kept = next((at + 1 for at, token in enumerate(token_ids[:kept]) if token in self.ends), kept)
        stopped = None if self.stops is None else self.stops.end_in(token_ids[:kept])
        self._count(kept if stopped is None else stopped)
        if stopped is not None:
            return stopped, "stop"
        if kept == len(token_ids):
            return kept, ""
        if not self.left:
            return kept, "length"  # more than was asked for: the engine has not cut it
        return kept, "ignored" if kept == verified else "stop"  # what was not verified has no continuation

    def _count(self, kept: int) -> None:
        if self.began and kept:  # the first token comes with the prompt, and nothing is drafted for it
            self.drafts.accepted += kept - 1
            self.drafts.proposed += min(self.most, self.left - 1)
        self.began = self.began or kept > 0
        self.left -= kept


def engine_properties(chosen: Chosen | None, scheduler: Mapping[str, Any], blocks: int | None) -> dict[str, Any]:
    """What the engine's constructor takes for this kind. `scheduler`: its own; `blocks`: of the draft's pool."""
    import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

    if chosen is None:
        return {}
    if not chosen.kind.extra_pool:
        return {chosen.kind.name: True}
    config = genai.SchedulerConfig()
    for name, value in {**scheduler, "num_kv_blocks": blocks, "enable_prefix_caching": False}.items():
        setattr(config, name, value)
    settings = chosen.settings
    properties = dict(settings["properties"])
    model = genai.draft_model(settings["models_path"], settings["device"], scheduler_config=config, **properties)
    return {"draft_model": model}


def other_vocabulary(models_path: str, draft_path: str) -> Defect | None:
    """What the two tokenizers say of each other; None: they have the same words, or do not tell."""
    import openvino_genai as genai

    mine, drafts = (genai.Tokenizer(path).get_vocab() for path in (models_path, draft_path))
    if not mine or not drafts or mine == drafts:
        return None
    other = sum(mine.get(word) != number for word, number in drafts.items())
    return Defect(
        f"the draft model {draft_path} has another vocabulary than the model ({len(drafts)} and {len(mine)} tokens, "
        f"{other} of them others).",
        "Give one that was made for this model, with the same tokenizer.",
    )
