"""Stats and health, made in the caller's thread from the driver's snapshot and the step stamps. Nothing waits."""

from math import isfinite
from typing import Any

import attrs

from boundedgen._bounds import Bounds
from boundedgen._core._events import Cause, PoolFacts, Pulse
from boundedgen._core._governor import Governor
from boundedgen._core._sequences import Sequence
from boundedgen._core._stays import Stay
from boundedgen._core._times import RECLAIM
from boundedgen._driver import Driver
from boundedgen._errors import (
    BoundedGenError,
    DeviceUnavailable,
    EngineFailed,
    EngineUnavailable,
    FinishReason,
    InvalidRequest,
    ModelLoadFailed,
    NeverFits,
    PipelineClosed,
    Saturated,
)
from boundedgen._lease import hashed
from boundedgen._probing import Verdict
from boundedgen._snapshot import COUNTERS, Snapshot
from boundedgen._stats import (
    Health,
    HealthState,
    PoolStats,
    ProbeVerdict,
    ReclaimStats,
    SchedulerStats,
    SequenceRow,
    TimeStats,
    histogram_of,
    made,
)

REFUSED_BY_CALL = (InvalidRequest, NeverFits, Saturated)
REFUSED_BY_STATE = (PipelineClosed, EngineUnavailable, EngineFailed, DeviceUnavailable, ModelLoadFailed)
# What has not happened yet is known to be 0.
ENDINGS = dict.fromkeys((reason.value for reason in FinishReason), 0)
BOUNDS = dict.fromkeys((bound.name for bound in attrs.fields(Bounds)), 0)
LEASE_EVENTS = dict.fromkeys(("granted", "renewed", "expired", "revoked", "refused"), 0)
FAULTS = tuple(cause.value for cause in Cause if not cause.orderly)  # an orderly end must set off no alarm
REJECTIONS = dict.fromkeys((kind.__name__ for kind in (*REFUSED_BY_CALL, *REFUSED_BY_STATE)), 0)
COUNTED = tuple(f"{name}_total" for name in COUNTERS)
NOTHING: dict[str, Any] = {
    **dict.fromkeys(field.name for field in attrs.fields(SchedulerStats)),
    "step_current_s": 0.0,
    "encode_current_s": 0.0,
}
BEHIND = 1.0  #: seconds by which a driver may be late before that is STALLED
FAR_BEHIND = 10.0  #: seconds by which a driver may be late for its wake-up and still count as alive


def pulse_of(driver: Driver) -> Pulse:
    """The stamps of the step in flight; those of an engine that never was when there is none."""
    link = driver.link
    if link is None:
        return Pulse()
    try:
        return link.pulse()
    except ValueError:  # its page was given back between the two lines
        return Pulse()


def _pid(driver: Driver) -> int | None:
    link = driver.link  # looked at once: the driver lets go of it at any instant
    return None if link is None else link.pid


def lag(driver: Driver, snapshot: Snapshot, now: float) -> float:
    """How late the driver is for its next wake-up, in seconds."""
    return 0.0 if snapshot.expected is None or driver.over else max(0.0, now - snapshot.expected)


def stats_of(
    driver: Driver, rejected: dict[str, int], now: float, probed: Verdict | None = None, *, sequences: bool
) -> SchedulerStats:
    """Of one snapshot, which many may read: what is the same for all is found out once. Each has dicts of its own."""
    snapshot, pulse = driver.snapshot, pulse_of(driver)
    shown = snapshot.shown
    if shown is None:
        shown = snapshot.shown = _shown(snapshot)
    census, behind = snapshot.census, lag(driver, snapshot, now)
    fields = shown.copy()  # and then one by one: that is the quickest
    fields["engine_pid"] = _pid(driver)
    fields["oldest_waiting_s"] = _age(census.waiting_since, now)
    fields["oldest_running_s"] = _age(census.running_since, now)
    fields["oldest_stopping_s"] = _age(census.stopping_since, now)
    if pulse.in_step:
        fields["step_current_s"] = _age(pulse.begun_at, now)
        fields["step_budget_s"] = driver.governor.watch.pace.budget(pulse)
    if pulse.encoding:
        fields["encode_current_s"] = _age(pulse.encode_begun_at, now)
    fields["last_progress_s"] = _age(snapshot.progress_at, now)
    fields["snapshot_age_s"] = _age(snapshot.at, now)
    fields["driver_lag_s"] = behind
    fields["driver_lag_max_s"] = max(behind, driver.journal.lag_max_s)
    fields["rejected_total"] = REJECTIONS | rejected
    fields["finished_total"] = shown["finished_total"].copy()
    fields["deadlines_total"] = shown["deadlines_total"].copy()
    fields["leases_total"] = {**shown["leases_total"], "refused": driver.refused.total}
    fields["kills_total"] = shown["kills_total"].copy()
    fields["adapters"] = shown["adapters"].copy()
    if probed is not None:
        fields.update(probed.shown(now))
    if sequences:
        fields["sequences"] = _rows(driver.governor, now)
    return made(SchedulerStats, fields)


