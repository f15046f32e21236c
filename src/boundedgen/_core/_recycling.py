"""An engine that is too old or too large is replaced at a moment at which it holds nothing: nobody is harmed."""

from boundedgen._core._events import Cause
from boundedgen._core._life import Death
from boundedgen._core._living import Living


class Recycling(Living):
    def _recycle(self, now: float) -> None:
        """What waits keeps its place; the next engine is started as soon as this one has left."""
        why = self.life.worn(now)
        if why and self.stays:
            self.pause.wait(why, now)
            return
        self.pause.over()
        if why:
            self._kill(Death(Cause.RECYCLE, why), now)

    def _recycle_at(self) -> float | None:
        """When to look again."""
        return self.pause.next() if self.pause.why else self.life.worn_at()
