"""The one thread that may change anything: it drains the engine, takes commands, ticks the governor and does its will.
It runs no foreign code and no file I/O: what could wait goes aside. Others read what it publishes and post commands."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import evolve

from boundedgen import _forks
from boundedgen._aside import Aside
from boundedgen._asking import Asking
from boundedgen._core import _events as ev
from boundedgen._core._leases import Lease
from boundedgen._core._recording import Recorded
from boundedgen._core._sequences import Submission
from boundedgen._door import Count
from boundedgen._errors import FinishReason as Why
from boundedgen._errors import PipelineClosed
from boundedgen._evidence import Evidence
from boundedgen._flow import Flow
from boundedgen._journal import Journal
from boundedgen._lease import LeaseCell
from boundedgen._leaving import Leaving
from boundedgen._runtime import Runtime
from boundedgen._settings import Settings
from boundedgen._snapshot import Gauges, Snapshot, picture_of
from boundedgen.abc import EngineHost, EngineLink

LEAVES = 1.0  #: seconds within which a killed engine has left, unless it is stuck in the kernel
LOGGING = 1.0  #: seconds that closing waits for logging handlers


class Driver:
    """`turn()` is one wake without waiting; the runtime calls it. `over` is set when it has ended for good."""

    def __init__(self, host: EngineHost, settings: Settings, runtime: Runtime) -> None:
        limits, restart = settings.limits, settings.restart
        self.governor = Recorded(limits, settings.admission, forget_after=restart.forget_after, keep=limits.recorded)
        self.wakers = runtime.wakers()  # state changes
        self.flows: dict[int, Flow] = {}  # not settled, or not proved gone
        self.cells: dict[str, LeaseCell] = {}
        self.link: EngineLink | None = None
        self.refused = Count()  # renewals that came too late, or for no lease of ours
        self.leaving = Leaving()
        self.probe: Callable[[], object] = bool  # starts one, beside; the pipeline's
        self.switching: Callable[[ev.Equip | ev.Switched], object] = bool  # carries it out; the pipeline's
        self.over = False
        self.foreign = ""  # in a fork of the process that has it: why nothing happens here
        self.failure: BaseException | None = None
        self.at_the_end: list[Callable[[], object]] = []  # when the last engine is gone; aside may be stuck by then
        self._host = host
        self._limits = limits
        self._clock = runtime
        self._commands: deque[tuple[str, tuple[Any, ...]]] = deque()
        self.asides: list[Aside] = [runtime.aside("boundedgen-aside")]  # closed at the end, and waited for
        self.beside = self.asides[0].run  #: for what may block: logging, for one. What it knows must not be this driver
        self._gauges = Gauges()
        self._evidence = Evidence(self.governor, self.flows, self.cells, limits)
        self.journal = Journal(self.beside, getattr(host, "model_name", ""))  # an engine of the user's own has none
        self.log = self.journal.log
        self.asking = Asking(restart, runtime.aside, self.journal.model)
        self._turning = runtime.turning(self)
        self.ring = self._turning.ring
        self._spoken_to = False  # its link may have something to say of a command itself
        now = runtime.now()
        self._gauges.became("starting", now)
        self.snapshot: Snapshot = self._gauges.take(self.governor, None, now)
        _forks.watch(self)

    # --- from any thread; nothing here waits ----------------------------------------------------------------------

    def start(self) -> None:
        """From now on it is turned; its first turn starts the engine."""
        self.post("start")
        self._turning.start()

    def abandon(self, timeout: float) -> None:
        """Nobody will ever hold it: an exception left the constructor, maybe an interrupt inside `start`."""
        self.post("close", 0)
        if not self._turning.abandon():
            self.join(timeout)

    def post(self, command: str, *args: Any) -> None:
        """Have the governor's method `command` called with `args` and the time of the next wake."""
        if self.foreign:
            return
        self._commands.append((command, args))
        if self.over or not self._turning.ring():
            self._sweep()

    def check_process(self) -> None:
        """Raises PipelineClosed in a fork, where nothing would ever answer."""
        if self.foreign:
            raise PipelineClosed(self.foreign)

    def disown(self, parent: int) -> None:
        """In a fork, which has none of our threads: here it is over, and nothing is done to the engine."""
        self.foreign = f"this pipeline lives in process {parent}; after a fork, build one of your own"
        self.over = True
        now = self._clock.now()
        self.snapshot = evolve(
            self.snapshot, at=now, expected=None, state="closed", state_since=now, reason=self.foreign, failed=False
        )

    def submit(self, flow: Flow) -> None:
        """One append: whatever interrupts the caller, the driver has all of it or nothing."""
        self.check_process()
        self.post("submit", flow)

    def grant(self, cell: LeaseCell) -> None:
        """Likewise. It can be found at once, whenever the driver hears of it."""
        self.check_process()
        self.post("grant", cell)
        self.cells[cell.row.id] = cell
        if cell.row.ended:
            self.cells.pop(cell.row.id, None)

    def alive(self) -> bool:
        return self._turning.alive()

    def join(self, timeout: float) -> None:
        """Wait until it has ended."""
        until = time.monotonic() + timeout
        if self._turning.join(timeout):
            for aside in self.asides:
                aside.join(min(LOGGING, max(0.0, until - time.monotonic())))
            self.leaving.join(max(0.0, until - time.monotonic()))

    async def ended(self, timeout: float) -> bool:
        """Wait for it, in a coroutine. False: not within `timeout` seconds."""
        return await self._turning.ended(timeout)

    def _sweep(self) -> None:
        """After the end: whoever takes a command out answers it."""
        while self._commands:
            try:
                command, args = self._commands.popleft()
            except IndexError:
                return
            if command == "submit":
                self._settle_late(self._take_flow(*args).id)
            elif command == "grant":
                args[0].end()

    def _settle_late(self, sequence: int) -> None:
        if (flow := self.flows.pop(sequence, None)) is None:
            return
        if flow.admitted_at is None:
            flow.prove(ev.Prove(sequence, 0, 0, 0.0, "never_held"))
        if flow.settled is None:
            why = Why.INTERNAL if self.failure is not None else Why.SHUTDOWN
            flow.settle(ev.Settle(sequence, why.value, "the pipeline has ended"), self._clock.now())
            self.journal.left(flow)
        flow.wakers.wake()  # whoever waits for a proof waits in vain

    # --- a turn --------------------------------------------------------------------------------------------------

    def turn(self, silent: bool = False) -> float | None:
        """One wake. Returns the instant of the next one; None: only when something happens.

        `silent`: it is known that the engine has said nothing since the last one.
        """
        now = self._drain(silent)
        self._take_commands(now)
        self.journal.woke(self.snapshot.expected, now)
        self._gather_evidence(now)
        self.governor.tick(now)
        while effects := self.governor.poll():
            for effect in effects:
                self._carry_out(effect, now)
        if (incarnation := self.leaving.to_kill(now)) is not None:
            self._on_link(incarnation, lambda link: link.kill())
        if self.link is not None:
            self.link.flush()
        self.journal.look(self.governor, now)
        until = self._publish(now)
        self.leaving.begin(self)
        return until

    def _drain(self, silent: bool) -> float:
        """Returns the time of this wake, taken after reading: a deadline that the engine saw pass has passed."""
        link, now = self.link, self._clock.now()
        if link is None:
            return now
        spoken_to, self._spoken_to = self._spoken_to, False
        if silent and not spoken_to:
            self._look(link, now)
            if self.governor.watch.verdict(now) is None:
                return now
        reports, now = link.receive(), self._clock.now()
        self._look(link, now)
        for report in reports:
            self.leaving.hear(self, report, now)
            if isinstance(report, ev.Exited):
                self._drop_link(link)
        return now

    def _look(self, link: EngineLink, now: float) -> None:
        self.governor.pulse(link.pulse(), now)
        if commands := link.under_way():
            self.governor.under_way(commands, now)

    def _drop_link(self, link: EngineLink) -> None:
        self._turning.forget()
        link.dispose()
        if self.link is link:
            self.link = None

    def _take_commands(self, now: float) -> None:
        for _ in range(len(self._commands)):  # those that come meanwhile must not hold up deadlines
            command, args = self._commands.popleft()
            if command == "submit":
                args = (self._take_flow(*args),)
            elif command == "grant":
                args = (self._take_cell(*args),)
            getattr(self.governor, command)(*args, now)

    def _take_flow(self, flow: Flow) -> Submission:
        self.flows[flow.submission.id] = flow
        self.journal.submitted(flow.submission)
        return flow.submission

    def _take_cell(self, cell: LeaseCell) -> Lease:
        return self.cells.setdefault(cell.row.id, cell).row

    def _gather_evidence(self, now: float) -> None:
        """Before anything is held against a reader or an owner: were they there in the meantime?"""
        while not self._evidence.end_leases(now):
            self._take_commands(now)  # each round needs a renewal that was not there in the last one
        self._evidence.judge_readers(now)
        self.asking.tick(self.governor.life.failures, now, self._restart)

    # --- effects -------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: ev.Effect, now: float) -> None:
        match effect:
            case ev.Emit():  # nearly all are, so it comes first
                self._emit(effect, now)
            case ev.Admit():
                self._admit(effect, now)
            case ev.Stop():
                self._on_link(effect.incarnation, lambda link: link.stop(effect.stay))
            case ev.Settle():
                self._settle(effect, now)
            case ev.Prove():
                self._prove(effect)
            case ev.Counted():
                self.flows[effect.sequence].counted(effect.tokens)
            case ev.Spawn():
                self._spawn(effect, now)
            case ev.Kill():
                self._kill(effect, now)
            case ev.Lost():
                self.journal.lost(effect, picture_of(self.snapshot, self.governor.watch, now))
            case ev.DecideRestart():
                self.asking.ask(effect, now, self._restart)
            case ev.Probe():
                self.probe()
            case ev.Equip() | ev.Switched():
                self.switching(effect)
            case ev.EndLease():
                self._end_lease(effect)
            case ev.Became():
                self._became(effect, now)

    def _on_link(self, incarnation: int, act: Callable[[EngineLink], None]) -> None:
        if self.link is not None and self.link.incarnation == incarnation:
            self._spoken_to = True
            act(self.link)

    def _emit(self, effect: ev.Emit, now: float) -> None:
        flow = self.flows[effect.sequence]
        flow.emit(effect, now)
        if flow.reading_since is not None:
            self._evidence.watch_reader(effect.sequence, flow)

    def _admit(self, effect: ev.Admit, now: float) -> None:
        flow = self.flows[effect.sequence]
        flow.admit(now)
        request = flow.request(effect)
        self.journal.admitted(flow.submission, effect, now)
        self._on_link(effect.incarnation, lambda link: link.admit(request))

    def _settle(self, effect: ev.Settle, now: float) -> None:
        flow = self.flows[effect.sequence]
        self._evidence.forget_reader(effect.sequence)
        if not effect.held:
            del self.flows[effect.sequence]
            if flow.reclaimed is None:
                flow.prove(flow.left or ev.Prove(effect.sequence, 0, 0, 0.0, "never_held"))
        flow.settle(effect, now)
        self.journal.settled(flow, effect, self.governor, now)

    def _prove(self, effect: ev.Prove) -> None:
        flow = self.flows.get(effect.sequence)
        if flow is None:
            return
        if (sequence := self.governor.sequences.get(effect.sequence)) is not None:
            flow.wait_again(effect, sequence.admitted_at)
            return
        flow.prove(effect)
        if flow.settled is not None:
            del self.flows[effect.sequence]

    def _spawn(self, effect: ev.Spawn, now: float) -> None:
        try:
            self.link = self._host.spawn(effect.incarnation)
            self.journal.spawned(effect.incarnation, self.link.pid)
        except Exception as error:  # of the system, or of what somebody has put into sys.path, sys.executable, …
            text = f"the engine process could not be started: {error}"
            self.governor.receive(ev.BootFailed(effect.incarnation, "other", text, False), now)
            self.governor.receive(ev.Exited(effect.incarnation, 1, text), now)

    def _kill(self, effect: ev.Kill, now: float) -> None:
        """At once, or, for a fault that a black box is kept of, a moment later."""
        if not self.leaving.spare(self, effect, now):
            self._on_link(effect.incarnation, lambda link: link.kill())

    def _restart(self, delay_s: float | None) -> None:
        self.post("restart", delay_s)

    def _end_lease(self, effect: ev.EndLease) -> None:
        cell = self.cells.pop(effect.lease, None)
        if cell is not None:
            cell.end()

    def _became(self, effect: ev.Became, now: float) -> None:
        self._gauges.became(effect.state, now)
        self.journal.became(effect, self.governor, now)

    # --- what others read ----------------------------------------------------------------------------------------

    def _publish(self, now: float) -> float | None:
        wakeup = self.governor.next_wakeup()
        others = (self._evidence.next(), self.asking.due, self.leaving.until)
        timers = [at for at in (wakeup, *others) if at is not None]
        wakeup = min(timers, default=None)
        changed = self.snapshot.state
        self.snapshot = self._gauges.take(self.governor, wakeup, now)
        if self.snapshot.state != changed:
            self.wakers.wake()
        self.over = self.over or self.snapshot.state == "closed"
        return wakeup

    def fail(self, error: BaseException) -> None:
        """A turn raised `error`, which no bug of others can bring about."""
        self.failure = error
        self.log(logging.CRITICAL, "driver_failed", "the driver failed; the pipeline is over", error=error)

    def end(self) -> None:
        """Nothing more will happen: answer whoever is left, let go of the engine and of what turned us."""
        self.over = True
        self._own_up()
        for thing in (
            *(() if self.link is None else (self.link.kill,)),
            self._answer_everybody,
            self._lose_the_engine,
            lambda: self.leaving.begin(self),
            *(aside.close for aside in self.asides),
            *self.at_the_end,
            self._turning.close,
        ):
            try:
                thing()
            except Exception as error:  # whatever is broken, the rest still has to be done
                self.failure = self.failure or error
        self._own_up()
        self.probe = self.switching = bool  # which know this driver
        self.wakers.wake()

    def _own_up(self) -> None:
        """Show a failure of our own, from what was last known to be true."""
        if self.failure is not None and self.snapshot.state != "failed":
            now = self._clock.now()
            self.snapshot = evolve(
                self.snapshot, at=now, expected=None, state="failed", state_since=now, reason="internal error"
            )

    def _lose_the_engine(self) -> None:
        """After a failure of ours nobody has waited for it yet: it is to be no zombie."""
        if (link := self.link) is None:
            return
        until = time.monotonic() + (0.0 if self.failure is None else LEAVES)
        try:
            while time.monotonic() < until and not any(isinstance(report, ev.Exited) for report in link.receive()):
                time.sleep(0.002)
        finally:
            self._drop_link(link)

    def _answer_everybody(self) -> None:
        self._sweep()
        for sequence in list(self.flows):
            self._settle_late(sequence)
        for cell in list(self.cells.values()):
            cell.end()
