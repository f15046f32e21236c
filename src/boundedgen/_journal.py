"""What the log tells of a lane: events, one line each. Never text of a prompt, never a lease. It is written aside."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from boundedgen._aside import logger
from boundedgen._core import _events as ev
from boundedgen._core._governor import Governor
from boundedgen._core._sequences import Submission
from boundedgen._core._watch import LATE
from boundedgen._errors import FinishReason

AGAIN = 60.0  #: seconds for which a driver that stands still again is not told again, unless it is worse than ever
_STOOD_STILL = "the driver woke %.1f s late: the machine or the process was stopped, or had no processor for it"
_HOW_LOST = {ev.Cause.BOOT: "did not become ready", ev.Cause.DIED: "died"}
_NO_VERDICT = ("engine_failed", "shutdown", "internal")  #: ends of a probe that say nothing, or are told anyway
_NO_TOKEN = ("deadline", "cancelled")


class Journal:
    """Used by the driver's thread, but for `log`. `run` has work done elsewhere; `model` is shown, if there is one."""

    def __init__(self, run: Callable[[Callable[[], None]], Any], model: str) -> None:
        self.lag_max_s = 0.0  #: by how much the driver was late for a wake-up, since an engine was ready
        self._run, self._model = run, model
        self._pid: int | None = None
        self.was_ready = False  #: an engine, ever
        self._out_since: float | None = None  # while the engine is replaced
        self._late_again = 0.0
        self._continued = 0
        self._worn = 0  # the incarnation whose recycling is due, and told
        self._paused_until: float | None = None
        self._probe_failed_at: float | None = None

    def log(self, level: int, message: str, *args: object, error: BaseException | None = None) -> None:
        self._run(lambda: logger.log(level, message, *args, exc_info=error))

    # --- the driver ----------------------------------------------------------------------------------------------

    def woke(self, expected: float | None, now: float) -> None:
        """`expected`: the instant at which the driver was to wake up at the latest.

        Before the first engine is ready nobody is inside, and the tokenizer, which is loaded then, holds the GIL.
        """
        late = 0.0 if expected is None else now - expected
        if late <= 0.0 or not self.was_ready:
            return
        if late > LATE and (late > self.lag_max_s or now >= self._late_again):
            self._late_again = now + AGAIN
            self.log(logging.WARNING, _STOOD_STILL, late)
        self.lag_max_s = max(self.lag_max_s, late)

    # --- the engine ----------------------------------------------------------------------------------------------

    def spawned(self, pid: int | None) -> None:
        self._pid = pid

    def lost(self, effect: ev.Lost) -> None:
        level = logging.INFO if effect.cause.orderly else logging.ERROR
        said = f"; its last output:\n{effect.output.rstrip()}" if effect.output.strip() else ""
        how = "ended" if effect.cause.orderly else _HOW_LOST.get(effect.cause, f"killed ({effect.cause})")
        of = "" if self._pid is None else f" (pid {self._pid})"
        self._pid = None
        self.log(level, "engine %d%s %s: %s%s", effect.incarnation, of, how, effect.detail, said)

    def became(self, effect: ev.Became, governor: Governor, now: float) -> None:
        self.was_ready |= effect.state == "ready"
        outage = logging.INFO if governor.life.orderly else logging.WARNING
        level = {"recovering": outage, "failed": logging.ERROR}.get(effect.state, logging.INFO)
        if effect.state == "recovering":
            self._out_since = now
        about = [self._ready(governor, now)] if effect.state == "ready" else []
        about += [effect.detail] if effect.detail else []
        self.log(level, "the lane is %s%s", effect.state, f" ({'; '.join(about)})" if about else "")
        facts = governor.life.facts
        for finding in facts.findings if facts is not None and effect.state == "ready" else ():
            self.log(logging.WARNING, "engine %d: %s", governor.life.incarnation, finding)

    def _ready(self, governor: Governor, now: float) -> str:
        """By which this lane can be told from another one of the same process."""
        facts, since = governor.life.facts, self._out_since
        self._out_since = None
        pid = "" if self._pid is None else f"pid {self._pid}"
        names = (f"engine {governor.life.incarnation}", pid, "" if facts is None else facts.device, self._model)
        said = ", ".join(filter(None, names))
        return said if since is None else f"{said}; after {now - since:.1f} s without one"

    # --- what is inside ------------------------------------------------------------------------------------------

    def settled(self, submission: Submission, effect: ev.Settle, governor: Governor, now: float) -> None:
        if submission.probe:
            self._probed(effect, now - submission.submitted_at, governor, now)
        elif effect.reason == FinishReason.QUARANTINED.value:
            label = f" ({submission.label!r})" if submission.label else ""
            self.log(logging.WARNING, "generation %d%s is quarantined: %s", submission.id, label, effect.detail)

    def _probed(self, effect: ev.Settle, seconds: float, governor: Governor, now: float) -> None:
        """A failure is told once, until a probe, or anything else, has come through again."""
        if effect.reason in _NO_VERDICT:
            return
        failed_at = self._probe_failed_at
        if FinishReason(effect.reason).normal:
            self._probe_failed_at = None
            if failed_at is not None:
                self.log(logging.INFO, "a probe has come through again, %.1f s after one failed", now - failed_at)
            return
        self._probe_failed_at = now
        if failed_at is None or governor.watch.moved_at > failed_at:
            why = f"no token within {seconds:.1f} s" if effect.reason in _NO_TOKEN else f"it ended {effect.reason}"
            self.log(logging.WARNING, "a probe failed: %s", f"{why}; {effect.detail}" if effect.detail else why)

    def look(self, governor: Governor, now: float) -> None:
        """At the end of a wake: what has happened in it that no effect tells."""
        continued = governor.tally.resumed
        if continued != self._continued:
            count, self._continued = continued - self._continued, continued
            self.log(logging.WARNING, "generations that the next engine goes on with: %d", count)
        if governor.pause.why or self._paused_until is not None:
            self._recycling(governor, now)

    def _recycling(self, governor: Governor, now: float) -> None:
        pause, engine, inside = governor.pause, governor.life.incarnation, len(governor.stays)
        if pause.why and self._worn != engine:
            self._worn = engine
            self.log(logging.INFO, "engine %d is to be replaced once it holds nothing; %s", engine, pause.why)
        if pause.until == self._paused_until:
            return
        self._paused_until = pause.until
        if pause.until is not None:
            text = "admission pauses for at most %.1f s, until engine %d is empty; inside: %d"
            self.log(logging.INFO, text, pause.until - now, engine, inside)
        elif pause.again_at is not None:
            text = "the recycling of engine %d is put off: inside are still %d; admission goes on, for %.1f s"
            self.log(logging.INFO, text, engine, inside, pause.again_at - now)
