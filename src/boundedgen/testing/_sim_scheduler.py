"""The engine's scheduler, simulated: blocks, chunked prefill, decode, preemption, IGNORED.

The rules are those of openvino-genai 2026.4.1, and tests/conformance holds them to it step by step: a stopped sequence
keeps its blocks until the end of the next step; blocks are taken as tokens are computed; a decoding sequence that lacks
blocks takes them from the latest one behind it; a step that can schedule nothing ignores everybody; one sequence
finishes if `prompt + new - 1` tokens fit.
"""

import zlib
from array import array
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
    """Blocks of `pool` that a request of `tokens` computed tokens holds. Its sequences share what is full of prompt."""
    if tokens <= prompt:
        sequences = 1  # they part with the first token that is not the prompt's
    size = pool.tokens_per_block
    if size is None:
        return sequences * (tokens > 0)
    each = -(-tokens // size)
    shared = prompt // size if tokens > prompt else 0
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
    peak: int = 0  #: the most that `computed` ever was: tokens up to there are computed anew after preemption
    generated: list[int] = field(factory=list)
    stopped: bool = False
    stop_lost: bool = False
    _text: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._text = _digest(self.prompt)

    @property
    def decoding(self) -> bool:
        return self.peak >= len(self.prompt)

    @property
    def left(self) -> int:
        """Tokens of it that could be computed now."""
        return max(max(len(self.prompt), self.peak) - self.computed, 1)

    def reach(self) -> bool:
        """What was scheduled is computed. True if a new token comes of it: not of what was computed once before."""
        fresh = self.computed > self.peak
        self.peak = max(self.peak, self.computed)
        return fresh and self.decoding

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
    usage: float = 0.0  #: of the fullest pool, 0..1, before anything is freed
    tokens: tuple[tuple[int, int], ...] = ()  #: (stay, token)
    finished: tuple[tuple[int, str], ...] = ()  #: (stay, "stop" | "length" | "ignored")
    removed: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


@final
class Scheduler:
    """Stays in the order they were added, and the blocks that they hold."""

    def __init__(
        self, pools: Sequence[PoolFacts], max_num_batched_tokens: int, max_num_seqs: int | None = None
    ) -> None:
        """`max_num_seqs`: bounds those that run where prompts are computed whole, without `dynamic_split_fuse`."""
        self._pools = tuple(pools)
        self._batch, self._most = max_num_batched_tokens, max_num_seqs
        self._stays: dict[int, WorkingStay] = {}
        self._room = 0  # tokens that the step can still take
        self._scheduled: list[int] = []  # stays
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
        return sum(self._held(pool, s) for s in self._stays.values())

    def blocks(self, stay: int) -> dict[str, int]:
        """Blocks that a stay holds, by pool name."""
        s = self._stays[stay]
        return {pool.name: self._held(pool, s) for pool in self._pools}

    def usage(self) -> float:
        return max((self.used(pool) / pool.blocks for pool in self._pools if pool.blocks), default=0.0)

    def step(self) -> StepOutcome:
        """One step: schedule, compute, free. Where prompts are whole, one longer than a batch is a ValueError."""
        self._room, self._scheduled, self._preempted = self._batch, [], []
        if self._most is not None:
            self._prefill_whole(self._most)
        if not self._scheduled:
            self._decode()
        if self._most is None:
            self._prefill()
        usage = self.usage()
        if not self._scheduled:
            return self._ignore_all(usage)
        tokens = self._compute()
        finished = tuple((i, why) for i in self._scheduled if (why := self._stays[i].ending()) is not None)
        return StepOutcome(
            scheduled=tuple(self._scheduled),
            scheduled_tokens=self._batch - self._room,
            usage=usage,
            tokens=tokens,
            finished=finished,
            removed=self._free([i for i, _ in finished]),
            preempted=tuple(self._preempted),
        )

    def _decode(self) -> None:
        """What decodes comes first, in order of arrival. What was preempted before is computed anew here."""
        for s in self._candidates(decoding=True):
            chunk = min(self._room // s.sequences, s.left)
            if chunk and s.stay not in self._preempted and self._make_room(s, chunk):
                self._take(s, chunk, chunk * s.sequences)

    def _prefill(self) -> None:
        """Then prompts, in order of arrival, each as much as the batch and the free blocks take."""
        for s in self._candidates(decoding=False):
            chunk = min(self._room, s.left, *(self._slots(pool, s) for pool in self._pools))
            if chunk and s.stay not in self._preempted:
                self._take(s, chunk, chunk)

    def _prefill_whole(self, most: int) -> None:
        """Whole prompts, in order of arrival, up to the first that finds no room; nothing else is in their step."""
        running = sum(s.decoding for s in self._stays.values())
        for s in self._candidates(decoding=False):
            if s.left > self._batch:
                raise ValueError(f"a prompt of {s.left} tokens is longer than max_num_batched_tokens={self._batch}")
            if running >= most or s.left > min(self._room, *(self._slots(pool, s) for pool in self._pools)):
                return
            self._take(s, s.left, s.left)
            running += 1

    def _candidates(self, *, decoding: bool) -> list[WorkingStay]:
        return [s for s in self._stays.values() if not s.stopped and s.decoding is decoding]

    def _take(self, s: WorkingStay, chunk: int, tokens: int) -> None:
        s.computed += chunk
        self._room -= tokens
        self._scheduled.append(s.stay)

    # blocks

    def _slots(self, pool: PoolFacts, s: WorkingStay) -> int:
        """Tokens of a prompt for which there is room: in its last block, and in free ones."""
        if pool.tokens_per_block is None:
            return s.left if s.computed or self._free_blocks(pool) else 0
        return -s.computed % pool.tokens_per_block + self._free_blocks(pool) * pool.tokens_per_block

    def _make_room(self, s: WorkingStay, chunk: int) -> bool:
        """Preemption: the latest stays behind this one give blocks, also those that are stopped already."""
        while any(self._lacks(pool, s, chunk) for pool in self._pools):
            order = list(self._stays.values())
            victim = next((other for other in reversed(order) if other.computed), s)
            if order.index(victim) <= order.index(s) or not self._preempt(victim, s, chunk):
                return False
        return True

    def _lacks(self, pool: PoolFacts, s: WorkingStay, chunk: int) -> bool:
        needs = self._needs(pool, s, chunk)
        return needs > 0 and needs > self._free_blocks(pool)

    def _preempt(self, victim: WorkingStay, s: WorkingStay, chunk: int) -> bool:
        """It gives the blocks that are needed off its end, if it has more than that; else all. True if that helped."""
        free = min(map(self._free_blocks, self._pools))
        needs = {pool: self._needs(pool, s, chunk) for pool in self._pools}
        left = 0
        if all(self._spares(pool, victim, blocks) for pool, blocks in needs.items()):
            size, blocks = max((pool.tokens_per_block or 0, blocks) for pool, blocks in needs.items())
            left = max(0, victim.computed - (victim.computed - 1) % size - 1 - (blocks - 1) * size)
        victim.computed = left if self._most is None or left >= len(victim.prompt) else 0
        self._preempted.append(victim.stay)
        return min(map(self._free_blocks, self._pools)) > free

    def _spares(self, pool: PoolFacts, victim: WorkingStay, blocks: int) -> bool:
        """It can give so many and keep some. A sequence whose one block is its whole state cannot."""
        return pool.tokens_per_block is not None and (not blocks or self._held(pool, victim) > blocks)

    def _needs(self, pool: PoolFacts, s: WorkingStay, chunk: int) -> int:
        after = blocks_for(pool, s.computed + chunk, len(s.prompt), s.sequences)
        return after - self._held(pool, s)

    def _held(self, pool: PoolFacts, s: WorkingStay) -> int:
        return blocks_for(pool, s.computed, len(s.prompt), s.sequences)

    def _free_blocks(self, pool: PoolFacts) -> int:
        return pool.blocks - self.used(pool)

    # the end of a step

    def _compute(self) -> tuple[tuple[int, int], ...]:
        """A token for each scheduled stay that got beyond what it had computed before, in order of arrival."""
        ready = [s for s in self._stays.values() if s.stay in self._scheduled and s.reach()]
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
