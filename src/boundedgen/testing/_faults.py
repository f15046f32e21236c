"""Faults of a simulated engine, as data."""

import enum
from collections.abc import Mapping
from typing import final

from attrs import evolve, field, frozen

from boundedgen._core._events import Cause

__all__ = ["Fault", "FaultKind"]


@final
class FaultKind(enum.StrEnum):
    """What can go wrong with one incarnation. Lasting ones hold until it is dead; the rest happen once."""

    CRASH = "crash"  #: the process dies of `signal` inside a step
    WEDGE = "wedge"  #: a step never returns; the pulse says so
    RAISE = "raise"  #: a step raises; the engine is poisoned for ever
    SLOW = "slow"  #: a step takes `seconds` longer
    LOST_STOP = "lost_stop"  #: the child takes a stop and says so, the engine never acts on it
    LATE_FREE = "late_free"  #: a stopped stay is released only `steps` steps later than it should
    LEAK = "leak"  #: a stay that ends, in whichever way, is never released
    IGNORE = "ignore"  #: a stay is set IGNORED, as if the cache had run out
    NO_PROGRESS = "no_progress"  #: lasting: steps return, nothing is scheduled, nothing released
    DEAF = "deaf"  #: lasting: commands are not taken any more, steps go on
    LOST_COMMAND = "lost_command"  #: one command vanishes
    REFUSE = "refuse"  #: an admission is refused
    GHOST = "ghost"  #: a stay that was reported released stays in the table, with its blocks, until stopped again
    FORGOTTEN = "forgotten"  #: a stay vanishes from the engine without a word
    STILLBORN = "stillborn"  #: the boot never ends
    BOOT_FAILS = "boot_fails"  #: the boot ends in `BootFailed` (`permanent`), then the process exits
    BOOT_DIES = "boot_dies"  #: the process dies of `signal` while it boots
    BOOT_LIES = "boot_lies"  #: it is ready, and its canary is another one than it should be
    GARBAGE = "garbage"  #: a frame that cannot be read, after a step
    UNKILLABLE = "unkillable"  #: lasting: a kill has no effect, `Exited` never comes
    LATE_WORDS = "late_words"  #: its latest reports (256) arrive once more after the next one was spawned


BOOT_FAULTS = frozenset({FaultKind.STILLBORN, FaultKind.BOOT_FAILS, FaultKind.BOOT_DIES, FaultKind.BOOT_LIES})

#: Which of them may cost an engine its life, by the cause that `stats().kills_total` counts it under.
JUSTIFIES: Mapping[Cause, frozenset[FaultKind]] = {
    Cause.STEP: frozenset({FaultKind.WEDGE, FaultKind.SLOW}),
    Cause.BOOT: frozenset({FaultKind.STILLBORN, FaultKind.BOOT_FAILS}),
    Cause.CANARY: frozenset({FaultKind.BOOT_LIES}),
    Cause.RECLAIM: frozenset({FaultKind.LOST_STOP, FaultKind.LEAK, FaultKind.NO_PROGRESS, FaultKind.FORGOTTEN}),
    Cause.PROGRESS: frozenset({FaultKind.NO_PROGRESS, FaultKind.DEAF, FaultKind.LOST_COMMAND}),
    Cause.ACK: frozenset({FaultKind.DEAF, FaultKind.LOST_COMMAND, FaultKind.FORGOTTEN}),
    Cause.STEP_RAISED: frozenset({FaultKind.RAISE}),
    Cause.DIED: frozenset({FaultKind.CRASH, FaultKind.BOOT_DIES}),
    Cause.WIRE: frozenset({FaultKind.GARBAGE}),
}


def _kind(value: "str | FaultKind") -> FaultKind:
    try:
        return FaultKind(value)
    except ValueError:
        raise ValueError(f"there is no fault {value!r}; there are: {', '.join(FaultKind)}") from None


@final
@frozen(kw_only=True)
class Fault:
    """One fault and its trigger: the first step numbered `at_step` or later in which `stay`, if given, is concerned."""

    kind: FaultKind = field(converter=_kind)  #: or its value, as in `Fault(kind="wedge")`
    at_step: int = 1  #: steps of an incarnation are numbered from 1
    stay: int | None = None
    seconds: float = 0.0  #: for SLOW
    steps: int = 1  #: for LATE_FREE
    signal: int = 11  #: for CRASH and BOOT_DIES
    permanent: bool = False  #: for BOOT_FAILS
    text: str = field(default="simulated fault")

    def to(self, stay: int) -> "Fault":
        """The same, to this stay only."""
        return evolve(self, stay=stay)

    def at(self, step: int) -> "Fault":
        """The same, at this step or the first one after it that fits."""
        return evolve(self, at_step=step)

    def due(self, step: int, stays: frozenset[int] | None = None) -> bool:
        """True in step number `step`, in which `stays` are concerned (None: whichever)."""
        return step >= self.at_step and (self.stay is None or stays is None or self.stay in stays)
