"""What a caller at the door can expect, by the measured rates and those ahead: whether to wait, and when to come again.

Read in callers' threads from what the driver writes: nothing waits. Nothing is refused on what is not known.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from boundedgen._bounds import Bounds
from boundedgen._driver import Driver
from boundedgen._errors import Saturated
from boundedgen._returning import Returns
from boundedgen._settings import Settings

UNKNOWN_S: Final = 1.0  #: to come again, while nothing is known
LEAST_S: Final = 0.1
MOST_S: Final = 60.0
SPREAD: Final = 0.5  #: up to so much more is drawn, so that those who were refused together do not come back in step


def spread(seconds: float, chance: random.Random) -> float:
    """`seconds` times something drawn from 1 to 1.5."""
    return seconds * chance.uniform(1.0, 1.0 + SPREAD)


class Prospects:
    def __init__(self, driver: Driver, settings: Settings, now: Callable[[], float], chance: random.Random) -> None:
        self._driver = driver
        self._admission = settings.admission
        self._returns = Returns(settings.limits.owners_tracked)
        self._now = now
        self._chance = chance

    def queue_full(self, text: str, owner: str) -> Saturated:
        """All that wait come in before somebody who comes anew has to wait no longer than they did."""
        return self._saturated(text, owner, self._turns_s(self._driver.snapshot.waiting))

    def share_full(self, text: str, owner: str, priority: int) -> Saturated:
        """The owner's own come in before."""
        governor = self._driver.governor
        ahead = governor.queue.ahead(owner, priority, float("inf"), self._now())
        return self._saturated(text, owner, self._turns_s(ahead))

    def _turns_s(self, ahead: int) -> float | None:
        return self._driver.governor.forecast.wait_s(ahead)

    def _saturated(self, text: str, owner: str, seconds: float | None) -> Saturated:
        """`seconds`: until there is room, as far as that depends on those who wait; those who were refused before, and
        come back before, are not among them. While there is no engine, nobody moves."""
        turn = self._driver.governor.forecast.turn_s()
        crowd = self._returns.delay(owner, self._now(), turn, MOST_S)
        moving = UNKNOWN_S if seconds is None else max(LEAST_S, seconds, crowd)
        after = spread(min(MOST_S, self._outage_s() + moving), self._chance)
        return Saturated(f"{text}; try again in {after:.1f} s", retry_after_s=after)

    def accepted(self) -> None:
        if not self._driver.snapshot.waiting:
            self._returns.quiet()

    def _outage_s(self) -> float:
        """Until the engine is there, as far as that can be told."""
        expected = self._driver.snapshot.expected_at
        return 0.0 if expected is None else max(0.0, expected - self._now())

    def ahead_of(self, owner: str, priority: int, bounds: Bounds, at: float) -> int:
        """About how many come in before one that is submitted at that instant."""
        due = at + min(_given(bounds), self._admission.ageing)
        return self._driver.governor.queue.ahead(owner, priority, due, at)

    def hopeless(self, ahead: int, owner: str, bounds: Bounds, tokens: int) -> Callable[[], Saturated] | None:
        """Makes the refusal, which books a return, of one that would wait for longer than it has; None: it may make it.

        `tokens`: that it may generate. One that has nobody ahead of it is never refused.
        """
        margin, given, forecast = self._admission.margin, _given(bounds), self._driver.governor.forecast
        wait = forecast.wait_s(ahead) if ahead else None
        if margin is None or wait is None or given <= 0:  # what is over is answered as such
            return None
        service = forecast.service_s(1, tokens) or 0.0
        if (1.0 + margin) * (wait + service) > given:  # only then, since it takes longer to say
            service = forecast.service_s(1, forecast.expected_tokens(tokens)) or 0.0
        for within, needed in ((bounds.queued, wait), (bounds.total, wait + service)):
            if within is not None and (1.0 + margin) * needed > within:
                text = f"about {wait:.3g} s to wait and {service:.3g} s to generate, {within:.3g} s given"
                return partial(self._saturated, text, owner, (1.0 + margin) * needed - within)
        return None


def _given(bounds: Bounds) -> float:
    return min((b for b in (bounds.total, bounds.queued) if b is not None), default=float("inf"))
