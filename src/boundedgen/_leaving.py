"""How an engine leaves: killed at once or, where a black box is kept, after somebody has looked at it for a moment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from boundedgen._core import _events as ev

if TYPE_CHECKING:
    from boundedgen._blackbox._box import BlackBox, Doomed
    from boundedgen._driver import Driver

T = TypeVar("T")


class Leaving:
    """Used by the driver's thread only. What the black box does, or fails to do, changes nothing but when it is killed:
    at `until` at the latest.
    """

    black_box: BlackBox | None = None

    def __init__(self) -> None:
        self._doomed: Doomed | None = None  # answered for, fenced off, not killed yet

    @property
    def until(self) -> float | None:
        """When an engine has to be killed at the latest; None: there is none that has to."""
        return None if self._doomed is None else self._doomed.until

    def hear(self, driver: Driver, report: ev.Report, now: float) -> None:
        """Have the governor told, and kept what is known before and after that."""
        box = self.black_box
        if box is not None and isinstance(report, ev.Exited):
            self._bury(box, driver, report, now)
            return
        driver.governor.receive(report, now)
        if box is not None and isinstance(report, ev.Progress) and report is driver.governor.last_report:
            box.heard(report, len(driver.governor.stays))

    def _bury(self, box: BlackBox, driver: Driver, report: ev.Exited, now: float) -> None:
        """What an engine held is known only until the governor hears that it is gone."""
        scene = self._unharmed(driver, lambda: box.before_the_end(driver, now))
        driver.governor.receive(report, now)
        if scene is not None:
            self._unharmed(driver, lambda: box.ended(driver, scene, report))

    def spare(self, driver: Driver, effect: ev.Kill, now: float) -> bool:
        """True: `to_kill` will name it. False: kill it now."""
        box = self.black_box
        if box is not None and not effect.cause.orderly:
            self._doomed = self._unharmed(driver, lambda: box.killing(driver, effect, now))
        return self._doomed is not None and self._doomed.incarnation == effect.incarnation

    def begin(self, driver: Driver) -> None:
        """At the end of a wake, when all who were inside are answered: have what is known written."""
        if self.black_box is not None:
            self._unharmed(driver, self.black_box.begin)

    def to_kill(self, now: float) -> int | None:
        """The engine that nobody needs any more."""
        doomed = self._doomed
        if doomed is None or not doomed.due(now):
            return None
        self._doomed = None
        return doomed.incarnation

    def join(self, timeout: float) -> None:
        """Wait for what is being written. From any thread."""
        if self.black_box is not None:
            self.black_box.join(timeout)

    def _unharmed(self, driver: Driver, work: Callable[[], T]) -> T | None:
        """What comes of it; None, if that fails."""
        try:
            return work()
        except Exception as error:
            driver.log(logging.ERROR, "black_box_failed", "the black box failed", error=error)
            return None
