"""What `stats()`, `health()` and `probe()` answer: frozen values, typed, with units in their names.

Durations end in `_s` (seconds), counters in `_total` (since the pipeline was built), ratios are 0 to 1. What cannot be
known is None, never 0. Ages are computed when the answer is read.
"""

import enum
from collections.abc import Mapping
from typing import final

from attrs import field, frozen

from boundedgen._errors import BoundedGenError


@final
@frozen(kw_only=True)
class PoolStats:
    """One kind of cache block. Source: the sizes are the engine's own, `reserved` is the governor's table."""

    name: str  #: "kv" or "linear_attention"
    blocks_total: int  #: without the probe's
    blocks_reserved: int  #: promised to stays whose release is not proved
    tokens_per_block: int | None  #: None: one block a sequence, however long

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - self.blocks_reserved


@final
@frozen(kw_only=True)
class ReclaimStats:
    """Stays that were made to leave, and proved to have left."""

    count_total: int
    steps_max: int  #: steps begun after the engine took the stop, at most so far
    seconds_max: float
    buckets_s: Mapping[float, int]  #: upper edge in seconds -> stays up to it (cumulative; the last edge is infinite)
    proof: str | None  #: "perf_metrics" or "request_count"; None before the first READY


@final
@frozen(kw_only=True)
class SequenceRow:
    """One sequence that is not settled, or is settled and still held by the engine."""

    id: int
    label: str
    owner: str
    lease: str | None
    phase: str  #: "waiting", "running" or "stopping"
    age_s: float
    tokens: int
    blocks: Mapping[str, int]  #: reserved, by pool
    deadline: float | None  #: monotonic instant of its earliest wall deadline
    bound: str | None


@final
@frozen(kw_only=True)
class SchedulerStats:
    """A snapshot of the lane. submitted_total == sum(finished_total.values()) + waiting + running, always."""

    waiting: int
    running: int
    stopping: int  #: stays whose release is not proved yet; they count against capacity
    leases: int
    incarnation: int
    oldest_waiting_s: float | None
    oldest_running_s: float | None
    oldest_stopping_s: float | None
    blocks_total: int | None  #: the KV pool, without the probe's block
    blocks_used: int | None  #: by the engine's own figure, at its last step
    blocks_free: int | None  #: blocks_total - blocks_reserved: what a newcomer can get
    blocks_reserved: int | None
    block_size: int | None  #: tokens
    pools: tuple[PoolStats, ...]
    cache_usage: float | None  #: of the fullest pool, at the last step
    cache_usage_max: float | None
    cache_bytes: int | None
    step_current_s: float  #: age of the step in flight; 0 when none is
    last_step_s: float | None
    last_progress_s: float | None  #: age; None while there is no work
    snapshot_age_s: float
    driver_lag_s: float  #: how late the driver is for its next wake-up
    tokens_per_s: float | None  #: visible tokens, over the last seconds with work
    submitted_total: int
    rejected_total: Mapping[str, int]  #: by error; nothing was started, not in submitted_total
    finished_total: Mapping[str, int]  #: by FinishReason
    deadlines_total: Mapping[str, int]  #: by bound
    leases_total: Mapping[str, int]  #: granted, renewed, expired, revoked, refused
    prompt_tokens_total: int
    tokens_total: int
    late_tokens_total: int  #: produced after the end of their sequence; dropped
    steps_total: int
    restarts_total: int
    kills_total: Mapping[str, int]  #: by cause
    resumed_total: int
    paused_total: int
    quarantined_total: int
    requeued_total: int
    ghosts_total: int  #: stays that only the engine knew; stopped
    forgotten_total: int  #: stays that the engine no longer knew; ended
    reclaim: ReclaimStats
    sequences: tuple[SequenceRow, ...] | None = None  #: with `stats(sequences=True)`


@final
class HealthState(enum.StrEnum):
    """STALLED: there is work, and no progress that the budgets allow for."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    RECOVERING = "recovering"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


@final
@frozen(kw_only=True)
class Health:
    """Whether to send work here, and whether to replace the process."""

    state: HealthState
    reason: str
    since_s: float
    incarnation: int
    error: BoundedGenError | None  #: the typed cause of FAILED
    retry_after_s: float | None  #: while not ready: when to ask again
    findings: tuple[str, ...] = ()  #: settings that were changed or are unsafe; an untested engine version
    driver_alive: bool = field(default=True)

    @property
    def ready(self) -> bool:
        """Send work here: READY, idle or full."""
        return self.state is HealthState.READY

    @property
    def live(self) -> bool:
        """Do not replace the process: it works, or heals by itself. Not FAILED, not CLOSED, and the driver runs."""
        return self.driver_alive and self.state not in (HealthState.FAILED, HealthState.CLOSED)


@final
class ProbeVerdict(enum.StrEnum):
    """What a probe found out."""

    OK = "ok"
    FAILED = "failed"  #: also a timeout: a probe is never inconclusive
    NOT_RUN = "not_run"  #: the engine has no room that could be set aside for it


@final
@frozen(kw_only=True)
class ProbeResult:
    """A one-token generation in a slot and a block of its own."""

    verdict: ProbeVerdict
    seconds: float  #: until the answer, or until it was given up
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.verdict is ProbeVerdict.OK
