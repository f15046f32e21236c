"""What a caller at the door can expect, by the measured rates and those ahead: whether to wait, and when to come again.

Read in callers' threads from what the driver writes: nothing waits. Nothing is refused on what is not known.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Final, TypeVar

from boundedgen._bounds import Bounds
from boundedgen._driver import Driver
from boundedgen._errors import EngineUnavailable, Rejected, Saturated
from boundedgen._returning import Returns
from boundedgen._settings import Settings

R = TypeVar("R", bound=EngineUnavailable | Saturated)
UNKNOWN_S: Final = 1.0  #: to come again, while nothing is known
LEAST_S: Final = 0.1
MOST_S: Final = 60.0
_INFINITE: Final = float("inf")
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
        return self._refusal(Saturated, text, owner, self._turns_s(self._driver.snapshot.waiting))

    def share_full(self, text: str, owner: str, priority: int) -> Saturated:
        """The owner's own come in before."""
        governor = self._driver.governor
        ahead = governor.queue.ahead(owner, priority, float("inf"), self._now())
        return self._refusal(Saturated, text, owner, self._turns_s(ahead))

    def _turns_s(self, ahead: int) -> float | None:
        return self._driver.governor.forecast.wait_s(ahead)

    def _refusal(self, kind: type[R], text: str, owner: str, seconds: float | None) -> R:
        after = self._after_s(owner, seconds)
        return kind(f"{text}; try again in {after:.1f} s", retry_after_s=after)

    def _after_s(self, owner: str, seconds: float | None) -> float:
        """`seconds`: until there is room, as far as that depends on those who wait; those who were refused before, and
        come back before, are not among them. While there is no engine, nobody moves, nor is served who comes back."""
        outage, now = self._outage_s(), self._now()
        outage = outage if isfinite(outage) else MOST_S  # the policy put the restart off for ever; who knows
        turn = self._driver.governor.forecast.turn_s()
        crowd = self._returns.delay(owner, now + outage, turn, MOST_S)
        moving = UNKNOWN_S if seconds is None else max(LEAST_S, seconds, crowd)
        return spread(outage + min(MOST_S, moving), self._chance)

    def accepted(self) -> None:
        snapshot = self._driver.snapshot
        if not snapshot.waiting and snapshot.expected_at is None:
            self._returns.quiet()

    def _outage_s(self) -> float:
        """Until the engine is there, as far as that can be told; 0 also once it is overdue."""
        expected = self._driver.snapshot.expected_at
        return 0.0 if expected is None else max(0.0, expected - self._now())

    def ahead_of(self, owner: str, priority: int, bounds: Bounds, at: float) -> int:
        """About how many come in before one that is submitted at that instant."""
        due = at + min(_given(bounds), self._admission.ageing)
        return self._driver.governor.queue.ahead(owner, priority, due, at)

    def hopeless(self, ahead: int, owner: str, bounds: Bounds, tokens: int) -> Callable[[], Rejected] | None:
        """Makes the refusal, which books a return, of one that would wait for longer than it has; None: it may make it.

        `tokens`: that it may generate. One that has an engine, and nobody ahead of it, is never refused.
        """
        forecast, margin = self._driver.governor.forecast, self._admission.margin
        longer = 0.0 if margin is None else 1.0 + margin
        given = min(_given(bounds), _INFINITE if bounds.first_token is None else bounds.first_token)
        outage, turns = self._outage_s(), forecast.wait_s(ahead) if ahead else None
        if not longer or given <= 0 or not (outage or turns):  # what is over is answered as such
            return None
        service = forecast.service_s(1, tokens) or 0.0
        if longer * (outage + (turns or 0.0) + service) <= given:  # at most; what is expected takes longer to say
            return None
        service, first = (forecast.service_s(1, n) or 0.0 for n in (forecast.expected_tokens(tokens), 1))
        queue = self._batches_s(ahead, service) if outage and turns else turns or 0.0
        still = " once the engine is there" if outage else ""  # for as long as it is not, `first_token` stands still
        for name, within, away, own, what in (
            ("queued", bounds.queued, outage, 0.0, ""),
            ("first_token", bounds.first_token, 0.0, first, f"to the first token{still}"),
            ("total", bounds.total, outage, service, "to generate"),
        ):
            if within is None:
                continue
            takes = own if queue or longer * own <= within else 0.0  # cut off anyway, it is content with what it gets
            if not away + queue or longer * (away + queue + takes) <= within:
                continue
            in_vain = away and longer * (away + takes) > within  # also if nobody were ahead of it
            kind: type[EngineUnavailable | Saturated] = EngineUnavailable if in_vain else Saturated
            text = self._words(name, within, ((away, "until the engine is there"), (queue, "to wait"), (takes, what)))
            late = longer * queue - max(0.0, within - longer * takes)  # all of the queue at most
            return partial(self._refusal, kind, text, owner, late)
        return None

    def _words(self, name: str, within: float, spans: tuple[tuple[float, str], ...]) -> str:
        whole, margin = sum(span for span, _ in spans), self._admission.margin or 0.0
        if whole == _INFINITE:
            return f"RestartPolicy put off the engine's restart for ever, and {name} is {within:.3g} s"
        told = ", ".join(f"{span:.3g} s {until}" for span, until in spans if span)
        counted = f": {(1.0 + margin) * whole:.3g} s with Admission.margin" if margin else ""
        return f"about {told}{counted}, and {name} is {within:.3g} s"

    def _batches_s(self, ahead: int, service: float) -> float:
        """An engine that comes back is empty: as many come in at once as it holds, which is as many as have their turns
        in the time that one takes; then, about when those have ended, as many more."""
        forecast = self._driver.governor.forecast
        usual, turn = forecast.lengths.quantile(0.5), forecast.turn_s() or 0.0
        takes = max(service, 0.0 if usual is None else forecast.service_s(1, usual) or 0.0)
        return takes * (ahead * turn // takes) if takes else ahead * turn


def _given(bounds: Bounds) -> float:
    """Until it is due, by bounds that never stand still."""
    return min((b for b in (bounds.total, bounds.queued) if b is not None), default=_INFINITE)
