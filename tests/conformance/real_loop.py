"""The real loop over the real engine, round by round: `run` is an experiment for a laboratory process.

All of the child is real but its process: the loop, the adapter, the wire with its frames and pipes, the stamps. The
clock is ours: it stands still except in a step, and each step takes a second.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict
from conformance.scripts import Admit, Command, Script, load
from conformance.traces import Loads, Trace, record

from boundedgen._core._events import EngineFacts, Report, StepRaised
from boundedgen._engine import _child, _genai
from boundedgen._engine._frames import Decoder
from boundedgen._engine._line import Line
from boundedgen._engine._seam import Engine, EngineStay, Metrics
from boundedgen._engine._stamps import StampReader, StampWriter, create
from boundedgen._engine._wire import Halt, decode, encode
from boundedgen.abc import Request

_F_SETPIPE_SZ = 1031
_ROOM = 1 << 20
_NOBODY = 10**9  #: a stay that never was: its stop wakes a loop that sleeps, and does nothing else
_ROUNDS_MAX = 3000


class Clock:
    """Stands in for the loop's `time` module."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Paced:
    """An engine whose steps take a second of `clock`, and are looked at while they run."""

    def __init__(self, engine: Engine, clock: Clock, stamps: StampReader, loads: Loads) -> None:
        self._engine, self._clock, self._stamps, self._loads = engine, clock, stamps, loads

    @property
    def facts(self) -> EngineFacts:
        return self._engine.facts

    @property
    def step_tokens(self) -> int:
        return self._engine.step_tokens

    def add(self, request: Request) -> EngineStay:
        return self._engine.add(request)

    def step(self) -> Metrics:
        self._loads.see(self._stamps.read())
        self._clock.now += 1.0
        return self._engine.step()


class Lane:
    """A fresh loop over an engine that has nothing inside."""

    def __init__(self, engine: Engine) -> None:
        self._clock, self._loads = Clock(), Loads()
        vars(_child)["time"] = self._clock
        self._commands, self._reports = self._pipe(), self._pipe()
        self._stamps = create()
        self._reader = StampReader(self._stamps)
        paced = Paced(engine, self._clock, self._reader, self._loads)
        line = Line(self._commands[0], self._reports[1], 1, _ROOM)
        self._decoder = Decoder(_ROOM)
        self._loop = _child.Loop(paced, line, StampWriter(self._stamps), 1, [])

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(ends[1], _F_SETPIPE_SZ, _ROOM)
        os.set_blocking(ends[0], False)
        return ends

    def round(self, commands: Sequence[Request | Halt]) -> list[Report]:
        """What is said in a round that takes exactly these commands. A second passes."""
        began = self._clock.now
        for command in commands or [Halt(_NOBODY)]:
            os.write(self._commands[1], encode(command, 1))
        self._loop.round()
        self._clock.now = began + 1.0
        return self._said()

    def _said(self) -> list[Report]:
        try:
            data = os.read(self._reports[0], _ROOM)
        except BlockingIOError:
            return []
        return [word for frame in self._decoder.feed(data) if isinstance(word := decode(frame), Report)]

    def run(self, script: Script, stops: Mapping[int, int]) -> Trace:
        """Until it is at rest. `stops`: the stop token of a stay."""
        trace: Trace = []
        for instant in range(_ROUNDS_MAX):
            reports = self.round([_word(command, stops) for command in script.at(instant)])
            trace += [record(report, self._loads.of(report)) for report in reports]
            if any(isinstance(report, StepRaised) for report in reports):
                return trace
            if instant >= script.last and not reports:
                return trace
        return [*trace, {"unfinished": _ROUNDS_MAX}]

    def close(self) -> None:
        self._reader.close()
        for fd in (*self._commands, *self._reports, self._stamps):
            os.close(fd)


def _word(command: Command, stops: Mapping[int, int]) -> Request | Halt:
    if not isinstance(command, Admit):
        return Halt(command.stay)
    fields = command.fields()
    if command.stay in stops:
        fields["stop_token_ids"] = [stops[command.stay]]
    return Request(command.stay, command.ids(), fields, command.deadline, claim=command.claim)


# --- in the laboratory -----------------------------------------------------------------------------------------------

_kept: dict[str, _genai.GenAIEngine] = {}


def _engine(spec: Mapping[str, Any]) -> _genai.GenAIEngine:
    """Loaded once a laboratory. On a GPU only one is alive at a time: several slow each other down there."""
    key = repr(sorted(spec.items()))
    if key not in _kept:
        if spec["device"] != "CPU":
            _kept.clear()
        _kept[key] = _load(spec)
    return _kept[key]


def _load(spec: Mapping[str, Any]) -> _genai.GenAIEngine:
    usual = _genai.proof_in_use
    if spec["counted"]:
        vars(_genai)["proof_in_use"] = lambda: "request_count"
    try:
        return _genai.load(spec)
    finally:
        vars(_genai)["proof_in_use"] = usual


def facts(spec: Mapping[str, Any]) -> dict[str, Any]:
    engine = _engine(spec)
    return {**asdict(engine.facts), "step_tokens": engine.step_tokens}


def greedy(spec: Mapping[str, Any], prompt: Sequence[int], new: int) -> list[int]:
    """What the model says to a prompt when nobody else is inside."""
    engine = _engine(spec)
    config = {"max_new_tokens": new, "ignore_eos": True}
    stay = engine.add(Request(_NOBODY, prompt, config, 0.0))
    tokens: list[int] = []
    why = ""
    while not why:
        engine.step()
        fresh, _, why = stay.collect()
        tokens += fresh
    while not stay.released():
        engine.step()
    engine.step()
    return tokens


def run(spec: Mapping[str, Any], scripts: Sequence[Any], stops: Sequence[Mapping[str, int]]) -> list[Trace]:
    """The traces of `scripts`, one after another on one engine. One that raised is replaced."""
    return [_run(spec, load(data), of) for data, of in zip(scripts, stops, strict=True)]


def _run(spec: Mapping[str, Any], script: Script, stops: Mapping[str, int]) -> Trace:
    lane = Lane(_engine(spec))
    try:
        trace = lane.run(script, {int(stay): token for stay, token in stops.items()})
    finally:
        lane.close()
    if any("raised" in said for said in trace):
        _kept.clear()
    return trace
