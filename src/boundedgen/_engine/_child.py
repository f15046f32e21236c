"""The engine's loop: take commands, stop, admit, step, report. It knows no engine, only the `Engine` protocol.

One round: what the parent has sent is read; stays whose stop was asked for or whose deadline has passed, and those that
are paused to make room, are drained and stopped; then newcomers are admitted; then one step runs between two stamps;
then its outputs, ends and releases go into one report. A report that the pipe does not take is merged with the next, up
to a size, so that the engine steps and stops on while the parent is away. With nothing held it sleeps in poll(). The
end of the command pipe ends the process.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from typing import NoReturn, final

from attrs import define, evolve

from boundedgen import _device_lock
from boundedgen._core._events import BootFailed, EngineFacts, Finish, Ready, Release, StepRaised
from boundedgen._engine import _compile_cache, _stacks
from boundedgen._engine._frames import WireError
from boundedgen._engine._guard import Guard
from boundedgen._engine._line import Line
from boundedgen._engine._load import Workload
from boundedgen._engine._parent import die_with
from boundedgen._engine._pixels import Intake, Pixels
from boundedgen._engine._seam import BootRefusedError, Engine, EngineStay, Load, Metrics
from boundedgen._engine._size import Size
from boundedgen._engine._stamps import StampWriter
from boundedgen._engine._tidings import Tidings
from boundedgen._engine._versions import versions
from boundedgen._engine._wire import Boot, Halt, Hello, Word, size_of
from boundedgen.abc import Request

_REST = 1 << 18  #: bytes of a report that are not one result: its numbers, a table of some thousand stays
HAND_OVER = 0.002  #: seconds that a step may be put off for somebody who is on the way in
HAND_OVER_SHARE = 0.05  #: of the last step, at most; below a millisecond it is not worth it
HELD_EVERY = 64  #: steps between two tables of what is held
_OOM_SCORE = b"500"


@final
@define(eq=False)
class Held:
    """A stay that the engine has not let go of, as far as it has proved."""

    stay: int
    inside: EngineStay
    deadline: float
    expected: int | None = None  #: prompt tokens, where they are to be compared with what the engine counts
    ended: bool = False
    unsaid: str = ""  #: its result cannot be told, and why
    stopped_at: float | None = None
    steps_since: int = 0  #: begun after the stop was taken


# --- the loop ----------------------------------------------------------------------------------------------------


@final
class Loop:
    """One incarnation's life after it became ready."""

    def __init__(
        self,
        engine: Engine,
        line: Line,
        stamps: StampWriter,
        incarnation: int,
        early: list[Word],
        size: Size | None = None,
    ) -> None:
        self._engine, self._line, self._stamps, self._incarnation = engine, line, stamps, incarnation
        self._held: dict[int, Held] = {}
        self._guard = Guard(engine.facts)
        self._load = Workload(engine.step_tokens, 1 + engine.facts.drafted)
        self._size = size
        self._halts: list[int] = []
        self._arrivals: dict[int, Request] = {}
        self._intake = Intake()
        self._tidings = Tidings()
        self._metrics = Metrics(0, 0.0, engine.facts.cache_bytes)
        self._steps = 0
        self._ended = self._step_s = 0.0
        self._followed = False  # somebody waits behind the last newcomer
        self._vacant = False  # the last step let something go
        self._restless = False  # the engine has not made a step with nothing inside since it held something
        self._poisoned = False
        for word in early:
            self._take(word)

    def run(self) -> NoReturn:
        while True:
            self.round()

    def round(self) -> None:
        """Commands, stops, admissions, at most one step, at most one report."""
        idle = self._poisoned or not (self._held or self._restless or self._arrivals or self._halts)
        words = self._line.words(within=None if idle else self._patience())
        for word in words:
            self._take(word)
        if self._poisoned:
            return
        now = time.monotonic()
        self._stop_due(now)
        self._make_room(now)
        self._admit()
        if self._held or self._restless:
            self._step()
        self._tell()

    def _patience(self) -> float:
        """Seconds for whoever follows upon one that has just left: without them it would come a whole step later."""
        expected, self._vacant = self._vacant and self._followed, False
        if not expected:
            return 0.0
        self._followed = False  # unless it comes, and somebody waits behind it in turn
        seconds = min(HAND_OVER, HAND_OVER_SHARE * self._step_s)
        return seconds if seconds >= 0.001 else 0.0

    def _take(self, word: Word) -> None:
        if isinstance(word, Request):
            self._followed = word.followed
            if word.stay in self._held or word.stay in self._arrivals:
                self._tidings.refuse(word.stay, "this stay is in the engine already")
            else:
                self._arrivals[word.stay] = self._intake.whole(word)
        elif isinstance(word, Pixels):
            self._intake.take(word)
        elif isinstance(word, Halt):
            self._halts.append(word.stay)
        else:
            raise WireError(f"{type(word).__name__} is no command")

    # stops

    def _stop_due(self, now: float) -> None:
        for stay in self._halts:
            self._halt(stay, now)
        self._halts.clear()
        for held in [held for held in self._held.values() if held.deadline <= now]:
            self._stop(held, now)

    def _halt(self, stay: int, now: float) -> None:
        if held := self._held.get(stay):
            self._stop(held, now)
        elif self._arrivals.pop(stay, None):
            self._tidings.never_entered(stay)

    def _stop(self, held: Held, now: float) -> bool:
        """Drain, then stop: a stop throws away what was not read. False: it has ended, or was stopped before."""
        if held.ended or held.stopped_at is not None:
            return False
        if self._collect(held):
            return False
        held.inside.stop()
        held.stopped_at = now
        self._leaves(held)
        self._tidings.stopping.append(held.stay)
        self._tidings.news = True
        return True

    def _leaves(self, held: Held) -> None:
        self._guard.leaves(held.stay)
        self._load.over(held.stay)

    def _make_room(self, now: float) -> None:
        for stay in self._guard.to_pause():
            if self._stop(self._held[stay], now):
                self._tidings.paused.append(stay)

    # admissions

    def _admit(self) -> None:
        """All that have come; of those with images one, since nothing else runs while they are encoded."""
        seen, later = False, {}
        for request in self._arrivals.values():
            if request.deadline <= time.monotonic():
                self._tidings.never_entered(request.stay)
            elif request.images and seen:
                later[request.stay] = request
            elif not self._guard.room_for(request):
                self._tidings.turn_back(request.stay)
            else:
                seen = seen or bool(request.images)
                self._enter(request)
        self._arrivals = later

    def _enter(self, request: Request) -> None:
        try:
            inside = self._add(request)
        except Exception as error:
            self._tidings.refuse(request.stay, f"{type(error).__name__}: {error}")
            return
        expected = None if request.text is None else request.text_prompt_tokens
        self._held[request.stay] = Held(request.stay, inside, request.deadline, expected)
        self._guard.enter(request)
        self._load.enter(request.stay, request)
        self._tidings.taken.append(request.stay)
        self._tidings.news = self._restless = True

    def _add(self, request: Request) -> EngineStay:
        if not request.images:
            return self._engine.add(request)
        self._stamps.encode(time.monotonic(), request.pixels)
        try:
            return self._engine.add(request)
        finally:
            self._stamps.encoded(time.monotonic())

    # the step

    def _step(self) -> None:
        self._restless = bool(self._held)
        began = time.monotonic()
        load = self._load.schedule()
        self._stamps.begin(began, *load)
        try:
            self._metrics = self._engine.step()
        except Exception as error:
            self._poison(error)
            return
        self._ended = time.monotonic()
        self._step_s = self._ended - began
        self._stamps.end(self._ended)
        self._steps += 1
        self._tidings.stepped(began, self._metrics, load)
        self._guard.stepped()
        for held in [held for held in self._held.values() if self._has_left(held)]:
            self._release(held)
        if not self._held or not self._steps % HELD_EVERY:
            self._tidings.table_due = True

    def _has_left(self, held: Held) -> bool:
        """Looks at what the step brought of it."""
        if held.stopped_at is not None:
            held.steps_since += 1
        elif not held.ended and not self._collect(held):
            return False
        return held.inside.released()

    def _collect(self, held: Held) -> bool:
        """Take what it has produced. True if it has ended."""
        token_ids, logprobs, why = held.inside.collect()
        if token_ids:
            self._tidings.output(held.stay, token_ids, logprobs)
            self._guard.shown(held.stay, len(token_ids))
            if len(token_ids) > 1:
                self._load.shown(held.stay, len(token_ids))
        if why:
            held.ended = True
            self._leaves(held)
            why = "ignored" if why == "stopped" else why
            self._finish(held, Finish(held.stay, why, held.inside.results()))
        return held.ended

    def _finish(self, held: Held, finish: Finish) -> None:
        """In a report that has room for it; one that fits into none ends its stay only, when that is released."""
        size, limit = size_of(finish), 2 * self._line.page - _REST
        if size > limit:
            held.unsaid = f"its result of {size} bytes is more than the {limit} that Limits.frame_bytes leaves for one"
            return
        if self._tidings.size + size > limit:
            self._say()
        self._tidings.finish(finish)
        self._tidings.news = True

    def _release(self, held: Held) -> None:
        del self._held[held.stay]
        self._vacant = True
        self._guard.gone(held.stay)
        self._load.gone(held.stay)
        if held.unsaid:
            self._tidings.refuse(held.stay, held.unsaid)
            return
        stopped = held.stopped_at is not None
        seconds = self._ended - held.stopped_at if held.stopped_at is not None else 0.0
        late = held.inside.late_tokens() if stopped else 0
        if held.expected is not None and (counted := held.inside.prompt_tokens()) not in (None, held.expected):
            self._tidings.counted += ((held.stay, counted),)
        self._tidings.release(Release(held.stay, held.steps_since, seconds, late))

    def _poison(self, error: Exception) -> None:
        """After an exception the engine is never called again, not even to stop what is inside."""
        now = time.monotonic()
        self._stamps.end(now)
        self._poisoned = True
        self._ended = now
        if self._tidings.news:
            self._say()
        self._line.send(StepRaised(self._incarnation, self._steps, f"{type(error).__name__}: {error}"))

    # the report

    def _tell(self) -> None:
        if not self._tidings.news or (self._line.busy and self._tidings.size < self._line.page):
            return
        if self._tidings.table_due:  # of now: what merged reports admit and release is in it
            self._tidings.held = tuple(self._held)
        rss = None if self._size is None else self._size.due(time.monotonic())
        self._say(rss)

    def _say(self, rss: int | None = None) -> None:
        self._line.send(self._tidings.report(self._incarnation, self._steps, self._ended, self._metrics, rss))
        self._tidings = Tidings(table_due=self._tidings.table_due and self._tidings.held is None)


