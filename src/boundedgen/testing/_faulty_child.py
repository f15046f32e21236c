"""`python -m boundedgen.testing._faulty_child`: a real engine process that misbehaves on request, or needs no model.

`GenAIHost(None, {"num_kv_blocks": 64}, "CPU", {}, …, module=MODULE, fault={"hang_at": 5})` runs the same loop, wire
and stamps as the real engine. With `models_path` None a simulated engine takes the model's place: it is ready in the
time that Python needs to start, and the token at position p of a stay (its prompt counts) is
`(7 * prompt[0] + p) % 259`, so that a continued generation goes on as if nothing had happened.

Keys of `fault`, all optional; steps count from 1 in each incarnation:
`incarnations` (list: the only ones that misbehave), `hang_at`, `raise_at`, `exit_at`, `crash_at`, `abort_at`,
`garbage_at`, `cut_at`, `stale_at`, `flood_at`, `mute_at`, `grow_at`, `block_at` (on the pipe of its commands),
`deaf_at` (from there on it takes no command), `hush_at` (its reports have ended, and it lives), `stall_at` (from
there on its steps return and do nothing) (step numbers), `raise_text`, `flood_bytes`, `grow_bytes`, `step_s` (each
step takes so long), `slow_at` and `slow_s` (one does), `gil` (bool: slow steps hold the interpreter lock),
`ignore_stops` (bool), `ignore_sigterm` (bool), `grandchild` (bool), `boot_s`, `boot_raises` ([kind, text,
permanent]), `bad_cache` ("raise", "crash", "exit" or "hang": what loading does as long as a CACHE_DIR of the
properties holds a file named bad.blob), `device` (a file: it boots only if nobody else has it locked), `poison` (a
token id: the first step with such a prompt inside crashes), `encode_s` (seconds for
images), `clock` (a file: the first fault in the loop writes its
`time.monotonic()` there).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from attrs import define, field

from boundedgen._core._events import EngineFacts, PoolFacts, SequenceResult, StepRaised
from boundedgen._engine import _compile_cache, _wire
from boundedgen._engine._child import main
from boundedgen._engine._seam import BootRefusedError, Engine, EngineStay, Metrics
from boundedgen.abc import Request

MODULE = "boundedgen.testing._faulty_child"
VOCABULARY = 259
BLOCK = 32
EOS = 2
_FOREVER_S = 3600


# --- an engine without a model -----------------------------------------------------------------------------------


@final
@define(eq=False)
class SimStay(EngineStay):
    prompt: tuple[int, ...]
    config: Mapping[str, Any]
    computed: int = 0
    tokens: list[int] = field(factory=list)
    read: int = 0
    why: str = ""
    gone: bool = False
    late: int = 0

    @property
    def sequences(self) -> int:
        return max(int(self.config.get("num_beams", 1)), self.wanted)

    @property
    def wanted(self) -> int:
        return int(self.config.get("num_return_sequences", 1))

    @property
    def blocks(self) -> int:
        return self.sequences * -(-(self.computed + max(0, len(self.tokens) - 1)) // BLOCK)

    def advance(self, room: int) -> int:
        """One step's work with `room` tokens of budget; the tokens that it took."""
        if self.computed < len(self.prompt):
            taken = min(room, len(self.prompt) - self.computed)
            self.computed += taken
            if self.computed == len(self.prompt):
                self._produce()
            return taken
        self._produce()
        return self.sequences

    def _produce(self) -> None:
        self.tokens.append((7 * self.prompt[0] + len(self.prompt) + len(self.tokens)) % VOCABULARY)
        if self.tokens[-1] == EOS and not self.config.get("ignore_eos", False):
            self.why = "stop"
        elif len(self.tokens) >= int(self.config["max_new_tokens"]):
            self.why = "length"

    def collect(self) -> tuple[list[int], list[float], str]:
        if self.sequences > 1:
            return [], [], self.why
        fresh = self.tokens[self.read :]
        self.read += len(fresh)
        return fresh, [-0.5] * len(fresh) if self.config.get("logprobs") else [], self.why

    def results(self) -> tuple[SequenceResult, ...]:
        if self.sequences == 1:
            return ()
        return tuple(SequenceResult(tuple(self.tokens), (), -float(rank)) for rank in range(self.wanted))

    def stop(self) -> None:
        self.why = "stopped"

    def released(self) -> bool:
        return self.gone

    def late_tokens(self) -> int:
        return self.late


