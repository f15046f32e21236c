"""How long a step may take: by the limits, by what steps of its size have taken on this machine, and whether it is new.

A step's size is a *shape*: the power of two that its tokens reach. Engines compile kernels by it, and there are few of
them, so that an allowance for new ones comes to an end. The rate of a shape is what its steps took, as a multiple of
what the limits give them. Two successive steps of a shape make a rate, the quicker one counts: a step that was
stuck or compiled something teaches nothing. A rate counts for its own shape and for larger ones, not for smaller
ones: slow prompts make no hang in decoding look legal.
"""

from attrs import Factory, define

from boundedgen._bounds import Limits
from boundedgen._core._events import Pulse

FIRST_STEPS = 3  #: steps of an incarnation that have `Limits.first_step` on top of their budget
NEW_STEPS = 2  #: steps of a shape that have `Limits.new_shape`; two, for the first one has nobody to confirm its rate
MARGIN = 5.0  #: times its rate that a step may take: two spinning processes a processor made steps 3 to 5 times slower
FORGET = 1 / 512  #: of a rate, with each step of its shape that was quicker
SHAPES = 24  #: the last one has all that is larger


def shape_of(tokens: int) -> int:
    """0, 1, 2-3, 4-7, … tokens."""
    return min(tokens.bit_length(), SHAPES - 1)


def configured(limits: Limits, tokens: int, attention: int) -> float:
    """Seconds that the limits give to a step, before `step_max`; `attention`: sum of its tokens times their context."""
    return limits.step + limits.step_per_token * tokens + limits.step_per_attention * attention


def _zeros() -> list[float]:
    return [0.0] * SHAPES


@define
class Pace:
    """What was learned. The lists keep their length: other threads may read a budget at any time."""

    limits: Limits
    rates: list[float] = Factory(_zeros)  #: by shape; of the machine, so kept from engine to engine
    _last: list[float] = Factory(_zeros)  #: by shape: what the last step of this incarnation took, as a multiple
    _steps: list[int] = Factory(lambda: [0] * SHAPES)  #: by shape: completed in this incarnation

    def boot(self) -> None:
        """Another engine has to compile everything anew, and has made no step that could confirm another."""
        self._last, self._steps = _zeros(), [0] * SHAPES

    def completed(self, tokens: int, attention: int, took: float | None) -> None:
        """A step has returned. `took`: seconds; None: they say nothing, for the machine or the driver stood still."""
        shape = shape_of(tokens)
        self._steps[shape] += 1
        if took is not None and took >= 0.0:
            rate = min(took, self.limits.step_max) / configured(self.limits, tokens, attention)
            confirmed, self._last[shape] = min(rate, self._last[shape]), rate
            self.rates[shape] = max(confirmed, self.rates[shape] * (1 - FORGET))

    def budget(self, pulse: Pulse) -> float:
        """Seconds that the step of `pulse` may take. Never less than the limits say, nor more than they allow."""
        shape = shape_of(pulse.scheduled)
        slower = max(1.0, MARGIN * max(self.rates[: shape + 1]))
        budget = slower * configured(self.limits, pulse.scheduled, pulse.attention)
        first = self.limits.first_step if pulse.steps_begun <= FIRST_STEPS else 0.0
        new = self.limits.new_shape if self._steps[shape] < NEW_STEPS else 0.0
        return min(budget, self.limits.step_max) + max(first, new)