# --- birth -------------------------------------------------------------------------------------------------------


def tie_to(parent: int) -> None:
    """Before all else: it ends with its parent, not by Ctrl-C, and says where it crashed."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(file=2)
    _offer_to_the_oom_killer()


def _offer_to_the_oom_killer() -> None:
    """The kernel takes the engine rather than the server."""
    try:
        with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
            if int(file.read()) < int(_OOM_SCORE):
                file.write(_OOM_SCORE)
    except (OSError, ValueError):
        return


def main(load: Load, argv: list[str] | None = None) -> NoReturn:
    """Runs an engine for the parent that started this process; see `_host.start`. Never returns."""
    parent, incarnation, commands, reports, stamps, frame_bytes, stacks = map(int, argv or sys.argv[1:])
    tie_to(parent)
    _stacks.offer(stacks, parent)
    try:
        _live(load, Line(commands, reports, incarnation, frame_bytes), stamps, incarnation)
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def _live(load: Load, line: Line, stamps: int, incarnation: int) -> NoReturn:
    writer = StampWriter(stamps)
    os.close(stamps)
    line.send(Hello(incarnation, time.monotonic(), os.getpid(), versions()))
    words: list[Word] = []
    while not words:
        words = line.words(within=None)
    engine, facts = _boot(load, words[0], line, incarnation)
    gc.collect()
    gc.freeze()
    size = Size()
    line.send(Ready(incarnation, facts, size.due(time.monotonic())))
    Loop(engine, line, writer, incarnation, words[1:], size).run()


def _boot(load: Load, first: Word, line: Line, incarnation: int) -> tuple[Engine, EngineFacts]:
    if not isinstance(first, Boot):
        raise WireError("the first word must be Boot")
    _device_lock.inherit(first.spec["device_lock"])
    start = _compile_cache.Start(first.spec["properties"])
    if start.notes:
        print(*start.notes, sep="\n", file=sys.stderr, flush=True)  # all that is seen of a start that crashes
    try:
        engine = load(first.spec)
    except BootRefusedError as error:
        start.refused(error)
        text = ". ".join([str(error), *start.notes])
        line.send(BootFailed(incarnation, error.kind, text, error.permanent))
        line.flush_all()
        os._exit(1)
    start.over()
    return engine, evolve(engine.facts, findings=(*engine.facts.findings, *start.notes))