@final
class SimEngine:
    """Blocks are counted as the real one counts them; a pool that overflows makes `step` raise."""

    step_tokens = 256

    def __init__(self, spec: Mapping[str, Any]) -> None:
        scheduler = spec["scheduler"]
        self._blocks = int(scheduler.get("num_kv_blocks", 64)) + 1
        self._inside: list[SimStay] = []
        self._facts = EngineFacts(
            device=spec["device"],
            versions={"openvino-genai": "simulated"},
            pools=(PoolFacts("kv", self._blocks, BLOCK),),
            block_size=BLOCK,
            cache_bytes=self._blocks << 14,
            vocab_size=VOCABULARY,
            running_max=int(scheduler.get("max_num_seqs", 256)),
            probe_blocks={"kv": 1},
            max_prompt_tokens=None,
            hybrid=False,
            proof="perf_metrics",
        )

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    def add(self, request: Request) -> SimStay:
        if int(request.config["max_new_tokens"]) < 1 or not request.prompt:
            raise ValueError("max_new_tokens and the prompt must not be empty")
        stay = SimStay(tuple(request.prompt), request.config)
        self._inside.append(stay)
        return stay

    def step(self) -> Metrics:
        room = self.step_tokens
        scheduled = 0
        for stay in self._inside:
            if not stay.why and room > 0:
                room -= stay.advance(room)
                scheduled += 1
        used = sum(stay.blocks for stay in self._inside)
        if used > self._blocks:
            raise RuntimeError("Check 'can_allocate_blocks(1)' failed: the cache has overflowed")
        for stay in self._inside:
            stay.gone = bool(stay.why)
        self._inside = [stay for stay in self._inside if not stay.gone]
        return Metrics(scheduled, used / self._blocks, self._facts.cache_bytes)


# --- misbehaviour ------------------------------------------------------------------------------------------------


def _sleep_holding_the_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6)) if seconds < 1 else ctypes.PyDLL(None).sleep(int(seconds))


@final
class DeafStay(EngineStay):
    """Ignores its stop."""

    def __init__(self, inside: EngineStay, note: Callable[[], None]) -> None:
        self._inside, self._note = inside, note

    def collect(self) -> tuple[list[int], list[float], str]:
        return self._inside.collect()

    def results(self) -> tuple[SequenceResult, ...]:
        return self._inside.results()

    def stop(self) -> None:
        self._note()

    def released(self) -> bool:
        self._note()  # asked only of one that was stopped or has ended
        return False

    def late_tokens(self) -> int:
        return 0


#: The faults of `FaultyEngine` that have a step of their own.
_AT = (
    "hang",
    "raise",
    "exit",
    "crash",
    "abort",
    "garbage",
    "cut",
    "stale",
    "flood",
    "mute",
    "grow",
    "block",
    "deaf",
    "hush",
    "stall",
)


