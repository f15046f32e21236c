"""When a lane that nobody uses is to be tried: a hang of its engine would else be found out by the next request."""

from attrs import define


@define
class Idling:
    period: float | None  #: `Limits.probe_idle`
    _since: float | None = None  # ready, and nothing inside; or the last time that it was due

    def due(self, idle: bool, now: float) -> bool:
        """It has been idle for a whole period, or for another one since the last time."""
        if not idle:
            self._since = None
        elif self._since is None:
            self._since = now
        at = self.next()
        if at is None or now < at:
            return False
        self._since = now
        return True

    def next(self) -> float | None:
        """When it is due if nothing happens until then; None: never."""
        return None if self.period is None or self._since is None else self._since + self.period
