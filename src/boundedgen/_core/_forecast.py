"""What this engine has shown of its pace and of the lengths of answers: from that, how long a sequence will take.

Every figure is an estimate, and says how good it is: `error` is measured on the sequences that came to their own end.
"""

from bisect import bisect_left
from itertools import accumulate

from attrs import define, field

KEEP = 0.95  #: of what was known is kept at each new measurement: about the last 20 count
GROWTH = 1.25  #: from one bucket of lengths to the next
FADE = 0.999  #: of the weight of a length is kept at each new one: about the last 1,000 count
ENOUGH = 8  #: sequences that must have left before anything is predicted


@define
class Average:
    """Of the latest, the newest most."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        self.weight = KEEP * self.weight + 1.0
        self.value += (value - self.value) / self.weight


def _edges(most: int) -> tuple[int, ...]:
    edges = [1]
    while edges[-1] < most:
        edges.append(max(edges[-1] + 1, int(edges[-1] * GROWTH)))
    return tuple(edges)


EDGES = _edges(1 << 20)  #: tokens; upper edges of the buckets of lengths


@define
class Lengths:
    """How long answers are: of those that came to their own end, and of those that were cut off and would have been
    longer (the product-limit estimator of Kaplan and Meier, on buckets). Others read it while it is written."""

    _weights: tuple[list[float], list[float]] = field(factory=lambda: ([0.0] * len(EDGES), [0.0] * len(EDGES)))
    _unit: float = 1.0  # weight of the next one: its growth is the fading of all others

    def add(self, tokens: int, *, ended: bool) -> None:
        """One of `tokens`, which would have had more unless it `ended`."""
        self._weights[not ended][_bucket(tokens)] += self._unit
        self._unit /= FADE
        if self._unit > 1e100:
            ended_, cut = ([w / self._unit for w in ws] for ws in self._weights)
            self._weights = ended_, cut  # at once: the two are weighed against each other
            self._unit = 1.0

    def quantile(self, share: float, beyond: int = 0) -> int | None:
        """Tokens that a `share` of those with more than `beyond` do not exceed; None: it is not known how long."""
        first = 0 if beyond <= 0 else _bucket(beyond) + 1
        ended, cut = (weights[first:] for weights in self._weights)
        both = [ends + cuts for ends, cuts in zip(ended, cut, strict=True)]
        at_risk = list(accumulate(reversed(both)))[::-1]  # from the end: what is left of a difference may be nothing
        surviving = 1.0
        for edge, ends, at in zip(EDGES[first:], ended, at_risk, strict=True):
            if ends > 0.0:
                surviving *= max(0.0, 1.0 - ends / at)
                if surviving <= 1.0 - share + 1e-9:
                    return edge
        return None


def _bucket(tokens: int) -> int:
    return min(bisect_left(EDGES, tokens), len(EDGES) - 1)


@define
class Slope:
    """The straight line through the latest, by least squares: a fixed part and one for each unit, neither below 0."""

    _weight: float = 0.0
    _x: float = 0.0  # means, by weight
    _y: float = 0.0
    _xx: float = 0.0  # sum of squares about the mean, by weight
    _xy: float = 0.0
    _most: float = 0.0  # of x

    def add(self, x: float, y: float) -> None:
        kept = KEEP * self._weight
        self._weight = kept + 1.0
        dx, dy = x - self._x, y - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        self._xx = KEEP * self._xx + dx * (x - self._x)
        self._xy = KEEP * self._xy + dx * (y - self._y)
        self._most = max(x, self._x + KEEP * (self._most - self._x))

    def at(self, x: float) -> float:
        """Not beyond the longest of the latest: a few short ones tell nothing of a long one, and so are no reason."""
        slope = max(0.0, self._xy / self._xx) if self._xx > 0.0 else 0.0
        if self._x > 0.0:
            slope = min(slope, self._y / self._x)  # the fixed part is not below 0
        return max(0.0, self._y + slope * (min(x, max(self._most, self._x)) - self._x))


@define
class Forecast:
    """Rates as seen by a sequence inside, at the loads there were: of its first token, and of each one after it."""

    first: Slope = field(factory=Slope)  #: seconds from admission to the first token, by tokens of the prompt
    gap: Average = field(factory=Average)  #: seconds from one token to the next
    turn: Average = field(factory=Average)  #: seconds from one admission to the next, as far as somebody waited
    error: Average = field(factory=Average)  #: of predictions, as a share of them
    lengths: Lengths = field(factory=Lengths)
    seen: int = 0  #: that have left after a token at least
    _turn_at: float | None = None  # since when somebody waits for the turn that is under way
    _whole: bool = False  # from its beginning

    def waits(self, now: float) -> None:
        """Somebody is next, and does not come in yet. If nobody waited before, that is a part of a turn: it can only
        show that turns have become shorter, and nothing else does where nobody waits behind another."""
        if self._turn_at is None:
            self._turn_at, self._whole = now, False

    def admitted(self, now: float, *, others_wait: bool) -> None:
        took = None if self._turn_at is None else now - self._turn_at
        if took is not None and (self._whole or took < self.turn.value):
            self.turn.add(took)
        self._turn_at, self._whole = (now, True) if others_wait else (None, False)

    def interrupted(self) -> None:
        """The engine is gone, or nobody waits any more: what passes until the next admission is no turn."""
        self._turn_at = None

    def left(self, prompt_tokens: int, tokens: int, first_s: float, total_s: float) -> None:
        """One has left after `tokens` in `total_s` seconds from its admission, the first of them after `first_s`."""
        predicted = self.service_s(prompt_tokens, tokens)
        if predicted:
            self.error.add(abs(total_s - predicted) / predicted)
        self.first.add(prompt_tokens, first_s)
        if tokens > 1:
            self.gap.add((total_s - first_s) / (tokens - 1))
        self.seen += 1

    def service_s(self, prompt_tokens: int, tokens: int) -> float | None:
        """Seconds from admission to the last of `tokens`; None: too little has been seen."""
        if self.seen < ENOUGH:
            return None
        return self.first.at(prompt_tokens) + self.gap.value * max(0, tokens - 1)

    def wait_s(self, ahead: int) -> float | None:
        """Seconds until so many have come in, and then one more; None: too little has been seen."""
        turn = self.turn_s()
        return None if turn is None else (ahead + 1) * turn

    def turn_s(self) -> float | None:
        """Seconds from one admission to the next while others wait; None: too little has been seen."""
        return None if self.seen < ENOUGH or not self.turn.weight else self.turn.value

    def expected_tokens(self, most: int, share: float = 0.5, so_far: int = 0) -> int:
        """Of one that may generate `most` and has generated `so_far`: what a `share` of such ones do not exceed."""
        found = self.lengths.quantile(share, so_far) if self.seen >= ENOUGH else None
        return most if found is None else min(most, max(found, so_far + 1))
