"""What the log tells of a lane: events, one line each, with fields. Never text of a prompt, never a lease. It is
written aside. docs/on-call.md has every line, its event and its fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from boundedgen._core import _events as ev
from boundedgen._core._governor import Governor
from boundedgen._core._sequences import Submission
from boundedgen._core._watch import LATE
from boundedgen._errors import FinishReason
from boundedgen._flow import Ending, Flow

logger = logging.getLogger(__name__)

AGAIN = 60.0  #: seconds for which a driver that stands still again is not told again, unless it is worse than ever
_STOOD_STILL = "the driver woke %.1f s late: the machine or the process was stopped, or had no processor for it"
_HOW_LOST = {ev.Cause.BOOT: "did not become ready", ev.Cause.DIED: "died"}
_NO_VERDICT = ("engine_failed", "shutdown", "internal")  #: ends of a probe that say nothing, or are told anyway
_NO_TOKEN = ("deadline", "cancelled")
_OF_A_SNAPSHOT: Final = ("running", "stopping", "waiting", "blocks_free", "blocks_total")  #: what a line shows of it


class Journal:
    """Used by the driver's thread, but for `log`. `run` has work done elsewhere; `model` is shown, if there is one."""

    def __init__(self, run: Callable[[Callable[[], None]], Any], model: str) -> None:
        self.lag_max_s = 0.0  #: by how much the driver was late for a wake-up, since an engine was ready
        self._run, self.model = run, model
        self._pid: int | None = None
        self.was_ready = False  #: an engine, ever
        self._out_since: float | None = None  # while the engine is replaced
        self._late_again = 0.0
        self._continued = 0
        self._worn = 0  # the incarnation whose recycling is due, and told
        self._paused_until: float | None = None
        self._probe_failed_at: float | None = None
        self._unwritten = 0  # lines that found too many others before them

    def log(
        self, level: int, event: str, message: str, *args: object, error: BaseException | None = None, **fields: object
    ) -> None:
        """A line, with `event`, `model` and `fields` as attributes of its record."""
        extra = {"event": event, "model": self.model, **fields}
        if self._run(lambda: logger.log(level, message, *args, exc_info=error, extra=extra)) is False:
            self._unwritten += 1
        elif self._unwritten:
            count, self._unwritten = self._unwritten, 0
            text = "lines that were not written, since handlers of the log were too slow: %d"
            self.log(logging.WARNING, "lines_dropped", text, count, count=count)

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
            self.log(logging.WARNING, "driver_late", _STOOD_STILL, late, late_s=late)
        self.lag_max_s = max(self.lag_max_s, late)

    # --- the engine ----------------------------------------------------------------------------------------------

    def spawned(self, incarnation: int, pid: int | None) -> None:
        self._pid = pid
        about: dict[str, Any] = {"incarnation": incarnation, "engine_pid": pid}
        self.log(logging.INFO, "engine_started", "engine %d%s starts", incarnation, _of(pid), **about)

    def lost(self, effect: ev.Lost, snapshot: Mapping[str, Any]) -> None:
        """`snapshot`: how things stood before that."""
        orderly, pid, self._pid = effect.cause.orderly, self._pid, None
        how = "ended" if orderly else _HOW_LOST.get(effect.cause, f"killed ({effect.cause})")
        inside = [f"{name} {snapshot[name]}" for name in _OF_A_SNAPSHOT if snapshot.get(name) is not None]
        before = f"; before that: {', '.join(inside)}" if inside and not orderly else ""
        said = f"; its last output:\n{effect.output.rstrip()}" if effect.output.strip() else ""
        self.log(
            logging.INFO if orderly else logging.ERROR,
            "engine_ended" if orderly else "engine_lost",
            *("engine %d%s %s: %s%s%s", effect.incarnation, _of(pid), how, effect.detail, before, said),
            incarnation=effect.incarnation,
            engine_pid=pid,
            cause=effect.cause.value,
            detail=effect.detail,
            output=effect.output,
            snapshot=snapshot,
        )

    def became(self, effect: ev.Became, governor: Governor, now: float) -> None:
        self.was_ready |= effect.state == "ready"
        outage = logging.INFO if governor.life.orderly else logging.WARNING
        level = {"recovering": outage, "failed": logging.ERROR}.get(effect.state, logging.INFO)
        about, ready = [effect.detail] if effect.detail else [], effect.state == "ready"
        fields = {**self._fields(governor, now, ready=ready), "state": effect.state, "reason": effect.detail}
        if ready:
            about.insert(0, self._told(fields))
        said = f" ({'; '.join(about)})" if about else ""
        self.log(level, "lane_state", "the lane is %s%s", effect.state, said, **fields)
        if effect.state == "recovering":
            self._out_since = now
        facts, engine = governor.life.facts, governor.life.incarnation
        for finding in facts.findings if facts is not None and ready else ():
            known: dict[str, Any] = {"incarnation": engine, "finding": finding}
            self.log(logging.WARNING, "engine_finding", "engine %d: %s", engine, finding, **known)

    def _fields(self, governor: Governor, now: float, *, ready: bool) -> dict[str, Any]:
        """By which this lane can be told from another one of the same process; how long there was no engine."""
        facts, since = governor.life.facts, self._out_since
        if ready:
            self._out_since = None
        return {
            "incarnation": governor.life.incarnation,
            "engine_pid": self._pid,
            "device": "" if facts is None else facts.device,
            "outage_s": None if since is None else now - since,
        }

    def _told(self, fields: Mapping[str, Any]) -> str:
        """Of a lane that is ready."""
        pid = "" if self._pid is None else f"pid {self._pid}"
        said = ", ".join(filter(None, (f"engine {fields['incarnation']}", pid, fields["device"], self.model)))
        without = fields["outage_s"]
        return said if without is None else f"{said}; after {without:.1f} s without one"

    # --- what is inside ------------------------------------------------------------------------------------------

    def submitted(self, submission: Submission) -> None:
        if _at_debug() and not submission.probe:
            text = "generation %d%s is submitted: %d tokens, and at most %d new ones"
            args = (submission.id, _named(submission), submission.prompt_tokens, submission.max_new_tokens)
            about = {**_about(submission), "max_new_tokens": submission.max_new_tokens}
            self.log(logging.DEBUG, "generation_submitted", text, *args, **about, priority=submission.priority)

    def admitted(self, submission: Submission, effect: ev.Admit, now: float) -> None:
        if _at_debug() and not submission.probe:
            waited, engine = now - submission.submitted_at, effect.incarnation
            text = "generation %d%s is admitted to engine %d, %.3f s after it was submitted"
            about = {**_about(submission), "incarnation": engine, "queued_s": waited, "resumed": effect.resumed}
            self.log(
                *(logging.DEBUG, "generation_admitted", text),
                *(submission.id, _named(submission), engine, waited),
                **about,
            )

    def settled(self, flow: Flow, effect: ev.Settle, governor: Governor, now: float) -> None:
        submission = flow.submission
        if submission.probe:
            self._probed(effect, now - submission.submitted_at, governor, now)
            return
        if effect.reason == FinishReason.QUARANTINED.value:
            text = "generation %d%s is quarantined: %s"
            about = {**_about(submission), "detail": effect.detail}
            args = (submission.id, _named(submission), effect.detail)
            self.log(logging.WARNING, "generation_quarantined", text, *args, **about)
        self.left(flow)

    def left(self, flow: Flow) -> None:
        """It is settled."""
        if _at_debug():
            self._ended(flow.ending())

    def _ended(self, ending: Ending) -> None:
        submission, total = ending.submission, ending.settled_at - ending.submission.submitted_at
        why = f"{ending.reason} ({ending.bound})" if ending.bound else ending.reason
        if not submission.probe:
            self.log(
                *(logging.DEBUG, "generation_ended", "generation %d%s ended %s after %.3f s, with %d new tokens"),
                *(submission.id, _named(submission), why, total, ending.output_tokens),
                **_about(submission),
                reason=ending.reason,
                bound=ending.bound,
                detail=ending.detail,
                output_tokens=ending.output_tokens,
                queued_s=_since(submission, ending.admitted_at),
                first_token_s=_since(submission, ending.first_token_at),
                total_s=total,
                incarnations=ending.incarnations,
                resumed=ending.resumed,
            )

    def _probed(self, effect: ev.Settle, seconds: float, governor: Governor, now: float) -> None:
        """A failure is told once, until a probe, or anything else, has come through again."""
        if effect.reason in _NO_VERDICT:
            return
        failed_at = self._probe_failed_at
        if FinishReason(effect.reason).normal:
            self._probe_failed_at = None
            if failed_at is not None:
                after, text = now - failed_at, "a probe has come through again, %.1f s after one failed"
                self.log(logging.INFO, "probe_recovered", text, after, after_s=after)
            return
        self._probe_failed_at = now
        if failed_at is None or governor.watch.moved_at > failed_at:
            why = f"no token within {seconds:.1f} s" if effect.reason in _NO_TOKEN else f"it ended {effect.reason}"
            why = f"{why}; {effect.detail}" if effect.detail else why
            self.log(logging.WARNING, "probe_failed", "a probe failed: %s", why, detail=why)

    def look(self, governor: Governor, now: float) -> None:
        """At the end of a wake: what has happened in it that no effect tells."""
        continued = governor.tally.resumed
        if continued != self._continued:
            count, self._continued = continued - self._continued, continued
            text = "generations that the next engine goes on with: %d"
            self.log(logging.WARNING, "generations_resumed", text, count, count=count)
        if governor.pause.why or self._paused_until is not None:
            self._recycling(governor, now)

    def _recycling(self, governor: Governor, now: float) -> None:
        pause, engine, inside = governor.pause, governor.life.incarnation, len(governor.stays)
        about: dict[str, Any] = {"incarnation": engine, "inside": inside}
        if pause.why and self._worn != engine:
            self._worn = engine
            text = "engine %d is to be replaced once it holds nothing; %s"
            self.log(logging.INFO, "recycling_due", text, engine, pause.why, **about, reason=pause.why)
        if pause.until == self._paused_until:
            return
        self._paused_until = pause.until
        if pause.until is not None:
            most, text = pause.until - now, "admission pauses for at most %.1f s, until engine %d is empty; inside: %d"
            self.log(logging.INFO, "admission_paused", text, most, engine, inside, **about, at_most_s=most)
        elif pause.again_at is not None:
            again = pause.again_at - now
            text = "the recycling of engine %d is put off: inside are still %d; admission goes on, for %.1f s"
            self.log(logging.INFO, "recycling_put_off", text, engine, inside, again, **about, again_s=again)


def _at_debug() -> bool:
    """Lines of single generations are wanted. `isEnabledFor` would wait for whoever is setting up logging just now."""
    return logger.getEffectiveLevel() <= logging.DEBUG


def _of(pid: int | None) -> str:
    return "" if pid is None else f" (pid {pid})"


def _named(submission: Submission) -> str:
    return f" ({submission.label!r})" if submission.label else ""


def _about(submission: Submission) -> dict[str, Any]:
    """Which generation, and whose; not its lease, whose id is a bearer token."""
    return {
        "generation": submission.id,
        "label": submission.label,
        "owner": submission.owner,
        "prompt_tokens": submission.prompt_tokens,
    }


def _since(submission: Submission, instant: float | None) -> float | None:
    return None if instant is None else instant - submission.submitted_at
