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
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from boundedgen import _engine
from boundedgen._bounds import Limits
from boundedgen._core._events import BootFailed, Exited, Progress, Pulse, Ready, Report, StepRaised, WireBroken
from boundedgen._engine import _stacks
from boundedgen._engine._frames import Decoder, Frame, Outbox, WireError
from boundedgen._engine._stamps import StampReader, create
from boundedgen._engine._wire import Boot, Halt, Hello, Word, decode, encode
from boundedgen.abc import Request, Tokenizer

_F_SETPIPE_SZ = 1031
_OUTPUT_PIPE = 1 << 20
_READ = 1 << 18
_READS = 16  #: of one pipe in one `receive`, so that a flood in one does not starve the others
_CLOCK_S = 0.001  #: two readings of one clock by two processes differ by less
_UNKNOWN_STATUS = -int(signal.SIGKILL)  #: somebody else reaped it (SIGCHLD ignored, or a stray waitpid)


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
        module: str = _engine.__name__,
        fault: Mapping[str, Any] | None = None,
    ) -> None:
        scheduler = dict(scheduler)
        insist = bool(scheduler.pop("unsafe_prefix_caching", False)) or insist_prefix_caching
        self._models_path, self._limits, self._module = models_path, limits, module
        self._make_tokenizer, self._tokenizer = tokenizer, None
        self._spec: dict[str, Any] = {
            "models_path": models_path,
            "scheduler": scheduler,
            "device": device,
            "properties": dict(properties),
            "tokenizer_properties": dict(tokenizer_properties),
            "insist_prefix_caching": insist,
            "fault": None if fault is None else dict(fault),
        }

    _tokenizer: Tokenizer | None
    _last: ChildLink | None = None
    _served = False  #: an earlier incarnation was ready: a device that is missing now was there once

    def spawn(self, incarnation: int) -> ChildLink:
        """Start a fresh engine. By the driver's thread only. Raises OSError if no process can be started."""
        self._served = self._served or (self._last is not None and self._last.was_ready)
        link = start(self._module, incarnation, self._limits)
        link.send(Boot({**self._spec, "served": self._served}))
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


def start(module: str, incarnation: int, limits: Limits) -> ChildLink:
    """Run `python -m module` as an engine. No descriptor is left behind if that raises OSError."""
    reap_lost()
    with contextlib.ExitStack() as undo:
        commands, reports, output = (_pipe(undo) for _ in range(3))
        undo.callback(os.close, stamps := create())
        undo.callback(os.close, stacks := _stacks.create())
        stamp_reader = StampReader(stamps)
        for fd in (*commands, *reports, *output):
            os.set_blocking(fd, False)
        _widen(output[1])
        began = time.monotonic()
        theirs = (commands[0], reports[1], stamps)
        numbers = (os.getpid(), incarnation, *theirs, limits.frame_bytes, stacks)
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=output[1],
            stderr=output[1],
            pass_fds=(*theirs, stacks),
            close_fds=True,
            process_group=0,
        )
        life = _Life(process, output[0], stacks, limits.stderr_bytes)
        undo.pop_all()
        for fd in (*theirs, output[1]):
            os.close(fd)
        return ChildLink(incarnation, life, commands[1], reports[0], stamp_reader, limits, began)


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _widen(fd: int) -> None:
    """Room for the engine's output while nobody reads it; what does not fit is lost, and blocks nobody."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _OUTPUT_PIPE)


@final
class _Tap:
    """The end of a pipe that is read. `over`: nobody can write to it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.over = False

    def chunks(self) -> list[bytes]:
        """What can be read now, within reason."""
        chunks: list[bytes] = []
        while not self.over and len(chunks) < _READS:
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if data:
                chunks.append(data)
            self.over = not data
        return chunks


