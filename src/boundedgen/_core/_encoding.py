"""How long the encoder may take for the images of a request: by the limits, and by what it has taken on this machine.

It runs while the engine is handed the request, between two steps, and nothing else runs meanwhile. As with steps (see
`_pace`) two successive ones make a rate, and the quicker one counts: one that hung, or compiled, teaches nothing.
"""

from attrs import define

from boundedgen._bounds import Limits
from boundedgen._core._events import Pulse
from boundedgen._core._pace import FORGET, MARGIN

FIRST = 2  #: encodings of an incarnation that have `Limits.first_step` on top


@define
class EncodePace:
    limits: Limits
    rate: float = 0.0  #: of the machine, as a multiple of what the limits give; kept from engine to engine
    _last: float = 0.0  # of this incarnation
    _done: int = 0

    def boot(self) -> None:
        self._last, self._done = 0.0, 0

    def completed(self, pixels: int, took: float | None) -> None:
        """`took`: seconds; None: they say nothing, for the machine or the driver stood still."""
        self._done += 1
        if took is not None and took >= 0.0:
            rate = min(took, self.limits.encode_max) / self._configured(pixels)
            confirmed, self._last = min(rate, self._last), rate
            self.rate = max(confirmed, self.rate * (1 - FORGET))

    def budget(self, pulse: Pulse) -> float:
        """Seconds for the encoding that is under way."""
        usual = max(1.0, MARGIN * self.rate) * self._configured(pulse.pixels)
        first = self.limits.first_step if self._done < FIRST else 0.0
        return min(usual, self.limits.encode_max) + first

    def _configured(self, pixels: int) -> float:
        return self.limits.encode + self.limits.encode_per_pixel * pixels
