"""Reservation: what a sequence needs of every pool, whether it can ever fit, whether it fits now."""

from collections.abc import Mapping

from attrs import define, evolve, field, frozen

from boundedgen._core._events import EngineFacts, PoolFacts

STEPS = 2  #: that the engine's process looks ahead: a stop frees only at the end of the next step
AHEAD = STEPS + 2  #: tokens that a reservation is ahead of what was heard of: reports come a step or two late
CALM = 32  #: steps after a pause in which nobody is let in, unless somebody leaves: it was full


def blocks_needed(tokens_per_block: int | None, tokens: int, sequences: int, ahead: int = 0) -> int:
    """Blocks of one pool for `sequences` sequences of `tokens` tokens each (engine-facts: prompt + new - 1).

    `ahead`: what each of them needs on top, as in `PoolFacts`.
    """
    each = 1 + ahead if tokens_per_block is None else -(-(tokens + ahead) // tokens_per_block)
    return sequences * each


@frozen
class Capacity:
    """What the pools of an engine can hold, without the probe's share. Shared with callers' threads as it is."""

    pools: tuple[PoolFacts, ...]
    running_max: int

    @classmethod
    def of(cls, facts: EngineFacts, running_max: int | None) -> "Capacity":
        pools = tuple(evolve(p, blocks=p.blocks - facts.probe_blocks.get(p.name, 0)) for p in facts.pools)
        return cls(pools, min(facts.running_max, running_max or facts.running_max))

    def needs(self, prompt_tokens: int, max_new_tokens: int, sequences: int) -> tuple[int, ...]:
        """Blocks by pool, in the order of `pools`."""
        tokens = max(1, prompt_tokens + max_new_tokens - 1)
        return tuple([blocks_needed(p.tokens_per_block, tokens, sequences, p.ahead) for p in self.pools])

    def lacking(self, needs: tuple[int, ...]) -> Mapping[str, tuple[int, int]]:
        """Pools that can never hold `needs`: name -> (needed, available). Empty: it fits an empty engine."""
        return {p.name: (need, p.blocks) for p, need in zip(self.pools, needs, strict=True) if need > p.blocks}


@define
class Ledger:
    """What is reserved of the capacity. A reservation is all or nothing, in every pool."""

    capacity: Capacity | None = None
    reserved: list[int] = field(factory=list)
    held: int = 0
    probe_held: bool = False

    def open(self, capacity: Capacity) -> None:
        """A new incarnation: nothing of it is reserved yet."""
        assert self.held == 0, "stays of an earlier incarnation are still held"
        assert not any(self.reserved)
        assert not self.probe_held
        self.capacity = capacity
        self.reserved = [0] * len(capacity.pools)

    def full(self) -> bool:
        """There is no slot, whatever somebody may need."""
        return self.capacity is None or self.held >= self.capacity.running_max

    def fits(self, needs: tuple[int, ...]) -> bool:
        capacity = self.capacity
        if capacity is None or self.held >= capacity.running_max:
            return False
        for reserved, need, pool in zip(self.reserved, needs, capacity.pools, strict=True):
            if reserved + need > pool.blocks:
                return False
        return True

    def reserve(self, needs: tuple[int, ...]) -> None:
        assert self.fits(needs)
        self.held += 1
        self.reserved = [r + n for r, n in zip(self.reserved, needs, strict=True)]

    def change(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """Of one that is inside and needs more than was expected. All together can then be more than there is: that
        the blocks in use are not is the doing of the engine's process, which pauses somebody before."""
        self.reserved = [r - o + n for r, o, n in zip(self.reserved, old, new, strict=True)]

    def give_back(self, needs: tuple[int, ...]) -> None:
        self.held -= 1
        self.reserved = [r - n for r, n in zip(self.reserved, needs, strict=True)]
        assert self.held >= 0
        assert min(self.reserved, default=0) >= 0
