"""Starts engine processes and speaks with them: `GenAIHost` makes a `ChildLink` an incarnation.

A process is started by exec, never by fork alone, in a process group of its own, and only by the driver's thread: the
kernel's parent-death signal, which the child asks for, follows the thread that started it. A group, not a session: a
session is a scheduling group of its own to Linux (autogroup), and beside a busy engine in one, threads of the parent
stood still for seconds (docs/engine-facts.md). Everything that belongs to one life (two pipes, the pipe of its output,
the stamps, the pidfd) is made with it and thrown away with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from boundedgen import _engine
from boundedgen._adapters import AdapterSet
from boundedgen._bounds import Limits
from boundedgen._core._events import (
    BootFailed,
    Exited,
    Progress,
    Pulse,
    Ready,
    Report,
    StepRaised,
    WireBroken,
    WireEnded,
)
from boundedgen._descriptors import above_stdio
from boundedgen._engine import _stacks, _start
from boundedgen._engine._commands import Commands
from boundedgen._engine._frames import Decoder, Frame, OtherVersionError, WireError
from boundedgen._engine._process import Ears, Life, Tap, reap_lost
from boundedgen._engine._stamps import StampReader, create
from boundedgen._engine._versions import replaced, versions
from boundedgen._engine._wire import Boot, Halt, Hello, Word, decode
from boundedgen._vision import vision_of
from boundedgen.abc import Request, Tokenizer

_F_SETPIPE_SZ = 1031
_WIDE = 1 << 20
_CLOCK_S = 0.001  #: two readings of one clock by two processes differ by less


@final
class GenAIHost:
    """OpenVINO GenAI in a child process. The arguments are validated plain data; `tokenizer` is called once."""

    def __init__(
        self,
        models_path: str | None,
        scheduler: Mapping[str, Any],
        device: str,
        properties: Mapping[str, Any],
        *,
        tokenizer_properties: Mapping[str, Any],
        limits: Limits,
        tokenizer: Callable[[], Tokenizer],
        insist_prefix_caching: bool = False,
        kind: Mapping[str, Any] | None = None,
        module: str = _engine.__name__,
        fault: Mapping[str, Any] | None = None,
    ) -> None:
        scheduler = dict(scheduler)
        insist = bool(scheduler.pop("unsafe_prefix_caching", False)) or insist_prefix_caching
        self._models_path, self._limits, self._module = models_path, limits, module
        self.model_name = Path(models_path or "").name  #: for the log
        self.vision = None if models_path is None else vision_of(Path(models_path))  #: None: it takes no images
        self._make_tokenizer, self._tokenizer = tokenizer, None
        versions()  # which reads files, here and not in the driver's thread
        self._spec: dict[str, Any] = {
            "models_path": models_path,
            "scheduler": scheduler,
            "device": device,
            "properties": dict(properties),
            "tokenizer_properties": dict(tokenizer_properties),
            "insist_prefix_caching": insist,
            "kind": kind,
            "adapters": [],
            "fault": None if fault is None else dict(fault),
        }

    lock: int | None = None  #: a descriptor that every engine inherits (`_device_lock`)
    adapters: AdapterSet | None = None  #: of the engines from here on
    _tokenizer: Tokenizer | None
    _last: ChildLink | None = None
    _served = False  #: an earlier incarnation was ready: a device that is missing now was there once

    def spawn(self, incarnation: int) -> ChildLink:
        """Start a fresh engine. By the driver's thread only. Raises what starting a process does, OSError mostly."""
        self._served = self._served or (self._last is not None and self._last.was_ready)
        spec = {**self._spec, "served": self._served, "device_lock": self.lock}
        inherited = () if self.lock is None else (self.lock,)
        if self.adapters is not None:
            spec["adapters"], inherited = self.adapters.spec(), (*inherited, *self.adapters.filenos())
        link = start(self._module, incarnation, self._limits, inherited)
        try:
            link.send(Boot(spec))
            link.flush()
        except BaseException:
            link.dispose()
            raise
        self._last = link
        return link

    def tokenizer(self) -> Tokenizer:
        """Loaded at the first call; raises ModelLoadFailed."""
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        return self._tokenizer

    def defaults(self) -> Mapping[str, Any]:
        """The model's own generation_config.json, as it is; empty for a GGUF file and where there is none."""
        try:
            text = (Path(self._models_path or "") / "generation_config.json").read_text(encoding="utf-8")
            fields = json.loads(text)
        except (OSError, ValueError):
            return {}
        return fields if isinstance(fields, dict) else {}


