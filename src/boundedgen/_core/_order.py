"""Who waits, and who is next: priority classes, fair shares of owners within a class, the earliest deadline within one.

Three questions, one after the other, each answered from keys that do not change while somebody waits, so that every
step costs O(log n):

- Which class? The highest priority, but one below it is passed over for at most `ageing` seconds a step of priority:
  a class counts as if it had begun to wait that much earlier for each step. Then it gets one admission.
- Which owner of the class? The one that has had least, in tokens by weight (weighted fair queueing). Who comes anew
  begins at the class's virtual time: it neither has to make up for the past of others nor can it save up its own.
- Which sequence of the owner? The earliest deadline; one whose deadline is far counts as due `ageing` seconds after
  its submission, so that a stream of urgent ones does not hold it up for ever. Equals go by submission. One that
  supersedes another counts as submitted when that one was.

Virtual times and the ranks of classes are whole numbers: weights may be a billion and a billionth, priorities a billion
apart, and as floats a long time would swallow what is added to it, and a large weight the small ones beside it.
"""

import heapq
from collections.abc import Mapping
from typing import Generic, TypeVar

from attrs import define, field

from boundedgen._core._depths import Cost, Costs, Depths, Dues
from boundedgen._core._sequences import Sequence, Submission

K = TypeVar("K")
SLACK = 64  #: entries that a heap may keep of what is gone
PART = 1 << 60  #: of a share of weight 1
TOKEN = 1 << 160  #: virtual time of one token, by one part of a share
TICKS = 1_000_000  #: of a second, in ranks of classes


class Ranking(Generic[K]):
    """One rank a key, the lowest first. Entries that no longer count are dropped as they surface."""

    def __init__(self) -> None:
        self._rank: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, key: K) -> bool:
        return key in self._rank

    def rank(self, key: K) -> float | None:
        found = self._rank.get(key)
        return None if found is None else found[0]

    def set(self, key: K, rank: float, tie: int) -> None:
        if self._rank.get(key) == (rank, tie):
            return
        self._rank[key] = rank, tie
        heapq.heappush(self._heap, (rank, tie, key))
        if len(self._heap) > SLACK + 2 * len(self._rank):
            self._trim()

    def drop(self, key: K) -> float:
        """The rank that it had."""
        rank, _ = self._rank.pop(key)
        if len(self._heap) > SLACK + 2 * len(self._rank):
            self._trim()
        return rank

    def first(self) -> K | None:
        while self._heap and self._rank.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _trim(self) -> None:
        self._heap = [(*rank, key) for key, rank in self._rank.items()]
        heapq.heapify(self._heap)


@define(eq=False)
class _Share:
    """An owner's in one class."""

    weight: float
    tie: int  #: order of arrival
    had: int  #: virtual time up to which it has been served: tokens by weight
    parts: int = field(init=False)  #: its weight
    waiting: Ranking[int] = field(factory=Ranking)
    dues: Dues = field(factory=Dues)
    cost: Cost = field(factory=Cost)

    def __attrs_post_init__(self) -> None:
        self.parts = round(self.weight * PART)


