"""What a caller knows of what it asked for: the oracle's own books."""

import math
from collections.abc import Iterator
from typing import final

from attrs import define, field

from boundedgen._bounds import Bounds, Limits
from boundedgen._core._watch import ACK_STEPS
from boundedgen._generation import Generation
from boundedgen._lease import Lease

__all__ = ["LeaseRow", "Row", "Stopping"]

EPS = 1e-6
INF = math.inf


@final
@define(eq=False)
class Row:
    """A generation. Instants are the simulation's; `first_at` and `next_at` are the earliest that they can be."""

    generation: Generation
    submitted_at: float
    bounds: Bounds
    text: list[int]  #: all that it can come to
    needs: tuple[int, ...]  #: blocks, by pool
    priority: int = 0
    lease: "LeaseRow | None" = None
    total_at: float = field(init=False)
    queued_at: float = field(init=False)
    first_at: float = field(init=False)
    next_at: float = INF
    gap: float = field(init=False)
    known_at: float = field(init=False)  #: since when its bounds are these
    tokens: list[int] = field(factory=list)
    spoke_at: float | None = None
    ran: bool = False  #: was seen in the engine, at some time
    running_in: int | None = None  #: the incarnation that it was last seen in
    stopping: "Stopping | None" = None
    cancelled: bool = False
    settled_at: float | None = None
    reason: str | None = None

    def __attrs_post_init__(self) -> None:
        at, bounds = self.submitted_at, self.bounds
        self.known_at = at
        self.total_at, self.queued_at = later(at, bounds.total), later(at, bounds.queued)
        self.first_at, self.gap = later(at, bounds.first_token), INF
        self._narrow(bounds.next_token, at)

    @property
    def id(self) -> int:
        return self.generation.id

    def rank(self, ageing: float) -> tuple[float, int]:
        """Its rank among those of its owner and priority that wait."""
        return min(self.total_at, self.queued_at, self.submitted_at + ageing), self.id

    def spoke(self, tokens: list[int], now: float) -> None:
        self.tokens, self.spoke_at = tokens, now
        self.first_at, self.next_at = INF, now + self.gap

    def tighten(self, bounds: Bounds, now: float) -> None:
        self.known_at = now
        self.total_at = min(self.total_at, later(self.submitted_at, bounds.total))
        self.queued_at = min(self.queued_at, later(now, bounds.queued))
        if self.spoke_at is None:
            self.first_at = min(self.first_at, later(now, bounds.first_token))
        self._narrow(bounds.next_token, now)

    def _narrow(self, gap: float | None, now: float) -> None:
        """A bound of the next token that is over already counts before the first one too."""
        self.gap = min(self.gap, INF if gap is None else gap)
        if self.spoke_at is not None:
            self.next_at = min(self.next_at, later(now, gap))
        elif self.gap <= 0:
            self.next_at = min(self.next_at, self.submitted_at + self.gap)

    def dues(self) -> Iterator[tuple[str, float]]:
        yield "total", self.total_at
        if not self.ran:
            yield "queued", self.queued_at
        yield "first_token", self.first_at
        yield "next_token", self.next_at

    def due(self) -> float:
        """The instant by which it must be settled, whatever happens."""
        return max(self.known_at, min(self.total_at, INF if self.ran else self.queued_at))


@final
@define(eq=False)
class Stopping:
    """A stay that has to leave the engine, since a look at `at`, when `steps` steps had ended."""

    at: float
    steps: int
    _taken: int | None = None

    def overdue(self, limits: Limits, steps: int, now: float) -> bool:
        """The stop is taken within `ack` or ACK_STEPS steps, whichever is later; the release takes `reclaim_steps`."""
        if self._taken is None and now > self.at + limits.ack and steps >= self.steps + ACK_STEPS:
            self._taken = steps
        too_many = self._taken is not None and steps > self._taken + limits.reclaim_steps + 1
        return too_many or now > self.at + reclaim_max(limits)


def reclaim_max(limits: Limits) -> float:
    """Seconds that it can take in all: steps, the time outside of them, a kill."""
    step = limits.step_max + max(limits.first_step, limits.new_shape)
    return (limits.reclaim_steps + ACK_STEPS) * step + limits.ack + limits.reclaim + limits.progress + limits.reap


@final
@define(eq=False)
class LeaseRow:
    lease: Lease
    ttl: float
    expires: float  #: reading of ready time
    graced: bool = False
    revoked: bool = False
    over: bool = False  #: was seen to be over


def later(at: float, seconds: float | None) -> float:
    return INF if seconds is None else at + seconds
