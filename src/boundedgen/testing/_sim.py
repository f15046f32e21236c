"""A simulated engine: one incarnation, seen through its reports and its pulse, without a process and without real time.

The loop is that of the engine's child, and tests/conformance holds it to it report by report: take commands, stop what
was asked for or is past its deadline, admit, step, report. Time is passed in.
"""

import heapq
import math
from collections.abc import Sequence
from typing import final

from attrs import evolve

from boundedgen._core._events import BootFailed, Exited, Finish, Pulse, Ready, Release, Report, StepRaised, WireBroken
from boundedgen._engine._child import HELD_EVERY
from boundedgen._engine._guard import Guard
from boundedgen._engine._load import Workload
from boundedgen._engine._seam import Metrics
from boundedgen._engine._tidings import Tidings
from boundedgen.abc import Request
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._sim_scheduler import StepOutcome
from boundedgen.testing._sim_table import Row, Step

__all__ = ["SimEngine", "SimModel"]

K = FaultKind


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
        self.rss_bytes = self.model.rss_bytes  #: told with every report; a test may change it
        self.exited_at: float | None = None
        self.preempted = 0  #: times that its scheduler took blocks from somebody: what admission is to prevent
        self.scheduler = self.model.scheduler()
        self._guard = Guard(self.model.facts())
        self._load = Workload(self.model.max_num_batched_tokens)
        self._rows: dict[int, Row] = {}
        self._ghosts: set[int] = set()
        self._commands: list[tuple[float, int, Request | int]] = []
        self._halts: list[int] = []
        self._arrivals: dict[int, Request] = {}
        self._sent = 0
        self._reports: list[tuple[float, int, Report]] = []
        self._said = 0
        self._step: Step | None = None
        self._tidings = Tidings()
        self._pulse = Pulse()
        self._ready_at = at + self.model.boot_s
        self._booting = True
        self._dumb = False  # alive, but does nothing any more
        self._restless = False  # it has not made a step with nothing inside since it held something
        self._steps = 0  # that have returned
        self._usage = 0.0  # of the last of them
        self._free_at = at
        if any(f.kind is K.BOOT_DIES for f in self.faults):
            self._ready_at = at + self.model.boot_s / 2

    # --- commands ------------------------------------------------------------------------------------------------

    def admit(self, request: Request, at: float) -> None:
        """Sent at the instant `at`; taken in when it is between steps."""
        self._command(at, request)

    def stop(self, stay: int, at: float) -> None:
        """The same, for a stay that is to be released."""
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
        if self._rows or self._restless:
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
        return (*self._rows, *sorted(self._ghosts))

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
            lies = self._take(K.BOOT_LIES) is not None
            self._say(at, Ready(self.incarnation, self.model.facts(lies=lies), self.rss_bytes))

    def _between_steps(self, at: float) -> None:
        self._drain(at)
        self._stop_due(at)
        self._make_room(at)
        self._admit(at)
        if self._rows or self._restless:
            self._begin_step(at)
        else:
            self._tell(at)

    def _drain(self, at: float) -> None:
        while self._commands and self._commands[0][0] <= at and not self._lasting(K.DEAF):
            what = heapq.heappop(self._commands)[2]
            if self._take(K.LOST_COMMAND) is not None:
                continue
            if not isinstance(what, Request):
                self._halts.append(what)
            elif what.stay in self._rows or what.stay in self._arrivals:
                self._tidings.refuse(what.stay, "this stay is in the engine already")
            else:
                self._arrivals[what.stay] = what

    def _stop_due(self, at: float) -> None:
        """What was asked for first, then what is past its deadline."""
        for stay in self._halts:
            self._halt(stay, at)
        self._halts.clear()
        if self._lasting(K.DEAF):
            return
        for row in self._rows.values():
            if row.request.deadline <= at:
                self._stop(row, at)

    def _halt(self, stay: int, at: float) -> None:
        if stay in self._ghosts:
            self._ghosts.discard(stay)
            self._tidings.release(Release(stay, steps=0, seconds=0.0, late_tokens=0))
        elif (row := self._rows.get(stay)) is not None:
            self._stop(row, at)
        elif self._arrivals.pop(stay, None):
            self._tidings.never_entered(stay)

    def _make_room(self, at: float) -> None:
        for stay in self._guard.to_pause():
            if self._stop(self._rows[stay], at):
                self._tidings.paused.append(stay)

    def _stop(self, row: Row, at: float) -> bool:
        if row.ended or row.stop_taken_at is not None:
            return False
        stay = row.request.stay
        row.stop_taken_at, row.steps_at_stop = at, self._pulse.steps_begun
        row.release_not_before = self._pulse.steps_begun + self.model.proof_steps
        self._tidings.stopping.append(stay)
        self._tidings.news = True
        if self._take(K.LOST_STOP, frozenset((stay,))) is not None:
            self.scheduler.lose_stops(stay)
        if (fault := self._take(K.LATE_FREE, frozenset((stay,)))) is not None:
            row.release_not_before = self._pulse.steps_begun + 1 + fault.steps
        self.scheduler.stop(stay)
        self._leaves(stay)
        return True

    def _leaves(self, stay: int) -> None:
        self._guard.leaves(stay)
        self._load.over(stay)

    def _admit(self, at: float) -> None:
        for request in self._arrivals.values():
            if request.deadline <= at:
                self._tidings.never_entered(request.stay)
            elif (fault := self._take(K.REFUSE, frozenset((request.stay,)))) is not None:
                self._tidings.refuse(request.stay, fault.text)
            elif not request.prompt or request.config["max_new_tokens"] < 1:
                self._tidings.refuse(request.stay, "the prompt or max_new_tokens is empty")
            elif not self._guard.room_for(request):
                self._tidings.turn_back(request.stay)
            else:
                self._enter(request)
        self._arrivals.clear()

    def _enter(self, request: Request) -> None:
        row = self._rows[request.stay] = Row(request)
        self.scheduler.add(self.model.working(request, row.sequences))
        self._guard.enter(request)
        self._load.enter(request.stay, request)
        self._tidings.taken.append(request.stay)
        self._tidings.news = self._restless = True

    def _begin_step(self, at: float) -> None:
        scheduled, attention = self._load.schedule()
        begun = self._pulse.steps_begun + 1
        self._pulse = evolve(self._pulse, steps_begun=begun, begun_at=at, scheduled=scheduled, attention=attention)
        self._restless = bool(self._rows)
        self._forget_one()
        fate = self._fate()
        outcome = StepOutcome(usage=self.scheduler.usage())
        if fate is None and not self._lasting(K.NO_PROGRESS):
            try:
                outcome = self.scheduler.step()
            except ValueError as error:
                fate = Fault(kind=K.RAISE, text=f"ValueError: {error}")
        slow = self._take(K.SLOW)
        took = self.model.step_s + self.model.token_s * outcome.scheduled_tokens + (slow.seconds if slow else 0.0)
        self._step = Step(at, math.inf if fate is not None and fate.kind is K.WEDGE else at + took, outcome, fate)

    def _fate(self) -> Fault | None:
        inside = frozenset(self._rows)
        return next((fault for kind in (K.WEDGE, K.CRASH, K.RAISE) if (fault := self._take(kind, inside))), None)

    def _forget_one(self) -> None:
        for stay in tuple(self._rows):
            if stay in self.scheduler and self._take(K.FORGOTTEN, frozenset((stay,))) is not None:
                self.scheduler.forget(stay)
                self._gone(stay)
                return

    def _end_step(self, at: float, step: Step) -> None:
        self._step, self._free_at = None, at
        if step.fate is not None and step.fate.kind is K.CRASH:
            self._die(at, -step.fate.signal)
            return
        begun, inside_s = self._pulse.steps_begun, self._pulse.inside_s + at - step.began
        load = self._pulse.scheduled, self._pulse.attention
        self._pulse = Pulse(begun, begun, self._pulse.begun_at, at, inside_s)
        if step.fate is not None:
            self._poison(at, step.fate.text)
            return
        self._steps += 1
        self._tidings.stepped(step.began, Metrics(len(step.outcome.scheduled), 0.0, None), load)
        self.preempted += len(step.outcome.preempted)
        self._guard.stepped()
        self._record(step.outcome, at)
        self._tidings.table_due = not self._rows or self._steps % HELD_EVERY == 0
        self._tell(at)
        if self._take(K.GARBAGE) is not None:
            self._say(at, WireBroken(self.incarnation, "simulated fault"))

    def _poison(self, at: float, text: str) -> None:
        self._dumb = True
        self._tell(at)
        self._say(at, StepRaised(self.incarnation, self._steps, text))

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
        self._usage = outcome.usage

    def _record_token(self, stay: int, token: int) -> None:
        row = self._rows[stay]
        if row.stop_taken_at is not None:
            row.late_tokens += 1
            return
        row.tokens.append(token)
        self._guard.shown(stay, 1)
        if row.sequences == 1:
            self._tidings.output(stay, [token], list(row.logprobs(1)))

    def _record_finish(self, stay: int, why: str) -> None:
        row = self._rows[stay]
        if row.stop_taken_at is None:
            row.ended = True
            self._leaves(stay)
            row.release_not_before = self._steps + self.model.proof_steps
            results = row.results(self.model.vocab_size) if why != "ignored" else ()
            self._tidings.finished.append(Finish(stay, why, results))

    def _ignore_one(self) -> None:
        for stay, row in reversed(self._rows.items()):
            if not row.over and row.stop_taken_at is None and self._take(K.IGNORE, frozenset((stay,))) is not None:
                self.scheduler.forget(stay)
                row.over = True
                self._record_finish(stay, "ignored")

    def _release(self, stay: int, row: Row, at: float) -> None:
        if self._pulse.steps_ended < row.release_not_before:
            return
        self._gone(stay)
        if self._take(K.GHOST, frozenset((stay,))) is not None:
            self._ghosts.add(stay)
        self._tidings.released.append(row.release(self._pulse.steps_ended, at))

    def _gone(self, stay: int) -> None:
        del self._rows[stay]
        self._guard.gone(stay)
        self._load.gone(stay)

    def _tell(self, at: float) -> None:
        if not self._tidings.news:
            return
        if self._tidings.table_due:
            self._tidings.held = self.held()
        ended, metrics = self._pulse.ended_at, Metrics(0, self._usage, None)
        self._say(at, self._tidings.report(self.incarnation, self._steps, ended, metrics, self.rss_bytes))
        self._tidings = Tidings()