class _Class:
    """Those of one priority."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._shares: dict[str, _Share] = {}
        self._owners: Ranking[str] = Ranking()  # those that wait
        self._parts = 0  # of those that wait, together
        self._time = 0  # virtual
        self._arrivals = 0
        self._parted = 0  # owners that stopped waiting since those were forgotten that are as good as new
        self._depths = Depths()
        self._deep = 0  # owners of which more than one wait
        self.waiting = 0  #: sequences
        self._costs = Costs()
        self.since = 0.0  #: of its last admission, or when it began to wait

    def add(self, owner: str, sequence: int, due: float, tie: int) -> None:
        """It waits; one that waits already, until another instant."""
        share = self._share(owner)
        before, others = share.waiting.rank(sequence), len(share.waiting)
        if not others:
            share.had = max(share.had, self._time)
            self._parts += share.parts
            self._owners.set(owner, share.had, share.tie)
        if before is None:
            self.waiting += 1
            self._depths.add(others, share.weight)
            self._deep += others == 1
        share.dues.move(before, due)
        share.waiting.set(sequence, due, tie)

    def drop(self, owner: str, sequence: int) -> None:
        """It waits no more."""
        share = self._shares[owner]
        share.dues.move(share.waiting.drop(sequence), None)
        others = len(share.waiting)
        self.waiting -= 1
        self._depths.drop(others, share.weight)
        self._deep -= others == 1
        if not others:
            self._parts -= share.parts
            self._owners.drop(owner)
            self._forget()

    def first(self) -> int | None:
        owner = self._owners.first()
        return None if owner is None else self._shares[owner].waiting.first()

    def ahead(self, owner: str, due: float) -> int:
        """See Order.ahead. Owners who just had their turn are ahead of their time: half of those with more to come."""
        share, weight = self._shares.get(owner), self._weights.get(owner, 1.0)
        mine = waiting = 0
        if share is not None and (waiting := len(share.waiting)):
            mine = share.dues.until(due)
            if not mine:
                return 0  # the owner's next turn is its
        pace = 1.0 if share is None else self._costs.pace(share.cost.each())
        others = self._depths.of_others(mine * pace / weight, waiting, weight)
        return mine + max(0, others - (self._deep - (waiting > 1)) // 2)

    def admitted(self, owner: str, tokens: int) -> None:
        """The first, which has so many tokens of prompt."""
        share = self._shares[owner]
        share.cost.admitted()
        self._pass(share, tokens)
        self._charge(owner, share, tokens)

    def charge(self, owner: str, tokens: int) -> None:
        """So many were computed for it."""
        first = self._owners.first()
        if first is not None:
            self._pass(self._shares[first], tokens)
        self._charge(owner, self._share(owner), tokens)

    def _pass(self, first: _Share, tokens: int) -> None:
        """Time passes for all who wait, by their weight together. `first`: of them."""
        self._time = max(self._time, first.had) + tokens * TOKEN // self._parts

    def _charge(self, owner: str, share: _Share, tokens: int) -> None:
        share.had += tokens * TOKEN // share.parts
        self._costs.charge(tokens, share.cost.charge(tokens))
        if share.waiting:
            self._owners.set(owner, share.had, share.tie)

    def spare(self, owner: str, tokens: int) -> None:
        """So many were charged, and not computed after all."""
        share = self._shares.get(owner)
        if share is not None:
            share.had -= tokens * TOKEN // share.parts
            if share.waiting:
                self._owners.set(owner, share.had, share.tie)

    def _share(self, owner: str) -> _Share:
        share = self._shares.get(owner)
        if share is None:
            self._arrivals += 1
            share = self._shares[owner] = _Share(self._weights.get(owner, 1.0), self._arrivals, self._time)
        return share

    def _forget(self) -> None:
        """Whoever does not wait and is not ahead of time is as good as new. Looked at once for many that have left."""
        self._parted += 1
        if 4 * self._parted > SLACK + len(self._shares):
            keep = {owner: s for owner, s in self._shares.items() if s.waiting or s.had > self._time}
            self._shares, self._parted = keep, 0


class Order:
    """See the module's docstring. `ageing`: seconds, more than 0. `weights`: by owner, 1 if not named."""

    def __init__(self, ageing: float, weights: Mapping[str, float]) -> None:
        self._ageing, self._weights = ageing, weights
        self._step = round(ageing * TICKS)  # of priority
        self._waiting: dict[int, Sequence] = {}
        self._classes: dict[int, _Class] = {}
        self._ranks: Ranking[int] = Ranking()  # of the classes in which somebody waits

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence, now: float) -> None:
        """It waits from `now` on; one that waits already is put where its deadline belongs now."""
        priority = sequence.submission.priority
        group = self._classes.get(priority)
        if group is None:
            group = self._classes[priority] = _Class(self._weights)
        if not group.waiting:
            self._rank(priority, now)
        self._waiting[sequence.id] = sequence
        group.add(sequence.submission.owner, sequence.id, self._due(sequence), sequence.elder)

    def _due(self, sequence: Sequence) -> float:
        wall = sequence.wall_at()
        aged = sequence.since + self._ageing
        return aged if wall is None else min(wall, aged)

    def _rank(self, priority: int, since: float) -> None:
        self._classes[priority].since = since
        self._ranks.set(priority, round(since * TICKS) - priority * self._step, priority)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._waiting

    def remove(self, sequence: int) -> None:
        """It does not wait any more; if it did not, nothing changes."""
        gone = self._waiting.pop(sequence, None)
        if gone is None:
            return
        if not self._waiting:
            self._waiting.clear()  # which gives its memory back
        priority = gone.submission.priority
        group = self._classes[priority]
        group.drop(gone.submission.owner, sequence)
        if not group.waiting:  # nobody competes for anything: what each of them had does not matter any more
            self._ranks.drop(priority)
            del self._classes[priority]

    def ahead(self, owner: str, priority: int, due: float, now: float) -> int:
        """About how many come in before one more of that owner, due at that instant; 0 also where it is not known.

        For callers' threads, while the driver writes: every reading is of one moment, and all of them are of about one.
        Rather too few than too many. Those of higher classes count if this one does not have a turn before it is due.
        """
        group = self._classes.get(priority)
        since, found = (now, 0) if group is None else (group.since, group.ahead(owner, due))
        above = [(p, self._waiting_in(p)) for p in list(self._classes) if p > priority]
        return found + sum(n for p, n in above if since + (p - priority) * self._ageing > due)

    def _waiting_in(self, priority: int) -> int:
        group = self._classes.get(priority)
        return 0 if group is None else group.waiting

    def head(self) -> Sequence | None:
        """Who is next; it stays in until it is removed."""
        if not self._waiting:
            return None
        priority = self._ranks.first()
        assert priority is not None
        first = self._classes[priority].first()
        assert first is not None
        return self._waiting[first]

    def admit(self, sequence: Sequence, now: float) -> None:
        """The head goes in. Its prompt is charged now, what it generates once that is known (`used`)."""
        submission = sequence.submission
        group = self._classes[submission.priority]
        group.admitted(submission.owner, submission.prompt_tokens)
        self._rank(submission.priority, now)
        self.remove(sequence.id)

    def used(self, submission: Submission, tokens: int) -> None:
        """A stay of it has ended, after so many generated tokens. Where nobody waits it is nobody's loss."""
        group = self._classes.get(submission.priority)
        if group is not None:
            group.charge(submission.owner, tokens)

    def spared(self, submission: Submission) -> None:
        """The engine did not take it: its prompt was charged, and not computed."""
        group = self._classes.get(submission.priority)
        if group is not None:
            group.spare(submission.owner, submission.prompt_tokens)