def start(module: str, incarnation: int, limits: Limits, inherited: tuple[int, ...] = ()) -> ChildLink:
    """Run `module` as an engine. No descriptor is left behind if that raises OSError."""
    reap_lost()
    with contextlib.ExitStack() as undo:
        commands, reports, output = (_pipe(undo) for _ in range(3))
        undo.callback(os.close, stamps := create())
        undo.callback(os.close, stacks := _stacks.create())
        stamp_reader, ears = StampReader(stamps), Ears()
        undo.callback(ears.close)
        for fd in (*commands, *reports, *output):
            os.set_blocking(fd, False)
        _widen(output[1])
        _widen(commands[1])
        began = time.monotonic()
        theirs = (commands[0], reports[1], stamps)
        numbers = (os.getpid(), incarnation, *theirs, limits.frame_bytes, stacks)
        process = subprocess.Popen(
            _start.command(module, *numbers),
            env=_start.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output[1],
            stderr=output[1],
            pass_fds=(*theirs, stacks, *inherited),
            close_fds=True,
            process_group=0,
        )
        life = Life(process, output[0], stacks, limits.stderr_bytes)
        undo.pop_all()
        for fd in (*theirs, output[1]):
            os.close(fd)
        link = ChildLink(incarnation, life, commands[1], reports[0], ears, stamp_reader, limits, began)
        try:
            ears.listen(reports[0], output[0], life.pidfd)
        except BaseException:
            link.dispose()
            raise
        return link


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    with contextlib.ExitStack() as at_fault:
        at_fault.callback(os.close, write)
        undo.callback(os.close, read := above_stdio(read))
        at_fault.pop_all()
    undo.callback(os.close, write := above_stdio(write))
    return read, write


