"""That the cache never overflows, with more inside than could all go on to their ends: who is paused, who has room.

Looked at before every step, by the engine's own loop, which alone knows what is inside. A stop frees only at the end
of the next step. So whoever is inside now must fit in the step after that one, each grown by STEPS tokens; if that is
more than a pool has, the least urgent are stopped now, and are gone by then. And the next step fits, since it was the
step after the next one when the guard looked last, but for newcomers: these are let in only if they fit beside all
that still holds anything. What cannot be stopped and continued counts with all that it may ever need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from attrs import define

from boundedgen._core._admission import STEPS, Capacity
from boundedgen._core._events import Claim, EngineFacts
from boundedgen._engine._load import sequences_of
from boundedgen.abc import Request

_Needs = tuple[int, ...]


@final
@define(eq=False)
class _Stake:
    """What one stay holds of the pools, as far as a loop that only counts can know: never less than it does."""

    claim: Claim
    prompt: int
    new: int
    sequences: int
    hides: bool  #: with stop strings the engine has tokens that it does not show
    tokens: int = 0  #: generated, at most
    steps_since: int | None = None  #: that have returned since it was stopped or seen ended

    @classmethod
    def of(cls, request: Request, claim: Claim) -> _Stake:
        new, hides = int(request.config["max_new_tokens"]), bool(request.config.get("stop_strings"))
        return cls(claim, request.prompt_tokens, new, sequences_of(request), hides)

    def needs(self, capacity: Capacity, steps: int) -> _Needs:
        """Blocks by pool that it holds after so many more steps, at most."""
        most = self.new
        if self.claim.pausable:
            most = min(self.new, max(1, self.tokens + steps))
        return capacity.needs(self.prompt, most, self.sequences)


@final
class Guard:
    """Of one engine. Only stays with a claim count: the blocks of all others are set aside."""

    def __init__(self, facts: EngineFacts) -> None:
        self._capacity = Capacity.of(facts, None)
        self._blocks = tuple(pool.blocks for pool in self._capacity.pools)
        self._late_proof = facts.proof != "perf_metrics"  # the engine frees before it can be seen that it has
        self._stakes: dict[int, _Stake] = {}
        self._counted: dict[int, _Stake] = {}  # those of which steps are counted: they have left, or hide tokens
        self._span = min(pool.tokens_per_block or math.inf for pool in self._capacity.pools)  # steps
        self._sure: float = 0  # steps for which nobody has to be paused, unless somebody comes in

    # --- what happens --------------------------------------------------------------------------------------------

    def enter(self, request: Request) -> None:
        if request.claim is not None:
            stake = self._stakes[request.stay] = _Stake.of(request, request.claim)
            if stake.hides:
                self._counted[request.stay] = stake
            self._sure = 0

    def shown(self, stay: int, tokens: int) -> None:
        if (stake := self._stakes.get(stay)) is not None and not stake.hides:
            stake.tokens += tokens

    def leaves(self, stay: int) -> None:
        """It was stopped, or has ended."""
        if (stake := self._stakes.get(stay)) is not None:
            stake.steps_since = 0
            self._counted[stay] = stake

    def gone(self, stay: int) -> None:
        self._stakes.pop(stay, None)
        self._counted.pop(stay, None)

    def stepped(self) -> None:
        """A step has returned. Called before what it brought is looked at."""
        for stake in self._counted.values():
            if stake.steps_since is not None:
                stake.steps_since += 1
            else:
                stake.tokens += 1

    # --- what follows --------------------------------------------------------------------------------------------

    def to_pause(self) -> list[int]:
        """Those to be stopped before the next step, the least urgent first."""
        if self._sure > 0:
            self._sure -= 1
            return []
        over = self._over(s.needs(self._capacity, 0) for s in self._stakes.values() if self._stays_on(s))
        growing = {stay: s for stay, s in self._stakes.items() if s.steps_since is None}
        needs = {stay: s.needs(self._capacity, STEPS) for stay, s in growing.items()}
        if needs:
            over = [o + sum(column) for o, column in zip(over, zip(*needs.values(), strict=True), strict=True)]
        if len(growing) == len(self._stakes) and max(over) + len(growing) <= 0:
            self._sure = self._span  # in the steps of a block each of them takes one more at the most
        paused: list[int] = []
        if max(over) <= 0:
            return paused
        for stay in sorted((i for i, s in growing.items() if s.claim.pausable), key=lambda i: growing[i].claim.rank):
            if max(over) <= 0:
                break
            over = [o - n for o, n in zip(over, needs[stay], strict=True)]
            paused.append(stay)
        return paused

    def room_for(self, request: Request) -> bool:
        """It fits beside all that holds anything, those that are just being stopped included."""
        if request.claim is None:
            return True
        held = [s.needs(self._capacity, STEPS if s.steps_since is None else 0) for s in self._holding()]
        newcomer = _Stake.of(request, request.claim).needs(self._capacity, STEPS)
        return max(self._over([*held, newcomer])) <= 0

    def _holding(self) -> Iterable[_Stake]:
        return (s for s in self._stakes.values() if s.steps_since in (None, 0) or self._stays_on(s))

    def _stays_on(self, stake: _Stake) -> bool:
        """A whole step after its stop it is still there, as far as is known."""
        return stake.steps_since is not None and stake.steps_since > 0 and not self._late_proof

    def _over(self, needs: Iterable[_Needs]) -> list[int]:
        """Blocks by pool that are needed beyond those there are."""
        over = [-blocks for blocks in self._blocks]
        for one in needs:
            over = [o + n for o, n in zip(over, one, strict=True)]
        return over