@final
class FaultyEngine:
    """Any engine, with faults at given steps."""

    def __init__(self, engine: Engine, fault: Mapping[str, Any], incarnation: int, commands: int, reports: int) -> None:
        self._engine, self._fault = engine, fault
        self._incarnation, self._commands, self._reports = incarnation, commands, reports
        self._steps = 0
        self._ballast = b""
        self._noted = self._stalled = self._poisoned = False

    @property
    def facts(self) -> EngineFacts:
        return self._engine.facts

    @property
    def step_tokens(self) -> int:
        return self._engine.step_tokens

    def add(self, request: Request) -> EngineStay:
        if request.images and (seconds := self._fault.get("encode_s")):
            self._note()
            time.sleep(seconds)
        inside = self._engine.add(request)
        self._poisoned = self._poisoned or self._fault.get("poison", -1) in request.prompt
        return DeafStay(inside, self._note) if self._fault.get("ignore_stops") else inside

    def step(self) -> Metrics:
        self._steps += 1
        self._delay()
        if self._poisoned:
            self._crash()
        for name in _AT:
            if self._fault.get(f"{name}_at") == self._steps:
                self._note()
                getattr(self, f"_{name}")()
        if self._stalled:
            time.sleep(0.001)
            return Metrics(0, 0.0, self._engine.facts.cache_bytes)
        return self._engine.step()

    def _note(self) -> None:
        """The first time only."""
        if not self._noted and (clock := self._fault.get("clock")):
            Path(clock).write_text(repr(time.monotonic()))
        self._noted = True

    def _delay(self) -> None:
        seconds = float(self._fault.get("step_s", 0.0))
        if self._fault.get("slow_at") == self._steps:
            seconds += float(self._fault["slow_s"])
        if seconds:
            (_sleep_holding_the_gil if self._fault.get("gil") else time.sleep)(seconds)

    def _hang(self) -> None:
        _sleep_holding_the_gil(_FOREVER_S)

    def _raise(self) -> None:
        raise RuntimeError(self._fault.get("raise_text", "Check 'simulated' failed: a fault was asked for"))

    def _exit(self) -> None:
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)

    def _crash(self) -> None:
        ctypes.string_at(0)

    def _abort(self) -> None:
        os.abort()

    def _garbage(self) -> None:
        os.write(self._reports, b"\0garbage, not a frame\n")

    def _cut(self) -> None:
        os.write(self._reports, _wire.encode(StepRaised(self._incarnation, 1, "cut"), self._incarnation)[:-3])
        os._exit(4)

    def _stale(self) -> None:
        os.write(self._reports, _wire.encode(StepRaised(0, 1, "stale"), self._incarnation - 1))

    def _block(self) -> None:
        os.set_blocking(self._commands, True)
        while os.read(self._commands, 1):
            pass

    def _deaf(self) -> None:
        """The parent's pipe keeps a reader, which never reads; another one that nobody writes to takes its place."""
        os.dup(self._commands)
        silence, _ = os.pipe()
        os.set_blocking(silence, False)
        os.dup2(silence, self._commands, inheritable=False)

    def _hush(self) -> None:
        """Nobody has the other end of the parent's pipe any more; what is said goes nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._reports)

    def _stall(self) -> None:
        self._stalled = True

    def _flood(self) -> None:
        left = int(self._fault.get("flood_bytes", 1 << 24))
        where = 1
        while left > 0:
            where = 3 - where
            try:
                left -= os.write(where, b"noise " * 4096)
            except BlockingIOError:
                time.sleep(0.0001)
                left -= 4096 * 6
        with contextlib.suppress(BlockingIOError):
            os.write(2, b"end of the flood\n")

    def _grow(self) -> None:
        self._ballast = b"x" * int(self._fault["grow_bytes"])

    def _mute(self) -> None:
        os.close(1)
        os.close(2)


def load(spec: Mapping[str, Any]) -> Engine:
    """The engine that `spec` names, wrapped in the faults that it asks for."""
    incarnation, commands, reports = map(int, sys.argv[2:5])
    fault = spec["fault"] or {}
    if incarnation not in fault.get("incarnations", [incarnation]):
        fault = {}
    if fault.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault.get("grandchild"):
        subprocess.Popen(["sleep", "1000"])
    time.sleep(float(fault.get("boot_s", 0.0)))
    if device := fault.get("device"):
        _lock(device)
    if refusal := fault.get("boot_raises"):
        raise BootRefusedError(*refusal)
    if (how := fault.get("bad_cache")) and any(map(_is_bad, _compile_cache.folders(spec["properties"]))):
        _fail_to_load(how)
    return FaultyEngine(_load(spec), fault, incarnation, commands, reports) if fault else _load(spec)


def _is_bad(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "bad.blob"))


def _fail_to_load(how: str) -> None:
    """As the GPU plugin does with a cache that a kill left half-written (docs/engine-facts.md), and otherwise."""
    if how == "raise":
        raise BootRefusedError("other", "Failed to create program during kernel build process", False)
    if how == "exit":
        os._exit(5)
    if how == "crash":
        ctypes.string_at(0)
    _sleep_holding_the_gil(_FOREVER_S)


def _lock(device: str) -> None:
    """Until the process ends."""
    try:
        fcntl.flock(os.open(device, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BootRefusedError("device", "another engine has it", permanent=True) from None


def _load(spec: Mapping[str, Any]) -> Engine:
    if spec["models_path"] is None:
        return SimEngine(spec)
    from boundedgen._engine import _genai

    return _genai.load(spec)


if __name__ == "__main__":
    main(load)