def _widen(fd: int) -> None:
    """Room for what is not read at once: of its output the rest is lost, and of a long prompt it waits for a step."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _WIDE)


@final
class ChildLink:
    """One engine process, seen from the driver's thread. No call waits; none raises for what the engine did."""

    def __init__(
        self,
        incarnation: int,
        life: Life,
        commands: int,
        reports: int,
        ears: Ears,
        stamps: StampReader,
        limits: Limits,
        began: float,
    ) -> None:
        self._incarnation, self._life, self._commands, self._reports = incarnation, life, commands, Tap(reports)
        self._ears, self._stamps, self._began = ears, stamps, began
        self._decoder = Decoder(limits.frame_bytes)
        self._waiting = Commands(commands, incarnation, limits.outbox_bytes)
        self._broken: WireBroken | None = None
        self._deaf = False  # the command pipe has no reader any more
        self._mute = False  # what comes from here on is not looked at
        self._met = False
        self.was_ready = False
        self._disposed = False

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def pid(self) -> int | None:
        return self._life.pid

    def filenos(self) -> Sequence[int]:
        """One, which is readable while there is something to `receive`. None after `Exited`."""
        if self._disposed or self._life.over:
            return ()
        return (self._ears.fileno(),)

    def fileno_to_write(self) -> int | None:
        return self._commands if self._waiting and not self._deaf else None

    def admit(self, request: Request) -> None:
        self.send(request)

    def stop(self, stay: int) -> None:
        self.send(Halt(stay))

    def send(self, word: Word) -> None:
        """Queue a command for the next `flush`."""
        if not (self._deaf or self._disposed):
            self._waiting.put(word)

    def flush(self) -> None:
        if self._deaf or self._disposed:
            return
        try:
            self._waiting.flush()
        except OSError:
            self._deaf = True  # it has died; the pidfd says so

    def under_way(self) -> Sequence[tuple[str, int]]:
        return () if self._deaf else self._waiting.under_way()

    def receive(self) -> list[Report]:
        if self._disposed or self._life.over:
            return []
        heard = self._ears.heard()
        status = self._life.reap() if self._life.pidfd in heard else None
        ended = status is not None  # after which it says nothing more, and what it said may be newer than `heard`
        was_over = self._reports.over
        reports = self._read() if ended or self._reports.fd in heard else []
        if ended or self._life.output.fd in heard:
            self._life.drain()
        if self._reports.over or self._life.output.over:
            self._ears.forget(self._reports, self._life.output)
        if self._reports.over and not (was_over or ended):
            reports.append(WireEnded(self._incarnation))
        if self._broken is not None:
            reports.append(self._broken)
            self._broken = None
        if status is not None:
            reports.append(Exited(self._incarnation, status, self._life.text()))
        return reports

    def pulse(self) -> Pulse:
        return self._stamps.read()

    def sight(self) -> _stacks.Sight:
        """For the black box, before `Exited`. Raises OSError where there are no descriptors left."""
        return self._life.sight()

    def kill(self) -> None:
        if not self._disposed:
            self._life.kill()

    def dispose(self) -> None:
        """Give back descriptors and memory. A process that is still there is killed, and not waited for."""
        if self._disposed:
            return
        self._life.kill()
        self._disposed = True
        self._stamps.close()
        self._ears.close()
        os.close(self._commands)
        os.close(self._reports.fd)
        self._life.close()
        reap_lost()

    def _read(self) -> list[Report]:
        reports: list[Report] = []
        for data in self._reports.chunks():
            if self._mute:
                continue
            try:
                for frame in self._decoder.feed(data):
                    reports += self._report(frame)
            except OtherVersionError as error:
                reports += self._refuse(str(error)) if not self._met else []
                self._break(str(error))
            except WireError as error:
                self._break(str(error))
        return reports

    def _report(self, frame: Frame) -> list[Report]:
        if self._mute:
            return []
        if frame.incarnation != self._incarnation:
            raise WireError(f"a frame of incarnation {frame.incarnation}")
        word = decode(frame)
        if isinstance(word, Hello):
            return self._meet(word)
        if not self._met:
            raise WireError("a report before the first word")
        self.was_ready = self.was_ready or isinstance(word, Ready)
        if isinstance(word, Progress):
            for stay in (*word.taken, *(refusal.stay for refusal in word.refused)):
                self._waiting.heard(stay)
        if isinstance(word, Ready | BootFailed | Progress | StepRaised):
            return [word]
        raise WireError("a command, from the engine")

    def _meet(self, hello: Hello) -> list[Report]:
        """Deadlines and stamps mean nothing if the engine's clock is another one; nor do words, if it has others."""
        self._met = True
        if other := replaced(versions(), hello.versions):
            return self._refuse(other)
        if self._began - _CLOCK_S <= hello.at <= time.monotonic() + _CLOCK_S:
            return []
        clocks = f"the engine's monotonic clock reads {hello.at:.3f} s, the parent's {time.monotonic():.3f} s"
        return self._refuse(clocks)

    def _refuse(self, text: str) -> list[Report]:
        """No other engine will be of more use. What this one says from here on is not looked at."""
        self._mute = True
        return [BootFailed(self._incarnation, "other", text, permanent=True)]

    def _break(self, text: str) -> None:
        if not self._mute:
            self._mute = True
            self._broken = WireBroken(self._incarnation, text)
