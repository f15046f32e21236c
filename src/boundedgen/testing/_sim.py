"""A simulated engine: one incarnation, seen through its reports and its pulse, without a process and without real time.

The loop is that of the engine's child: drain commands, stop what is past its deadline, step, report. Time is passed in.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from attrs import evolve

from boundedgen._core._events import (
    BootFailed,
    Exited,
    Finish,
    Output,
    Progress,
    Pulse,
    Ready,
    Refusal,
    Release,
    Report,
    SequenceResult,
    StepRaised,
    WireBroken,
)
from boundedgen.abc import Request
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._sim_scheduler import Scheduler, StepOutcome, WorkingStay
from boundedgen.testing._sim_table import News, Row, Step

__all__ = ["SimEngine", "SimModel"]

K = FaultKind
_RECONCILE = 64  # steps between two reports of the table


@final
class SimEngine:
    """One incarnation from spawn to `Exited`.

    Commands carry the instant at which they are sent; `run(until)` lets its time pass; `receive(at)` gives the reports
    that have arrived by then. Faults may be added at any time and are looked at from then on. `triggered` tells which
    kinds have happened: the justification a watchdog must have.
    """

    def __init__(
        self, incarnation: int, at: float, model: SimModel | None = None, faults: Sequence[Fault] = ()
    ) -> None:
        self.incarnation = incarnation
        self.model = model or SimModel()
        self.faults = list(faults)
        self.triggered: set[FaultKind] = set()
        self.exited_at: float | None = None
        self.scheduler = Scheduler(self.model.pools, self.model.max_num_batched_tokens)
        self._rows: dict[int, Row] = {}
        self._ghosts: set[int] = set()
        self._commands: list[tuple[float, int, Request | int]] = []
        self._sent = 0
        self._reports: list[tuple[float, int, Report]] = []
        self._said = 0
        self._step: Step | None = None
        self._news = News()
        self._pulse = Pulse()
        self._ready_at = at + self.model.boot_s
        self._booting = True
        self._dumb = False  # alive, but does nothing any more
        self._dirty = False  # blocks of the last step are not given back on the meter yet
        self._free_at = at
        if any(f.kind is K.BOOT_DIES for f in self.faults):
            self._ready_at = at + self.model.boot_s / 2

    # --- commands ------------------------------------------------------------------------------------------------

    def admit(self, request: Request, at: float) -> None:
        self._command(at, request)

    def stop(self, stay: int, at: float) -> None:
        self._command(at, stay)

    def kill(self, at: float, signal: int = 9) -> None:
        """Its `Exited` follows after `exit_s`, unless it is unkillable."""
        self.run(at)
        if self.exited_at is None and not self._lasting(K.UNKILLABLE):
            self._die(at, -signal)

    # --- time ----------------------------------------------------------------------------------------------------

    def next_event(self) -> float | None:
        """When something will happen inside it; None: nothing will, by itself."""
        if self.exited_at is not None or self._dumb:
            return None
        if self._booting:
            return self._ready_at
        if self._step is not None:
            return self._step.ends if self._step.ends < math.inf else None
        if self._rows or self._dirty:
            return self._free_at
        if self._commands and not self._lasting(K.DEAF):
            return max(self._free_at, self._commands[0][0])
        return None

    def next_report(self) -> float | None:
        """When the next report that exists already arrives."""
        return self._reports[0][0] if self._reports else None

    def run(self, until: float) -> None:
        """Let its time pass up to and including `until`."""
        while (at := self.next_event()) is not None and at <= until:
            self._advance(at)

    def suspend(self, seconds: float) -> None:
        """The process is stopped from outside for so long: whatever it was about to do comes later by that."""
        self._ready_at += seconds
        self._free_at += seconds
        if self._step is not None:
            self._step.ends += seconds

    def receive(self, at: float) -> list[Report]:
        """The reports that have arrived by `at`, in order; `Exited` comes last."""
        self.run(at)
        arrived = []
        while self._reports and self._reports[0][0] <= at:
            arrived.append(heapq.heappop(self._reports)[2])
        return arrived

    def pulse(self, at: float) -> Pulse:
        """The step stamps at `at`; true also while it hangs."""
        self.run(at)
        return self._pulse

    def held(self) -> tuple[int, ...]:
        """The child's own table of stays."""
        return tuple(sorted(self._rows.keys() | self._ghosts))

    # --- inside --------------------------------------------------------------------------------------------------

    def _command(self, at: float, what: Request | int) -> None:
        heapq.heappush(self._commands, (at, self._sent, what))
        self._sent += 1

    def _say(self, at: float, report: Report) -> None:
        heapq.heappush(self._reports, (at + self.model.pipe_s, self._said, report))
        self._said += 1

    def _take(self, kind: FaultKind, stays: frozenset[int] | None = None) -> Fault | None:
        """The fault of this kind that is due now, taken off the list and remembered."""
        step = max(1, self._pulse.steps_begun)
        for fault in self.faults:
            if fault.kind is kind and fault.due(step, stays):
                self.faults.remove(fault)
                self.triggered.add(kind)
                return fault
        return None

    def _lasting(self, kind: FaultKind) -> bool:
        if kind not in self.triggered and any(
            f.kind is kind and f.due(self._pulse.steps_begun + 1) for f in self.faults
        ):
            self.triggered.add(kind)
        return kind in self.triggered

    def _die(self, at: float, status: int) -> None:
        self.exited_at = at
        self._say(at + self.model.exit_s, Exited(self.incarnation, status=status, text=""))

    def _advance(self, at: float) -> None:
        if self._booting:
            self._end_boot(at)
        elif self._step is not None:
            self._end_step(at, self._step)
        else:
            self._between_steps(at)

    def _end_boot(self, at: float) -> None:
        self._booting, self._free_at = False, at
        if self._take(K.STILLBORN) is not None:
            self._dumb = True
        elif (fault := self._take(K.BOOT_DIES)) is not None:
            self._die(at, -fault.signal)
        elif (fault := self._take(K.BOOT_FAILS)) is not None:
            self._say(at, BootFailed(self.incarnation, kind="model", text=fault.text, permanent=fault.permanent))
            self._die(at, 1)
        else:
            self._say(at, Ready(self.incarnation, self.model.facts()))

    def _between_steps(self, at: float) -> None:
        self._drain(at)
        self._stop_expired(at)
        if self._rows or self._dirty:
            self._begin_step(at)
        elif self._news:
            self._report(at, at, StepOutcome(), idle=True)

    def _drain(self, at: float) -> None:
        while self._commands and self._commands[0][0] <= at and not self._lasting(K.DEAF):
            what = heapq.heappop(self._commands)[2]
            if self._take(K.LOST_COMMAND) is not None:
                continue
            if isinstance(what, Request):
                self._take_admission(what)
            else:
                self._take_stop(what, at)

    def _take_admission(self, request: Request) -> None:
        if (fault := self._take(K.REFUSE, frozenset((request.stay,)))) is not None:
            self._news.refused.append(Refusal(request.stay, code="invalid", text=fault.text))
            return
        work = self._working(request)
        self.scheduler.add(work)
        self._rows[request.stay] = Row(request, self._pulse.steps_begun, work.sequences)
        self._news.taken.append(request.stay)

    def _working(self, request: Request) -> WorkingStay:
        config: Mapping[str, Any] = request.config
        return WorkingStay(
            request.stay,
            tuple(request.prompt),
            max_new_tokens=config["max_new_tokens"],
            sequences=max(config.get("num_return_sequences", 1), config.get("num_beams", 1)),
            natural_length=None if config.get("ignore_eos") else self.model.natural_length(request.prompt),
            eos_token_id=self.model.eos_token_id,
            vocab_size=self.model.vocab_size,
        )

    def _take_stop(self, stay: int, at: float) -> None:
        row = self._rows.get(stay)
        if stay in self._ghosts:
            self._ghosts.discard(stay)
            self._news.released.append(Release(stay, steps=0, seconds=0.0, late_tokens=0))
        elif row is not None and row.stop_taken_at is None:
            self._mark_stopping(stay, row, at)

    def _mark_stopping(self, stay: int, row: Row, at: float) -> None:
        row.stop_taken_at, row.steps_at_stop = at, self._pulse.steps_begun
        self._news.stopping.append(stay)
        if row.over:
            return
        if self._take(K.LOST_STOP, frozenset((stay,))) is not None:
            self.scheduler.lose_stops(stay)
        if (fault := self._take(K.LATE_FREE, frozenset((stay,)))) is not None:
            row.release_not_before = self._pulse.steps_begun + 1 + fault.steps
        self.scheduler.stop(stay)

    def _stop_expired(self, at: float) -> None:
        if self._lasting(K.DEAF):
            return
        for stay, row in self._rows.items():
            if row.stop_taken_at is None and row.request.deadline <= at:
                self._mark_stopping(stay, row, at)

    def _begin_step(self, at: float) -> None:
        self._pulse = evolve(self._pulse, steps_begun=self._pulse.steps_begun + 1, begun_at=at)
        self._forget_one()
        fate = self._fate()
        outcome = StepOutcome(usage=self.scheduler.usage())
        if fate is None and not self._lasting(K.NO_PROGRESS):
            outcome = self.scheduler.step()
        slow = self._take(K.SLOW)
        took = self.model.step_s + self.model.token_s * outcome.scheduled_tokens + (slow.seconds if slow else 0.0)
        self._step = Step(at, math.inf if fate is not None and fate.kind is K.WEDGE else at + took, outcome, fate)
        self._pulse = evolve(self._pulse, scheduled=outcome.scheduled_tokens, attention=outcome.attention)

    def _fate(self) -> Fault | None:
        inside = frozenset(self._rows)
        return next((fault for kind in (K.WEDGE, K.CRASH, K.RAISE) if (fault := self._take(kind, inside))), None)

    def _forget_one(self) -> None:
        for stay in tuple(self._rows):
            if stay in self.scheduler and self._take(K.FORGOTTEN, frozenset((stay,))) is not None:
                self.scheduler.forget(stay)
                del self._rows[stay]
                return

    def _end_step(self, at: float, step: Step) -> None:
        self._step, self._free_at = None, at
        if step.fate is not None and step.fate.kind is K.CRASH:
            self._die(at, -step.fate.signal)
            return
        begun = self._pulse
        self._pulse = evolve(
            begun, steps_ended=begun.steps_begun, ended_at=at, inside_s=begun.inside_s + at - step.began
        )
        if step.fate is not None:
            self._dumb = True
            self._say(at, StepRaised(self.incarnation, self._pulse.steps_ended, step.fate.text))
            return
        self._record(step.outcome, at)
        self._report(step.began, at, step.outcome, idle=not self._rows)

    def _record(self, outcome: StepOutcome, at: float) -> None:
        for stay, token in outcome.tokens:
            self._record_token(stay, token)
        for stay, why in outcome.finished:
            self._record_finish(stay, why)
        for stay in outcome.removed:
            row = self._rows[stay]
            row.over, row.leaked = True, self._take(K.LEAK, frozenset((stay,))) is not None
        self._ignore_one()
        for stay in [i for i, row in self._rows.items() if row.over and not row.leaked]:
            self._release(stay, self._rows[stay], at)
        self._dirty = bool(outcome.removed)

    def _record_token(self, stay: int, token: int) -> None:
        row = self._rows[stay]
        if row.stop_taken_at is not None:
            row.late_tokens += 1
            return
        row.tokens.append(token)
        if row.sequences == 1:
            self._news.outputs.append(Output(stay, (token,), (-0.5,)))

    def _record_finish(self, stay: int, why: str) -> None:
        row = self._rows[stay]
        if row.stop_taken_at is None:
            self._news.finished.append(Finish(stay, why, self._results(row)))

    def _results(self, row: Row) -> tuple[SequenceResult, ...]:
        if row.sequences == 1:
            return ()
        texts = (tuple((t + n) % self.model.vocab_size for t in row.tokens) for n in range(row.sequences))
        return tuple(SequenceResult(text, (-0.5,) * len(text), -float(n)) for n, text in enumerate(texts))

    def _ignore_one(self) -> None:
        for stay, row in reversed(self._rows.items()):
            if not row.over and row.stop_taken_at is None and self._take(K.IGNORE, frozenset((stay,))) is not None:
                self.scheduler.forget(stay)
                row.over = True
                self._news.finished.append(Finish(stay, "ignored", self._results(row)))

    def _release(self, stay: int, row: Row, at: float) -> None:
        if self._pulse.steps_ended < row.release_not_before:
            return
        del self._rows[stay]
        if self._take(K.GHOST, frozenset((stay,))) is not None:
            self._ghosts.add(stay)
        stopped = row.stop_taken_at
        steps = 0 if stopped is None else self._pulse.steps_ended - row.steps_at_stop
        took = 0.0 if stopped is None else at - stopped
        self._news.released.append(Release(stay, steps=steps, seconds=took, late_tokens=row.late_tokens))

    def _report(self, began: float, ended: float, outcome: StepOutcome, *, idle: bool) -> None:
        news, self._news = self._news, News()
        steps = self._pulse.steps_ended
        self._say(
            ended,
            Progress(
                self.incarnation,
                steps=steps,
                began=began,
                ended=ended,
                scheduled=len(outcome.scheduled),
                usage=outcome.usage,
                held=self.held() if idle or steps % _RECONCILE == 0 else None,
                taken=tuple(news.taken),
                stopping=tuple(news.stopping),
                refused=tuple(news.refused),
                outputs=tuple(news.outputs),
                finished=tuple(news.finished),
                released=tuple(news.released),
            ),
        )
        if self._take(K.GARBAGE) is not None:
            self._say(ended, WireBroken(self.incarnation, "simulated fault"))
