"""Time that passes only while an engine is ready."""

from typing import final

__all__ = ["ReadyTime"]


@final
class ReadyTime:
    """Told when an engine becomes ready and when it is lost; knows its past. Instants are seconds."""

    def __init__(self) -> None:
        self._spans: list[list[float]] = []
        self.running = False
        self.stood_at = 0.0

    def run(self, now: float) -> None:
        self._spans.append([now, float("inf")])
        self.running = True

    def stand(self, now: float) -> None:
        if self.running:
            self._spans[-1][1] = now
            self.running, self.stood_at = False, now

    def at(self, instant: float) -> float:
        """Its reading at an instant that has passed."""
        return sum(min(end, instant) - begin for begin, end in self._spans if begin < instant)
