"""What the driver publishes at the end of each wake: numbers and raw stamps, from which stats and health are made."""

from operator import attrgetter
from typing import Any, Final

from attrs import define, field

from boundedgen._core._admission import Capacity
from boundedgen._core._books import Census
from boundedgen._core._events import EngineFacts
from boundedgen._core._governor import Governor
from boundedgen._core._life import Death
from boundedgen._core._times import Photograph
from boundedgen._core._watch import Watch

COUNTERS: Final = (
    *("submitted", "prompt_tokens", "tokens", "late_tokens", "accepted_tokens", "proposed_tokens", "steps", "restarts"),
    *("requeued", "hopeless", "resumed", "paused", "quarantined", "ghosts", "forgotten"),
)
_counted = attrgetter(*COUNTERS)


@define(eq=False)
class Snapshot:
    """All of one moment. Instants are monotonic seconds. Nobody changes one; that attrs forbids it costs, each wake."""

    at: float
    expected: float | None  #: the next wake-up of the driver, if nothing happens before
    state: str
    state_since: float
    reason: str
    failed: bool  #: it gave up; also once it is closed
    incarnation: int
    facts: EngineFacts | None
    capacity: Capacity | None
    reserved: tuple[int, ...]
    census: Census
    leases: int
    usage: float | None
    usage_max: float | None
    cache_bytes: int | None
    rss_bytes: int | None  #: of the engine, as it told last
    last_step_s: float | None
    progress_at: float | None
    moved_at: float  #: the last progress that there was, or when the engine became ready
    death: Death | None  #: why the engine is going or gone
    expected_at: float | None  #: when the engine will be there, as far as that can be told
    tokens_per_s: float | None
    counters: tuple[int, ...]  #: as in COUNTERS
    finished: dict[str, int]
    deadlines: dict[str, int]
    lease_events: dict[str, int]
    kills: dict[str, int]
    service_error: float | None  #: mean error of predicted service times, as a share; None: nothing was predicted yet
    times: Photograph
    reclaim_most: tuple[int, float]  #: steps and seconds
    #: what `stats()` tells of it whenever it is read, once it was read; not that of another one that was made from it
    shown: dict[str, Any] | None = field(default=None, init=False)

    @property
    def waiting(self) -> int:
        return self.census.waiting


class Gauges:
    """What is kept from wake to wake for the snapshot: the highest usage, the rate of tokens, the state's age."""

    def __init__(self) -> None:
        self._usage_max: float | None = None
        self._cache_bytes: int | None = None
        self._state = ("", 0.0)
        self._rate: float | None = None
        self._rate_from = (0.0, 0)

    def became(self, state: str, now: float) -> None:
        self._state = (state, now)

    def take(self, governor: Governor, expected: float | None, now: float) -> Snapshot:
        tally, life, report = governor.tally, governor.life, governor.last_report
        usage = None if report is None else report.usage
        if usage is not None:
            self._usage_max = max(self._usage_max or 0.0, usage)
        if report is not None and report.cache_bytes is not None:
            self._cache_bytes = report.cache_bytes
        elif life.facts is not None and self._cache_bytes is None:
            self._cache_bytes = life.facts.cache_bytes
        return Snapshot(
            at=now,
            expected=expected,
            state=self._state[0],
            state_since=self._state[1],
            reason=governor.reason(),
            failed=bool(governor.failed_because),
            incarnation=life.incarnation,
            facts=life.facts,
            capacity=governor.capacity,
            reserved=tuple(governor.ledger.reserved),
            census=governor.census(),
            leases=len(governor.leases),
            usage=usage,
            usage_max=self._usage_max,
            cache_bytes=self._cache_bytes,
            rss_bytes=life.rss_bytes,
            last_step_s=None if report is None else report.ended - report.began,
            progress_at=governor.watch.progress_at,
            moved_at=max(governor.watch.moved_at, life.ready_at or 0.0),
            death=life.death,
            expected_at=life.expected_at(),
            tokens_per_s=self._tokens_per_s(tally.tokens, bool(governor.stays), now),
            counters=_counted(tally),
            finished=dict(tally.finished),
            deadlines=dict(tally.deadlines),
            lease_events=dict(tally.leases),
            kills=dict(tally.kills),
            service_error=governor.forecast.error.value if governor.forecast.error.weight else None,
            times=tally.times.photograph(),
            reclaim_most=(tally.reclaim_steps_max, tally.reclaim_seconds_max),
        )

    def _tokens_per_s(self, tokens: int, working: bool, now: float) -> float | None:
        """Over windows of a second with work; the last full window's figure stays until there is a new one."""
        since, then = self._rate_from
        if not working:
            self._rate_from = (now, tokens)
        elif now - since >= 1.0:
            self._rate = (tokens - then) / (now - since)
            self._rate_from = (now, tokens)
        return self._rate


def picture_of(snapshot: Snapshot, watch: Watch, now: float) -> dict[str, Any]:
    """Of a lane whose engine is being lost, for the log: under the names that they have in SchedulerStats."""
    census, capacity, pulse = snapshot.census, snapshot.capacity, watch.pulse
    total = None if capacity is None else capacity.pools[0].blocks
    reserved = snapshot.reserved[0] if snapshot.reserved else 0
    return {
        "waiting": census.waiting,
        "running": census.running,
        "stopping": census.stopping,
        "oldest_waiting_s": _age(census.waiting_since, now),
        "oldest_running_s": _age(census.running_since, now),
        "oldest_stopping_s": _age(census.stopping_since, now),
        "blocks_total": total,
        "blocks_free": None if total is None else max(0, total - reserved),
        "cache_usage": snapshot.usage,
        "engine_rss_bytes": snapshot.rss_bytes,
        "step_current_s": max(0.0, now - pulse.begun_at) if pulse.in_step else 0.0,
        "step_budget_s": watch.pace.budget(pulse) if pulse.in_step else None,
        "last_step_s": snapshot.last_step_s,
        "last_progress_s": _age(snapshot.progress_at, now),
        "snapshot_age_s": max(0.0, now - snapshot.at),
        **{f"{name}_total": count for name, count in zip(COUNTERS, snapshot.counters, strict=True)},
    }


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)
