"""Where the engine stands, in Python: on a signal it writes the stacks of all its threads into memory of the parent's.

The signal's C routine writes them, so they come while the interpreter lock is held and while a step hangs. A process
that is stopped (SIGSTOP) writes them as the first thing when it is continued; one that is stuck inside the kernel, not.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal

from attrs import frozen

from boundedgen._descriptors import above_stdio

SIGNAL = signal.SIGUSR2
_PR_SET_PTRACER = 0x59616D61


@frozen
class Sight:
    """A process that can be looked at. The descriptors are copies: whoever has this closes them, with `close`."""

    pid: int
    output: str  #: the end of what it has printed
    pidfd: int
    stacks: int  #: what `offer` writes to

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.stacks)


def create() -> int:
    """A descriptor of memory without a name, gone with its last descriptor."""
    return above_stdio(os.memfd_create("boundedgen-stacks", os.MFD_CLOEXEC))


def offer(stacks: int, parent: int) -> None:
    """In the engine: SIGNAL has all stacks written to `stacks`; `parent` and its children may look (Yama, if any)."""
    os.set_inheritable(stacks, False)
    faulthandler.register(SIGNAL, file=stacks, all_threads=True, chain=False)
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, parent, 0, 0, 0)
