"""What is wrong with a lane, worst first: the lines that somebody reads who was just woken."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from boundedgen._top._reading import Seen, clean, count, number, table, text, true
from boundedgen._top._words import listed, span

STEP_SHARE = 0.5  #: of its budget, after which a step is worth a look; or QUIET seconds: the first ones have minutes
STEP_SLOW = 1.0  #: seconds that any step may take
LAG = 0.5  #: seconds that the driver may be late; more is in the lane's log, too
QUIET = 5.0  #: seconds of a step or without progress, in the queue, or from a stop to its proof


@frozen
class Trouble:
    """`grave`: somebody should act; else it may pass."""

    grave: bool
    brief: str  #: in some twenty columns
    words: str


def troubles(lane: Seen) -> list[Trouble]:
    """Empty: nothing is wrong that can be seen from here."""
    return sorted(_all(lane), key=lambda trouble: not trouble.grave)


def _all(lane: Seen) -> Iterator[Trouble]:
    if lane.problem:
        silent = span(lane.silent_s)
        yield Trouble(True, f"silent for {silent}", f"does not answer for {silent}: {clean(lane.problem)}")
    if lane.document is None:
        return
    yield from _of_health(lane)
    yield from _of_step(lane)
    yield from _of_engine(lane)
    yield from _of_queue(lane)


def _of_health(lane: Seen) -> Iterator[Trouble]:
    health, state = lane.health, text(lane.health, "state")
    error, reason = table(health, "error"), text(lane.health, "reason")
    if error:
        kind = text(error, "type")
        yield Trouble(True, kind, f"{kind}: {text(error, 'message')}")
    if not true(health, "live"):
        gone = state == "closed" and not error
        yield Trouble(True, "not live", "it is closed" if gone else "it will not heal by itself: restart the process")
    if not true(health, "ready") and not error and reason:
        after = number(health, "retry_after_s")
        soon = "" if after is None else f"back in {span(after)}"
        grave = state in ("stalled", "recovering")
        yield Trouble(grave, soon or reason, f"{reason}; {soon}" if soon else reason)
    if text(health, "last_probe") == "failed" and state != "stalled":
        ago = span(number(health, "last_probe_age_s"))
        yield Trouble(False, "probe failed", f"the last probe failed, {ago} ago")


def _of_step(lane: Seen) -> Iterator[Trouble]:
    age, budget = number(lane.stats, "step_current_s"), number(lane.stats, "step_budget_s")
    if age is not None and budget is not None and age > max(STEP_SLOW, min(QUIET, STEP_SHARE * budget)):
        over = "is over its budget, and its engine is about to be killed" if age > budget else "hangs, or is long"
        took = f"{span(age)} of {span(budget)}"
        yield Trouble(age > budget, f"step {took}", f"a step {over}: {took}")
    idle = number(lane.stats, "last_progress_s")
    if idle is not None and idle > QUIET and not age:
        yield Trouble(
            True, f"no progress {span(idle)}", f"work inside, and no progress for {span(idle)}, between steps"
        )


def _of_engine(lane: Seen) -> Iterator[Trouble]:
    stats = lane.stats
    lag, stop = number(stats, "driver_lag_s"), number(stats, "oldest_stopping_s")
    if lag is not None and lag > LAG:
        late = span(lag)
        yield Trouble(True, f"driver {late} late", f"the driver is {late} late: look at its process, not at the engine")
    if lost := lane.lately("kills_total"):
        words = f"engines lost in the last {span(lane.before_s)}: {listed(lost)}"
        yield Trouble(True, f"lost {listed(lost)}", words)
    if stop is not None and stop > QUIET:
        words = f"{count(stats, 'stopping')} stopped and not released, the first {span(stop)} ago"
        yield Trouble(False, f"stopping {span(stop)}", words)
    if strays := count(stats, "ghosts_total") + count(stats, "forgotten_total"):
        yield Trouble(False, f"{strays} strays", f"{strays} stays that only one side knew (ghosts and forgotten)")


def _of_queue(lane: Seen) -> Iterator[Trouble]:
    waiting, oldest = count(lane.stats, "waiting"), number(lane.stats, "oldest_waiting_s")
    if waiting and oldest is not None and oldest > QUIET:
        yield Trouble(False, f"{waiting} wait {span(oldest)}", f"{waiting} wait, the oldest for {span(oldest)}")
    if refused := lane.lately("rejected_total"):
        words = f"refused in the last {span(lane.before_s)}: {listed(refused)}"
        yield Trouble(False, f"refused {sum(refused.values())}", words)