@final
class _Life:
    """The process, its output, its end."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, stacks: int, keep: int) -> None:
        self._process, self.output, self._stacks, self._keep = process, _Tap(output), stacks, keep
        self.pid = process.pid
        self.pidfd = _pidfd(process)
        self._tail = bytearray()
        self.over = False

    def drain(self) -> None:
        """Read what it printed, and keep the end of that."""
        for data in self.output.chunks():
            self._tail += data
            del self._tail[: max(0, len(self._tail) - self._keep)]

    def kill(self) -> None:
        """The process, and whatever it left in its process group. Never after it was reaped."""
        if self.over:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Its exit code or minus its signal, once; None while it is there. Its grandchildren are killed before."""
        try:
            ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            self.kill()
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        except ChildProcessError:
            status = _UNKNOWN_STATUS
        self.over = True
        self._process.returncode = status
        return status

    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")

    def sight(self) -> _stacks.Sight:
        with contextlib.ExitStack() as undo:
            pidfd = os.dup(self.pidfd)
            undo.callback(os.close, pidfd)
            stacks = os.dup(self._stacks)
            undo.pop_all()
        return _stacks.Sight(self.pid, self.text(), pidfd, stacks)

    def close(self) -> None:
        """One that has not left yet keeps its pidfd, until `reap_lost` finds it gone."""
        os.close(self.output.fd)
        os.close(self._stacks)
        if self.over:
            os.close(self.pidfd)
        else:
            _lost.append(self)


_lost: deque[_Life] = deque()  # of all hosts of this process, and so of several driver threads


def reap_lost() -> None:
    """Leave no zombie of an engine that was disposed of before it had left."""
    for _ in range(len(_lost)):
        with contextlib.suppress(IndexError):
            life = _lost.popleft()
            if life.reap() is None:
                _lost.append(life)
            else:
                os.close(life.pidfd)


def _pidfd(process: subprocess.Popen[bytes]) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        raise


@final
class ChildLink:
    """One engine process, seen from the driver's thread. No call waits; none raises for what the engine did."""

    def __init__(
        self,
        incarnation: int,
        life: _Life,
        commands: int,
        reports: int,
        stamps: StampReader,
        limits: Limits,
        began: float,
    ) -> None:
        self._incarnation, self._life, self._commands, self._reports = incarnation, life, commands, _Tap(reports)
        self._stamps, self._began = stamps, began
        self._decoder = Decoder(limits.frame_bytes)
        self._outbox = Outbox(limits.outbox_bytes)
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
        """Reports, output, and the pidfd, which is readable once the process has ended. None after `Exited`."""
        if self._disposed or self._life.over:
            return ()
        return (*(tap.fd for tap in (self._reports, self._life.output) if not tap.over), self._life.pidfd)

    def fileno_to_write(self) -> int | None:
        return self._commands if self._outbox and not self._deaf else None

    def admit(self, request: Request) -> None:
        self.send(request)

    def stop(self, stay: int) -> None:
        self.send(Halt(stay))

    def send(self, word: Word) -> None:
        """Queue a command and write what the pipe takes. More than Limits.outbox_bytes unread breaks the wire."""
        if self._deaf or self._disposed:
            return
        if not self._outbox.put(encode(word, self._incarnation)):
            self._break("the engine does not read its commands: Limits.outbox_bytes are waiting")
        self.flush()

    def flush(self) -> None:
        if self._deaf or self._disposed:
            return
        try:
            self._outbox.flush(self._commands)
        except OSError:
            self._deaf = True  # it has died; the pidfd says so

    def receive(self) -> list[Report]:
        if self._disposed or self._life.over:
            return []
        status = self._life.reap()
        reports = self._read()
        self._life.drain()
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
        if isinstance(word, Ready | BootFailed | Progress | StepRaised):
            return [word]
        raise WireError("a command, from the engine")

    def _meet(self, hello: Hello) -> list[Report]:
        """Deadlines and stamps mean nothing if the engine's clock is another one."""
        self._met = True
        if self._began - _CLOCK_S <= hello.at <= time.monotonic() + _CLOCK_S:
            return []
        text = f"the engine's monotonic clock reads {hello.at:.3f} s, the parent's {time.monotonic():.3f} s"
        self._mute = True
        return [BootFailed(self._incarnation, "other", text, permanent=True)]

    def _break(self, text: str) -> None:
        if not self._mute:
            self._mute = True
            self._broken = WireBroken(self._incarnation, text)