def _shown(snapshot: Snapshot) -> dict[str, Any]:
    """The fields that are the snapshot's alone; the others as they are where there is nothing to tell."""
    pools, census, kills = _pools(snapshot), snapshot.census, snapshot.kills
    kv = pools[0] if pools else None
    return {
        **NOTHING,
        "waiting": census.waiting,
        "running": census.running,
        "running_max": None if snapshot.capacity is None else snapshot.capacity.running_max,
        "stopping": census.stopping,
        "leases": snapshot.leases,
        "incarnation": snapshot.incarnation,
        "blocks_total": None if kv is None else kv.blocks_total,
        "blocks_used": None if kv is None else _used(snapshot, kv),
        "blocks_free": None if kv is None else kv.blocks_free,
        "blocks_reserved": None if kv is None else kv.blocks_reserved,
        "block_size": None if snapshot.facts is None else snapshot.facts.block_size,
        "pools": pools,
        "adapters": {} if snapshot.facts is None else dict(snapshot.facts.adapters),
        "cache_usage": snapshot.usage,
        "cache_usage_max": snapshot.usage_max,
        "cache_bytes": snapshot.cache_bytes,
        "engine_rss_bytes": snapshot.rss_bytes,
        "last_step_s": snapshot.last_step_s,
        "tokens_per_s": snapshot.tokens_per_s,
        **dict(zip(COUNTED, snapshot.counters, strict=True)),
        **_untold(snapshot),
        "finished_total": ENDINGS | snapshot.finished,
        "deadlines_total": BOUNDS | snapshot.deadlines,
        "leases_total": LEASE_EVENTS | snapshot.lease_events,
        "kills_total": {cause: kills.get(cause, 0) for cause in FAULTS},
        "closes_total": kills.get(Cause.CLOSE.value, 0),
        "recycled_total": kills.get(Cause.RECYCLE.value, 0),
        "service_error": snapshot.service_error,
        "times": made(TimeStats, {"_photograph": snapshot.times}),
        "reclaim": _reclaim(snapshot),
    }


def _untold(snapshot: Snapshot) -> dict[str, None]:
    """Counters of what this lane does not do, or of what its engine does not tell."""
    facts = snapshot.facts
    if facts is None or not facts.drafted:
        return {"accepted_tokens_total": None, "proposed_tokens_total": None}
    return {} if facts.counts_proposed else {"proposed_tokens_total": None}


def _pools(snapshot: Snapshot) -> tuple[PoolStats, ...]:
    capacity = snapshot.capacity
    if capacity is None:
        return ()
    reserved = snapshot.reserved or (0,) * len(capacity.pools)
    return tuple([_pool(pool, taken) for pool, taken in zip(capacity.pools, reserved, strict=True)])


def _pool(pool: PoolFacts, reserved: int) -> PoolStats:
    return PoolStats(
        name=pool.name, blocks_total=pool.blocks, blocks_reserved=reserved, tokens_per_block=pool.tokens_per_block
    )


def _used(snapshot: Snapshot, kv: PoolStats) -> int | None:
    """The engine tells the usage of its fullest pool only: known for the KV pool when there is no other."""
    facts = snapshot.facts
    if facts is None or len(facts.pools) != 1 or snapshot.usage is None:
        return None
    return min(kv.blocks_total, round(snapshot.usage * facts.pools[0].blocks))


def _reclaim(snapshot: Snapshot) -> ReclaimStats:
    told, (steps_max, seconds_max) = histogram_of(snapshot.times, RECLAIM), snapshot.reclaim_most
    return ReclaimStats(
        count_total=told.count_total,
        sum_s=told.sum_s,
        steps_max=steps_max,
        seconds_max=seconds_max,
        buckets_s=told.buckets_s,
        proof=None if snapshot.facts is None else snapshot.facts.proof,
    )


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else now - since if now > since else 0.0


