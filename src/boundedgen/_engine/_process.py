"""An engine's process as the parent holds it: the ends of what it speaks through, and its life until it is reaped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections import deque
from typing import final

from boundedgen._core._events import UNKNOWN_STATUS
from boundedgen._descriptors import above_stdio
from boundedgen._engine import _stacks

_READ = 1 << 16  #: a larger buffer is mapped, and unmapped, at every read: 35 us of nothing
_READS = 64  #: of one pipe in one `chunks`, so that a flood in one does not starve the others
_AT_ONCE_S = 1.0  #: a process that has just been started leaves sooner


@final
class Tap:
    """The end of a pipe that is read. `over`: nobody can write to it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.over = False

    def chunks(self) -> list[bytes]:
        """What can be read now, within reason. A read that does not fill its buffer has emptied the pipe."""
        chunks: list[bytes] = []
        while not self.over and len(chunks) < _READS and (not chunks or len(chunks[-1]) == _READ):
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
class Ears:
    """Which of the descriptors that an engine speaks through have something to say; one to wait for all of them."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self.fileno, self.close = self._poller.fileno, self._poller.close

    def listen(self, *fds: int) -> None:
        for fd in fds:
            self._poller.register(fd, select.EPOLLIN)

    def heard(self) -> frozenset[int]:
        """The ones that can be read now."""
        return frozenset([fd for fd, _ in self._poller.poll(0)])

    def forget(self, *taps: Tap) -> None:
        """Those that nobody can write to any more: they would be readable for ever."""
        for tap in taps:
            if tap.over:
                with contextlib.suppress(FileNotFoundError):  # forgotten before
                    self._poller.unregister(tap.fd)


@final
class Life:
    """The process, its output, its end."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, stacks: int, keep: int) -> None:
        self._process, self.output, self._stacks, self._keep = process, Tap(output), stacks, keep
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
            status = UNKNOWN_STATUS  # SIGCHLD is ignored, or it was a stray waitpid
        self.over = True
        self._process.returncode = status
        return status

    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")

    def sight(self) -> _stacks.Sight:
        with contextlib.ExitStack() as undo:
            pidfd = above_stdio(os.dup(self.pidfd))
            undo.callback(os.close, pidfd)
            stacks = above_stdio(os.dup(self._stacks))
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


_lost: deque[Life] = deque()  # of all hosts of this process, and so of several driver threads


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
        with contextlib.suppress(subprocess.TimeoutExpired):  # this is the driver's thread
            process.wait(_AT_ONCE_S)
        raise
