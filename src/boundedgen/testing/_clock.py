"""A clock that stands still until it is told to move."""

from typing import final

__all__ = ["VirtualClock"]


@final
class VirtualClock:
    """Monotonic seconds that only a test moves. Implements `abc.Clock`; never looks at real time."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = float(start)

    def now(self) -> float:
        """Seconds; it begins with 1000, unless told otherwise."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward by `seconds`; the new time. Negative is a ValueError: the clock is monotonic."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds!r}; a monotonic clock moves forward only")
        self._now += seconds
        return self._now

    def advance_to(self, at: float) -> float:
        """Move forward to the instant `at`, or stay where it is when that has passed; the new time."""
        self._now = max(self._now, at)
        return self._now
