"""The kinds of faults that deep/crashes.py injects: what the engine's process does, what is done to it, what it shows.

`inside` is for boundedgen.testing._faulty_child; a step number is drawn for each `*_at` whose value is None.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from typing import Any, final

from attrs import frozen

#: Whatever is noticed first: a stop or a command that is not taken, no step, no progress.
_SLUGGISH = ("ack", "reclaim", "progress")
#: The hung step; or a command that was on its way while the last steps before it ended, if that is overdue first.
_HANGS = ("step", "ack")


@final
@frozen
class Kind:
    name: str
    causes: frozenset[str]  #: that `stats().kills_total` may count it under
    inside: Mapping[str, Any]
    outside: int = 0  #: a signal that is sent to it

    def drawn(self, rng: random.Random) -> dict[str, Any]:
        return {key: rng.randrange(5, 80) if value is None else value for key, value in self.inside.items()}


def _inside(name: str, *causes: str, **inside: Any) -> Kind:
    return Kind(name, frozenset(causes), inside)


def _outside(name: str, how: int, *causes: str, **inside: Any) -> Kind:
    return Kind(name, frozenset(causes or {"died"}), inside, how)


DEVICE_LOST = "[GPU] clFlush, error code: -5 CL_OUT_OF_RESOURCES"
GONE = "died"
KINDS = (
    _inside("a step raises", "step_raised", raise_at=None),
    _inside("a step raises, the device is lost", "step_raised", raise_at=None, raise_text=DEVICE_LOST),
    _inside("a crash in a step", GONE, crash_at=None),
    _inside("an exit in a step", GONE, exit_at=None),
    _inside("a step hangs, holding the GIL", *_HANGS, hang_at=None),
    _inside("a step hangs, SIGTERM is ignored", *_HANGS, hang_at=None, ignore_sigterm=True),
    _inside("a step hangs, with a grandchild", *_HANGS, hang_at=None, grandchild=True),
    _inside("a step blocks on its pipe", *_HANGS, block_at=None),
    _inside("garbage on the wire", "wire", garbage_at=None),
    _inside("a cut frame", "wire", GONE, cut_at=None),
    _inside("a frame of another incarnation", "wire", stale_at=None),
    _inside("stops are lost", "reclaim", ignore_stops=True),
    _inside("no progress", *_SLUGGISH, stall_at=None),
    _inside("no submission is acknowledged", *_SLUGGISH, deaf_at=None),
    _outside("SIGKILL", signal.SIGKILL),
    _outside("SIGKILL, with a grandchild", signal.SIGKILL, grandchild=True),
    _outside("SIGKILL after a flood of output", signal.SIGKILL, flood_at=None, flood_bytes=32 << 20),
    _outside("SIGSEGV", signal.SIGSEGV),
    _outside("SIGSTOP", signal.SIGSTOP, "step", *_SLUGGISH),
)


def dealt(count: int, rng: random.Random) -> list[Kind]:
    """So many, in random order, each kind as often as every other, give or take one."""
    first = rng.sample(KINDS, len(KINDS))
    found = [first[n % len(first)] for n in range(count)]
    rng.shuffle(found)
    return found