def _rows(governor: Governor, now: float) -> tuple[SequenceRow, ...]:
    """All that are not settled, and all that are settled and still held."""
    sequences = {s.id: s for s in list(governor.sequences.values())}
    stays = {stay.sequence: stay for stay in list(governor.stays.values())}
    return tuple(_row(governor, sequences.get(i), stays.get(i), now) for i in sorted(sequences.keys() | stays.keys()))


def _row(governor: Governor, sequence: Sequence | None, stay: Stay | None, now: float) -> SequenceRow:
    either = sequence or stay
    assert either is not None
    submission = either.submission
    wall = None if sequence is None else sequence.wall_deadline()
    names = [] if governor.capacity is None else [pool.name for pool in governor.capacity.pools]
    return SequenceRow(
        id=submission.id,
        label=submission.label,
        owner=submission.owner,
        lease=hashed(submission.lease),
        phase="stopping" if sequence is None else sequence.phase.value,
        age_s=max(0.0, now - submission.submitted_at),
        tokens=0 if sequence is None else sequence.tokens,
        blocks={} if stay is None else dict(zip(names, stay.needs, strict=False)),
        deadline=None if wall is None else wall.at,
        bound=None if wall is None else wall.bound,
    )


def health_of(driver: Driver, now: float, probed: Verdict | None, *, tokenizer_ready: bool) -> Health:
    snapshot, behind = driver.snapshot, lag(driver, driver.snapshot, now)
    state, reason = HealthState(snapshot.state), snapshot.reason
    if state is HealthState.READY and not tokenizer_ready:
        state, reason = HealthState.STARTING, "the tokenizer is being loaded"
    elif state is HealthState.READY and (stalled := _stalled(driver, behind, now) or _disproved(probed, snapshot)):
        state, reason = HealthState.STALLED, stalled
    facts = snapshot.facts
    return Health(
        state=state,
        reason=reason,
        since_s=max(0.0, now - snapshot.state_since),
        incarnation=snapshot.incarnation,
        error=error_of(driver, snapshot) if snapshot.failed or state is HealthState.FAILED else None,
        retry_after_s=_retry_after(state, snapshot, now),
        findings=() if facts is None else facts.findings,
        adapters={} if facts is None else dict(facts.adapters),
        driver_alive=driver.over or (driver.alive() and behind < FAR_BEHIND),
        **({} if probed is None else probed.shown(now)),
    )


def _stalled(driver: Driver, behind: float, now: float) -> str:
    """Work, and no progress that the budgets allow for, in words that do not change meanwhile; empty: all is well."""
    pulse = pulse_of(driver)
    if pulse.in_step and now - pulse.begun_at > (budget := driver.governor.watch.pace.budget(pulse)):
        return f"step {pulse.steps_begun} runs for longer than its budget of {budget:.1f} s"
    if pulse.encoding and now - pulse.encode_begun_at > (budget := driver.governor.watch.encoding.budget(pulse)):
        return f"images are being encoded for longer than their budget of {budget:.1f} s"
    return f"the driver is more than {BEHIND:g} s late" if behind > BEHIND else ""


def _disproved(probed: Verdict | None, snapshot: Snapshot) -> str:
    """A probe failed, and there was neither another one nor any progress since; empty: not so."""
    if probed is None or probed.result.verdict is not ProbeVerdict.FAILED or snapshot.moved_at > probed.at:
        return ""
    if snapshot.state_since > probed.at - probed.result.seconds:
        return ""  # it began before this engine was ready, and waited for another one
    return f"the last probe failed: {probed.result.reason}"


def _retry_after(state: HealthState, snapshot: Snapshot, now: float) -> float | None:
    if state in (HealthState.READY, HealthState.FAILED, HealthState.CLOSED):
        return None
    return retry_after_s(snapshot, now)


def retry_after_s(snapshot: Snapshot, now: float) -> float | None:
    """While the engine is not there: an estimate, from how long its last boot took. None: it is put off for ever."""
    after = max(1.0, 0.0 if snapshot.expected_at is None else snapshot.expected_at - now)
    return after if isfinite(after) else None


def error_of(driver: Driver, snapshot: Snapshot) -> BoundedGenError:
    """The typed cause of having FAILED."""
    if driver.failure is not None:
        return EngineFailed(f"the driver failed: {driver.failure!r}; please report this")
    kind = "" if snapshot.death is None else snapshot.death.kind
    known = {"device": DeviceUnavailable, "model": ModelLoadFailed}
    return known.get(kind, EngineFailed)(snapshot.reason)
