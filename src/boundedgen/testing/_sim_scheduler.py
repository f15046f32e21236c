"""The engine's scheduler, simulated: blocks, chunked prefill, decode, preemption, IGNORED.

The rules are those measured of openvino-genai 2026.4.1 (engine-facts): a stopped sequence keeps its blocks until the
end of the next step; blocks are taken as tokens are computed; a step that can schedule nothing ignores everybody;
one sequence finishes if `prompt + new - 1` tokens fit.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import final

from attrs import define, field, frozen

from boundedgen._core._events import PoolFacts

__all__ = ["Scheduler", "StepOutcome", "WorkingStay", "next_token"]


_SPECIAL = 3  # ids below are special tokens; they are never generated, but for eos at its scripted place


def _digest(tokens: Sequence[int], before: int = 0) -> int:
    return zlib.crc32(array("q", tokens).tobytes(), before)


def next_token(tokens: Sequence[int], vocab_size: int) -> int:
    """The token that follows `tokens`: a pure function of them, so that a continued text goes on as it would have."""
    return _SPECIAL + _digest(tokens) % (vocab_size - _SPECIAL)


def blocks_for(pool: PoolFacts, tokens: int, prompt: int, sequences: int) -> int:
    """Blocks of `pool` that `sequences` of `tokens` computed tokens hold; KV blocks full of prompt are shared."""
    if tokens == 0:
        return 0
    size = pool.tokens_per_block
    if size is None:
        return sequences
    each = -(-tokens // size)
    if pool.name != "kv":
        return sequences * each
    shared = prompt // size if tokens > prompt else each
    return shared + sequences * (each - shared)


@final
@define(eq=False)
class WorkingStay:
    """A request inside the scheduler."""

    stay: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    sequences: int = 1
    natural_length: int | None = None  #: eos comes as this token, counted from 1
    eos_token_id: int = 2
    vocab_size: int = 256
    computed: int = 0  #: tokens whose keys are in the cache
    generated: list[int] = field(factory=list)
    stopped: bool = False
    stop_lost: bool = False
    _text: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._text = _digest(self.prompt)

    @property
    def context(self) -> int:
        return len(self.prompt) + len(self.generated)

    @property
    def decoding(self) -> bool:
        return self.computed >= len(self.prompt) and self.context - self.computed == 1

    def generate(self) -> int:
        """Append the next token and return it."""
        last = self.natural_length is not None and len(self.generated) + 1 >= self.natural_length
        token = self.eos_token_id if last else _SPECIAL + self._text % (self.vocab_size - _SPECIAL)
        self._text = _digest((token,), self._text)
        self.generated.append(token)
        return token

    def ending(self) -> str | None:
        """Why it is finished: "stop", "length" or None while it is not."""
        if self.natural_length is not None and len(self.generated) >= self.natural_length:
            return "stop"
        return "length" if len(self.generated) >= self.max_new_tokens else None


@final
@frozen
class StepOutcome:
    """What one step did. `removed`: stays the scheduler let go of at its end, whatever the reason."""

    scheduled: tuple[int, ...] = ()  #: stays
    scheduled_tokens: int = 0
    attention: int = 0  #: sum of scheduled tokens times context
    usage: float = 0.0  #: of the fullest pool, 0..1, before anything is freed
    tokens: tuple[tuple[int, int], ...] = ()  #: (stay, token)
    finished: tuple[tuple[int, str], ...] = ()  #: (stay, "stop" | "length" | "ignored")
    removed: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


@final
class Scheduler:
    """Stays in the order they were added, and the blocks that they hold."""

    def __init__(self, pools: Sequence[PoolFacts], max_num_batched_tokens: int) -> None:
        self._pools = tuple(pools)
        self._batch = max_num_batched_tokens
        self._stays: dict[int, WorkingStay] = {}
        self._preempted: list[int] = []

    def __contains__(self, stay: int) -> bool:
        return stay in self._stays

    def __len__(self) -> int:
        return len(self._stays)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._stays))

    def add(self, stay: WorkingStay) -> None:
        """The stay waits for the next step. A duplicate id is a ValueError: the real engine would be poisoned."""
        if stay.stay in self._stays:
            raise ValueError(f"stay {stay.stay} is in the engine already")
        self._stays[stay.stay] = stay

    def stop(self, stay: int) -> None:
        """Flag it: it is not scheduled any more and leaves at the end of the next step."""
        self._stays[stay].stopped = not self._stays[stay].stop_lost

    def lose_stops(self, stay: int) -> None:
        """A stop of this stay has no effect from now on."""
        self._stays[stay].stop_lost = True

    def forget(self, stay: int) -> None:
        """Drop it and its blocks."""
        del self._stays[stay]

    def used(self, pool: PoolFacts) -> int:
        """Blocks of `pool` in use."""
        return sum(self._held(pool, s, s.computed) for s in self._stays.values())

    def blocks(self, stay: int) -> dict[str, int]:
        """Blocks that a stay holds, by pool name."""
        s = self._stays[stay]
        return {pool.name: self._held(pool, s, s.computed) for pool in self._pools}

    def usage(self) -> float:
        return max((self.used(pool) / pool.blocks for pool in self._pools if pool.blocks), default=0.0)

    def step(self) -> StepOutcome:
        """One step: schedule, compute, free."""
        self._preempted = []
        chunks = self._schedule()
        usage = self.usage()
        if not chunks:
            return self._ignore_all(usage)
        tokens = self._compute(chunks)
        finished = tuple((i, why) for i in chunks if (why := self._stays[i].ending()) is not None)
        removed = self._free([i for i, _ in finished])
        return StepOutcome(
            scheduled=tuple(chunks),
            scheduled_tokens=sum(chunk for chunk, _ in chunks.values()),
            attention=sum(chunk * context for chunk, context in chunks.values()),
            usage=usage,
            tokens=tokens,
            finished=finished,
            removed=removed,
            preempted=tuple(self._preempted),
        )

    def _schedule(self) -> dict[int, tuple[int, int]]:
        """Decode first, then prompts, in order of arrival: stay -> (scheduled tokens, context after them)."""
        chunks: dict[int, tuple[int, int]] = {}
        budget = self._batch
        for decoding in (True, False):
            for s in tuple(self._stays.values()):
                if s.stopped or s.stay in chunks or s.decoding is not decoding or s.stay in self._preempted:
                    continue
                chunk = self._decode(s, budget, chunks) if decoding else self._prefill(s, budget)
                if chunk:
                    s.computed += chunk
                    chunks[s.stay] = (chunk * s.sequences if decoding else chunk, s.computed)
                    budget -= chunks[s.stay][0]
        return chunks

    def _decode(self, s: WorkingStay, budget: int, chunks: dict[int, tuple[int, int]]) -> int:
        if budget < s.sequences:
            return 0
        while not self._fits(s, s.computed + 1):
            victim = self._victim(s, chunks)
            if victim is None:
                return 0
            victim.computed = 0
            self._preempted.append(victim.stay)
        return 1

    def _victim(self, s: WorkingStay, chunks: dict[int, tuple[int, int]]) -> WorkingStay | None:
        """The latest stay that is not in this step yet. Preemption by recomputation: it loses all its blocks."""
        for other in reversed(self._stays.values()):
            if other is not s and other.computed and not other.stopped and other.stay not in chunks:
                return other
        return None

    def _prefill(self, s: WorkingStay, budget: int) -> int:
        """As much of the prompt as the batch and the free blocks take."""
        chunks = range(1, min(s.context - s.computed, budget) + 1)
        return bisect_left(chunks, True, key=lambda chunk: not self._fits(s, s.computed + chunk))

    def _fits(self, s: WorkingStay, computed: int) -> bool:
        return all(
            self._held(pool, s, computed) - self._held(pool, s, s.computed) <= pool.blocks - self.used(pool)
            for pool in self._pools
        )

    def _held(self, pool: PoolFacts, s: WorkingStay, computed: int) -> int:
        return blocks_for(pool, computed, len(s.prompt), s.sequences)

    def _compute(self, chunks: dict[int, tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """A token for each scheduled stay whose whole context is computed."""
        ready = (s for s in map(self._stays.__getitem__, chunks) if s.computed == s.context)
        return tuple((s.stay, s.generate()) for s in ready)

    def _free(self, finished: list[int]) -> tuple[int, ...]:
        gone = tuple(i for i, s in self._stays.items() if s.stopped or i in finished)
        for i in gone:
            del self._stays[i]
        return gone

    def _ignore_all(self, usage: float) -> StepOutcome:
        """Nothing could be scheduled: everybody is set IGNORED and leaves. An idle step is one without anybody."""
        finished = tuple((i, "ignored") for i, s in self._stays.items() if not s.stopped)
        return StepOutcome(usage=usage, finished=finished, removed=self._free([i for i, _ in finished]))
