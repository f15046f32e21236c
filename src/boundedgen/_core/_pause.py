"""When admission stands still, so that an engine that is to be recycled can become empty."""

from attrs import define

from boundedgen._bounds import Limits

AGAIN = 10  #: times `Limits.recycle_drain` for which everybody is admitted after a pause that was not long enough


@define
class Pause:
    """Admission stands still for a while, so that what is inside can end by itself; in vain, and it is put off."""

    limits: Limits
    why: str = ""  #: why the engine is to be recycled; empty: it is not
    until: float | None = None  #: nobody is admitted until then
    again_at: float | None = None  #: the beginning of the next one

    @property
    def on(self) -> bool:
        return self.until is not None

    def wait(self, why: str, now: float) -> None:
        """It is to be recycled, and holds something."""
        drain, self.why = self.limits.recycle_drain, why
        if self.until is not None and now >= self.until:
            self.until, self.again_at = None, now + AGAIN * drain
        elif self.until is None and drain and (self.again_at is None or now >= self.again_at):
            self.until, self.again_at = now + drain, None

    def over(self) -> None:
        self.why, self.until, self.again_at = "", None, None

    def next(self) -> float | None:
        return self.again_at if self.until is None else self.until
