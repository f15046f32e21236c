"""The engine's own life: which incarnation there is, in which phase, and when the next one may start."""

from attrs import define

from boundedgen._bounds import Limits
from boundedgen._core._deadlines import earliest
from boundedgen._core._events import Cause, EngineFacts
from boundedgen._core._phases import EnginePhase, move

APART = 10  #: times its boot for which no engine is too large: one that always is would do nothing else but boot

#: What an engine that was given something it cannot bear comes to: it hangs, raises, dies, takes nothing more, or
#: answers what cannot be read.
_BLAMING = (Cause.STEP, Cause.STEP_RAISED, Cause.PROGRESS, Cause.DIED, Cause.ACK, Cause.WIRE)


@define
class Death:
    """Why the engine is going or gone."""

    cause: Cause
    detail: str
    permanent: bool = False  #: cannot heal by trying again
    kind: str = ""  #: of a boot failure: "model", "device", "memory" or "other"
    output: str = ""  #: the end of what the engine wrote, if it ended by itself
    outside: bool = False  #: somebody else's signal, or nothing that what was inside could have brought about

    @property
    def blames(self) -> bool:
        """What was inside may have brought it about."""
        return not self.outside and self.cause in _BLAMING


@define
class Life:
    limits: Limits
    phase: EnginePhase = EnginePhase.DOWN
    incarnation: int = 0
    facts: EngineFacts | None = None  #: of the last incarnation that became ready
    death: Death | None = None
    killed_at: float | None = None
    respawn_at: float | None = None
    spawned_at: float | None = None  #: while it boots
    started_at: float | None = None  #: this incarnation, also once it is gone
    boot_s: float | None = None  #: seconds that the last boot took
    ready_at: float | None = None
    well_since: float | None = None  #: ready, and no engine was lost since; those that were recycled do not matter
    rss_bytes: int | None = None  #: resident memory of this incarnation, as it told last
    failures: int = 0  #: in a row
    failing_since: float = 0.0
    canary: tuple[int, ...] = ()  #: what an engine has to answer; empty: none has answered yet
    doubted: tuple[int, ...] = ()  #: what the last one answered instead
    closing: bool = False
    drain_until: float | None = None

    @property
    def up(self) -> bool:
        return self.phase is EnginePhase.UP

    @property
    def orderly(self) -> bool:
        """It is going or gone, and that is no loss."""
        return self.death is not None and self.death.cause.orderly

    @property
    def over(self) -> bool:
        return self.phase is EnginePhase.FAILED or self.phase is EnginePhase.CLOSED

    def why(self) -> str:
        """Why the engine is not there: the latest cause, and how often in a row. Empty: nothing happened."""
        if self.death is None or (self.closing and self.orderly):
            return ""
        if self.orderly:
            return self.death.detail
        again = f" ({self.failures} in a row)" if self.failures > 1 else ""
        return f"{self.death.cause.value}: {self.death.detail}{again}"

    def expected_at(self) -> float | None:
        """When the engine starts next or, where an earlier boot tells, when it will be ready: an estimate."""
        began = self.spawned_at if self.respawn_at is None else self.respawn_at
        if began is None and not self.closing:
            began = self.killed_at  # it has not left, or its restart is not decided: that usually takes no time
        return self.respawn_at if began is None or self.boot_s is None else began + self.boot_s

    def spawn(self, now: float) -> int:
        """The next incarnation; the one before is reaped."""
        move(self, EnginePhase.STARTING)
        self.incarnation += 1
        self.respawn_at = self.killed_at = self.ready_at = self.rss_bytes = None
        self.spawned_at = self.started_at = now
        return self.incarnation

    def ready(self, facts: EngineFacts, now: float) -> None:
        move(self, EnginePhase.UP)
        self.facts, self.ready_at, self.death = facts, now, None
        self.well_since = now if self.well_since is None else self.well_since
        self.boot_s = None if self.spawned_at is None else now - self.spawned_at
        self.spawned_at = None

    def believes(self, canary: tuple[int, ...]) -> bool:
        """It answers as the one before. Two in a row that agree are believed, for that one may have been wrong."""
        if self.canary and canary not in (self.canary, self.doubted):
            self.doubted = canary
            return False
        self.canary, self.doubted = canary, ()
        return True

    def die(self, death: Death, now: float) -> None:
        move(self, EnginePhase.DYING)
        self.death, self.killed_at, self.spawned_at, self.rss_bytes = death, now, None, None
        if not death.cause.orderly:
            self.failing_since = self.failing_since if self.failures else now
            self.failures += 1
            self.well_since = None

    def served(self, now: float, forget_after: float) -> None:
        """Tokens came out. Failures are forgotten once there was none for `forget_after` after an engine was ready."""
        if self.failures and self.well_since is not None and now - self.well_since >= forget_after:
            self.failures = 0

    def worn_at(self) -> float | None:
        """The instant from which on this engine is to be recycled, as far as is known; None: there is none."""
        if not self.up or self.closing or self.ready_at is None:
            return None
        limits = self.limits
        old = None if limits.engine_age is None else self.ready_at + limits.engine_age
        large = None
        if limits.engine_rss_bytes is not None and (self.rss_bytes or 0) >= limits.engine_rss_bytes:
            large = self.ready_at + APART * (self.boot_s or 0.0)
        return old if large is None else earliest((old, large))

    def worn(self, now: float) -> str:
        """Why it is to be recycled now, in words that stay the same as long as it is; empty: it is not."""
        at, limits = self.worn_at(), self.limits
        if at is None or self.ready_at is None or now < at:
            return ""
        if limits.engine_age is not None and now >= self.ready_at + limits.engine_age:
            return f"recycling: older than {limits.engine_age:g} s (Limits.engine_age)"
        return f"recycling: larger than {(limits.engine_rss_bytes or 0) / 1e6:.0f} MB (Limits.engine_rss_bytes)"

    def reap_overdue_at(self) -> float | None:
        if self.killed_at is None or self.phase is not EnginePhase.DYING:
            return None
        return self.killed_at + self.limits.reap

    def next(self) -> float | None:
        """The next instant at which something here is due; None in FAILED and CLOSED, which are final."""
        if self.over:
            return None
        return earliest([self.reap_overdue_at(), self.respawn_at, self.drain_until])
