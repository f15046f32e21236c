"""What must be true of a pipeline, computed from what was asked of it and from what it shows, never from its inside.

The promises are those of docs/promises.md, by number. The first one that is broken is an AssertionError.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import final

from boundedgen._bounds import Bounds, Limits
from boundedgen._core._events import Cause
from boundedgen._errors import BoundedGenError, DeadlineExceeded, FinishReason, Rejected
from boundedgen._generation import Generation
from boundedgen._lease import Lease
from boundedgen._stats import HealthState, ReclaimStats, SchedulerStats, SequenceRow, TimeHistogram
from boundedgen.testing._faults import JUSTIFIES, FaultKind
from boundedgen.testing._ready_time import ReadyTime
from boundedgen.testing._rows import EPS, INF, LeaseRow, Row, Stopping
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._simulation import Simulation

__all__ = ["Oracle"]

SERVING = (HealthState.READY, HealthState.STALLED)
Why = FinishReason


@final
class Oracle:
    """Is told what callers ask; `look` compares it with what there is to see, at every event."""

    def __init__(self, simulation: Simulation, model: SimModel, limits: Limits, bounds: Bounds) -> None:
        self.rows: dict[int, Row] = {}
        self.leases: list[LeaseRow] = []
        self.closing = False
        self._simulation = simulation
        self._model = model
        self._limits = limits
        self._bounds = bounds
        self._ends: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._ready = ReadyTime()
        self._ready_since = self._up_since = INF
        self._was_ready = False
        self._kills: Counter[str] = Counter()
        self._recycled = 0
        self._waiting: set[int] = set()
        self._looked_at = -INF
        self._ageing = simulation.admission.ageing
        self._adaptive = simulation.admission.policy == "adaptive"
        self._turns: dict[int, float] = {}  # by priority: before its last admission
        self._times: list[tuple[int, ...]] = []  # all buckets that were seen last

    # --- what is asked -------------------------------------------------------------------------------------------

    def submitted(
        self,
        generation: Generation,
        prompt: Sequence[int],
        bounds: Bounds | None,
        *,
        sequences: int = 1,
        priority: int = 0,
        lease: LeaseRow | None = None,
    ) -> Row:
        """`generation` was just submitted with the token ids `prompt`."""
        assert generation.id not in self.rows, "ids are never used again (promise 4)"
        length = generation.max_new_tokens
        self.rows[generation.id] = row = Row(
            generation,
            self._simulation.now,
            self._bounds if bounds is None else self._bounds.tightest(bounds),
            self._model.text(prompt, length),
            self._needs(len(prompt) + length - 1, sequences),
            priority,
            lease,
        )
        return row

    def refused(self, error: BoundedGenError) -> None:
        self._refused[type(error).__name__] += isinstance(error, Rejected)

    def granted(self, lease: Lease) -> LeaseRow:
        row = LeaseRow(lease, lease.ttl_s, self._ready.at(self._simulation.now) + lease.ttl_s)
        self.leases.append(row)
        return row

    def renewed(self, row: LeaseRow, result: bool) -> None:
        """The owner asked for it just now; `result`: it was told that the lease goes on."""
        reading = self._ready.at(self._simulation.now)
        if row.over or row.revoked or row.expires < reading - EPS:
            assert not result, "a lease that is over never comes back (promise 6)"
        elif row.expires > reading + EPS and not self._over():
            assert result, "a live lease is renewed (promise 6)"
        if result:
            row.graced = False
            row.expires = max(row.expires, reading + row.ttl)

    def _needs(self, tokens: int, sequences: int) -> tuple[int, ...]:
        sizes = (pool.tokens_per_block for pool in self._model.pools)
        return tuple(sequences * (1 if size is None else -(-tokens // size)) for size in sizes)

    def _over(self) -> bool:
        return self.closing or self._simulation.pipeline.health().state in (HealthState.FAILED, HealthState.CLOSED)

    # --- what there is to see ------------------------------------------------------------------------------------

    def look(self) -> None:
        """All of it, now. To be called at every event: some of it is there for an instant only."""
        now, pipeline = self._simulation.now, self._simulation.pipeline
        stats = pipeline.stats(sequences=True)
        shown = {row.id: row for row in stats.sequences or () if row.id in self.rows}
        self._follow_the_engine(pipeline.health().state, now)
        for row in self.open_rows():
            self._look_at(row, shown.get(row.id), stats.incarnation, now)
        self._check_the_counts(stats, shown)
        self._check_the_times(stats)
        self._check_capacity(shown)
        self._check_turns(shown)
        self._check_reclaim(shown, stats.steps_total, now)
        self._check_kills(stats)
        self._check_recycling(stats, shown, now)
        self._check_leases(now)

    def open_rows(self) -> Iterator[Row]:
        return (row for row in self.rows.values() if row.reason is None)

    def _follow_the_engine(self, state: HealthState, now: float) -> None:
        if state in SERVING and not self._ready.running:
            self._ready.run(now)
            self._ready_since = self._up_since = now
            for lease in self.leases if self._was_ready else ():
                self._grace(lease, self._ready.at(now))
            self._was_ready = True
        elif state not in (*SERVING, HealthState.DRAINING):
            self._ready.stand(now)
            self._ready_since = INF
        if state is HealthState.DRAINING:
            self._ready_since = INF  # whether its engine runs is not shown

    def _grace(self, lease: LeaseRow, reading: float) -> None:
        if not lease.graced:
            lease.graced = True
            grace = lease.expires + self._limits.lease_grace
            lease.expires = max(lease.expires, min(grace, reading + lease.ttl))

    def _look_at(self, row: Row, shown: SequenceRow | None, incarnation: int, now: float) -> None:
        tokens = list(row.generation.partial.token_ids)
        assert tokens[: len(row.tokens)] == row.tokens, "what was said stays said (promise 1)"
        if len(tokens) > len(row.tokens):
            assert tokens == row.text[: len(tokens)], "tokens come once, in order and unchanged (promise 1)"
            row.spoke(tokens, now)
        reason = row.generation.finish_reason
        if reason is not None:
            self._settled(row, reason, now)
            return
        assert shown is not None, "what is not settled is shown (promise 10)"
        row.ran = row.ran or shown.phase == "running"
        assert now < row.due() + EPS, "a deadline passed, and nobody was answered (promise 1)"
        self._check_ready_bounds(row, now)
        self._check_place(row, shown, incarnation)

    def _check_ready_bounds(self, row: Row, now: float) -> None:
        """These stand still while the engine is not ready, so they are sure only where it was ready all the time."""
        begun = row.submitted_at if row.spoke_at is None else row.spoke_at
        if self._ready_since <= begun:
            due = max(row.known_at, min(row.first_at, row.next_at))
            assert now < due + EPS, "a token is late, and nobody was answered (promise 1)"

    def _check_place(self, row: Row, shown: SequenceRow, incarnation: int) -> None:
        if shown.phase == "running":
            assert row.running_in in (None, incarnation), "its engine died, and it still runs (promise 5)"
        row.running_in = incarnation if shown.phase == "running" else None

    # --- an end --------------------------------------------------------------------------------------------------

    def _settled(self, row: Row, reason: FinishReason, now: float) -> None:
        row.reason, row.settled_at = reason.value, now
        self._ends[reason.value] += 1
        if reason is Why.DEADLINE:
            self._check_deadline(row, now)
        else:
            assert now < row.due() + EPS, f"{reason.name} came after the deadline (promise 1)"
            self._check_reason(row, reason)

    def _check_deadline(self, row: Row, now: float) -> None:
        error = error_of(row.generation)
        assert isinstance(error, DeadlineExceeded)
        assert error.deadline is not None
        if error.detail.startswith("it would take"):
            assert not row.ran, "nothing that was let in is given up (promise 1)"
            assert error.deadline.bound == "queued"
            assert now < row.due() + EPS, "it was given up after its deadline (promise 1)"
            return
        at = dict(row.dues()).get(error.deadline.bound)
        assert at is not None, f"{error.deadline.bound} is not a bound that counts any more (promise 1)"
        assert at <= now + EPS, "it was answered before its deadline (promise 1)"
        assert now < max(row.total_at, row.known_at) + EPS, "it was answered after its deadline (promise 1)"
        if error.deadline.bound in ("total", "queued"):
            assert abs(error.deadline.at - at) < EPS, "the deadline that it names is its own (promise 1)"

    def _check_reason(self, row: Row, reason: FinishReason) -> None:
        triggered = {kind for engine in self._simulation.engines for kind in engine.triggered}
        failed = self._simulation.pipeline.health().state is HealthState.FAILED
        natural = "stop" if row.text[-1:] == [self._model.eos_token_id] else "length"
        justified = {
            Why.STOP: natural == "stop" and row.tokens == row.text,
            Why.LENGTH: natural == "length" and row.tokens == row.text,
            Why.CANCELLED: row.cancelled,
            Why.LEASE: row.lease is not None and not row.lease.lease.live,
            Why.ENGINE_LOST: row.running_in is not None,
            Why.ENGINE_FAILED: failed,
            Why.QUARANTINED: sum(self._kills.values()) > 1,
            Why.CACHE_EXHAUSTED: FaultKind.IGNORE in triggered,
            Why.REJECTED: FaultKind.REFUSE in triggered,
            Why.SHUTDOWN: self.closing,
        }
        assert justified.get(reason, False), f"{row.generation!r} ended {reason.name} for no reason (promise 1)"

    # --- the whole -----------------------------------------------------------------------------------------------

    def _check_the_counts(self, stats: SchedulerStats, shown: dict[int, SequenceRow]) -> None:
        ended = sum(stats.finished_total.values())
        assert stats.submitted_total == ended + stats.waiting + stats.running, "nothing is lost (promise 10)"
        inside = {row.id for row in shown.values() if row.phase in ("waiting", "running")}
        assert inside == {row.id for row in self.open_rows()}, "what is shown is what there is (promise 10)"
        others = stats.submitted_total - len(self.rows)  # submitted by others than us
        for reason, count in stats.finished_total.items():
            mine = self._ends[reason]
            assert mine <= count <= mine + others, f"{reason}: {count} counted, {mine} seen (promise 10)"
        for name, count in (+self._refused).items():
            assert count <= stats.rejected_total[name], f"{name}: a refusal was not counted (promise 10)"

    def _check_the_times(self, stats: SchedulerStats) -> None:
        """Each that was counted elsewhere took its time, once; and nothing is taken back."""
        times = stats.times
        assert times.total.count_total == sum(stats.finished_total.values()), "each end took its time (promise 10)"
        assert times.step.count_total == stats.steps_total, "each step took its time (promise 10)"
        assert times.first_token.count_total <= times.queued.count_total <= stats.submitted_total, "in this order"
        spoke = sum(bool(row.tokens) for row in self.rows.values())
        others = stats.submitted_total - len(self.rows)
        assert spoke <= times.first_token.count_total <= spoke + others, "each first token took its time (promise 10)"
        told = (times.queued, times.first_token, times.next_token, times.total, times.step, stats.reclaim)
        now = [buckets_of(histogram) for histogram in told]
        for buckets, before in zip(now, self._times, strict=False):
            assert all(n >= then for n, then in zip(buckets, before, strict=True)), "a counter went back (promise 10)"
        self._times = now

    def _check_capacity(self, shown: dict[int, SequenceRow]) -> None:
        """Promises 2 and 7: what is not proved gone counts, in every pool."""
        held = [(self.rows[row.id], row) for row in shown.values() if row.blocks]
        most = min(self._model.running_max, self._limits.running_max or self._model.running_max)
        assert len(held) <= most, "more are inside than may be (promise 2)"
        for n, pool in enumerate(self._model.pools):
            needed = sum(row.needs[n] for row, _ in held)
            room = pool.blocks - self._model.probe_blocks.get(pool.name, 0)
            fits = needed <= room or self._adaptive
            assert fits, f"{pool.name}: {needed} blocks are needed, there are {room} (promise 2)"
            for row, seen in held:
                blocks, most = seen.blocks[pool.name], row.needs[n]
                exact = blocks == most or (self._adaptive and blocks < most)
                assert exact, "a reservation is what it must be (promise 7)"
        self._check_the_engine_never_made_room()

    def _check_the_engine_never_made_room(self) -> None:
        """By its own account. A stop that has no effect is a fault that no foresight helps against."""
        for engine in self._simulation.engines[-1:]:
            harmed = self._adaptive and FaultKind.LOST_STOP in engine.triggered
            assert harmed or not engine.preempted, "the cache has overflowed (promise 2)"

    def _check_turns(self, shown: dict[int, SequenceRow]) -> None:
        """Nobody who came in just now has passed one of the same owner who waits, by priority and deadline."""
        waiting = {row.id for row in shown.values() if row.phase == "waiting"}
        came_in = [self.rows[i] for i in self._waiting - waiting if i in shown and shown[i].phase == "running"]
        now, since = self._simulation.now, self._looked_at
        for other in (self.rows[i] for i in self._waiting & waiting if not self.rows[i].ran):
            for row in came_in:
                passed_over = now - self._turns.get(row.priority, 0.0)
                aged = passed_over >= (other.priority - row.priority) * self._ageing - EPS
                assert row.priority >= other.priority or aged, "it has passed a higher priority (promise 5)"
                rivals = row.priority == other.priority and row.generation.owner == other.generation.owner
                if rivals and other.known_at <= since:
                    assert row.rank(self._ageing) <= other.rank(self._ageing), "it has jumped the queue (promise 5)"
        self._turns.update({row.priority: since for row in came_in})
        self._waiting, self._looked_at = waiting, now

    def _check_reclaim(self, shown: dict[int, SequenceRow], steps: int, now: float) -> None:
        """What is stopped leaves soon, or the engine is lost, and everything with it."""
        for row in self.rows.values():
            seen = shown.get(row.id)
            if seen is None or seen.phase != "stopping":
                row.stopping = None
            elif row.stopping is None:
                row.stopping = Stopping(now, steps)
            else:
                assert not row.stopping.overdue(self._limits, steps, now), "it holds on to its place (promise 2)"

    def _check_kills(self, stats: SchedulerStats) -> None:
        kills = Counter({cause: count for cause, count in stats.kills_total.items() if count})
        happened = {kind for engine in self._simulation.engines for kind in engine.triggered}
        for cause in kills - self._kills:
            assert JUSTIFIES.get(Cause(cause), frozenset()) & happened, f"killed for {cause}, for no reason (promise 3)"
        self._kills = kills

    def _check_recycling(self, stats: SchedulerStats, shown: dict[int, SequenceRow], now: float) -> None:
        """Promise 3: only one that is old enough, and holds nothing."""
        if stats.recycled_total > self._recycled:
            assert self._limits.engine_age is not None, "it was recycled, and nobody asked for that (promise 3)"
            age = now - self._up_since
            assert age >= self._limits.engine_age - EPS, "it was recycled before its time (promise 3)"
            assert not any(row.blocks for row in shown.values()), "it was recycled with somebody inside (promise 3)"
        self._recycled = stats.recycled_total

    def _check_leases(self, now: float) -> None:
        reading = self._ready.at(now)
        for row in self.leases:
            live = row.lease.live
            assert not (row.over and live), "a lease came back (promise 6)"
            if not live and not row.over and not row.revoked and not self._over():
                assert reading >= row.expires - EPS, "a lease ended early (promise 6)"
            if live and self._ready.running and not self.closing:
                assert reading < row.expires + EPS, "a lease outlived its ttl (promise 6)"
            row.over = row.over or not live
        for open_row in self.open_rows() if self._ready.running else ():
            lease = open_row.lease
            ended = lease is not None and lease.over and (lease.revoked or reading > lease.expires + EPS)
            assert not ended, "it outlived its lease (promise 6)"

    # --- afterwards ----------------------------------------------------------------------------------------------

    def check_the_end(self) -> None:
        """Everybody was answered, once and for all, and everything was given back, with a proof."""
        assert not list(self.open_rows()), "everybody is answered (promise 1)"
        for row in self.rows.values():
            reason = row.generation.finish_reason
            assert reason is not None
            assert reason.value == row.reason, "an answer changes no more (promise 1)"
            assert list(row.generation.partial.token_ids) == row.tokens or row.reason in ("stop", "length")
            assert not row.generation.cancel(), "there is nothing left to cancel (promise 1)"

    def check_all_is_given_back(self) -> None:
        """For a lane that was mended and has come to rest."""
        stats = self._simulation.pipeline.stats(sequences=True)
        assert (stats.waiting, stats.running, stats.stopping, stats.blocks_reserved) == (0, 0, 0, 0)
        assert not stats.sequences
        for row in self.rows.values():
            proof = row.generation.wait_reclaimed(0)
            assert proof.steps <= self._limits.reclaim_steps, "a release took too many steps (promise 2)"
        engine = self._simulation.engine
        assert engine.held() == (), "the engine holds what nobody knows of (promise 2)"


def buckets_of(histogram: TimeHistogram | ReclaimStats) -> tuple[int, ...]:
    """Each of them alone; they add up, and so do the seconds."""
    edges, up_to = list(histogram.buckets_s), list(histogram.buckets_s.values())
    alone = [n - before for n, before in zip(up_to, [0, *up_to], strict=False)]
    assert up_to[-1] == histogram.count_total
    least = sum(n * edge for n, edge in zip(alone, [0.0, *edges], strict=False))
    most = sum(n * edge for n, edge in zip(alone, edges, strict=True) if n)
    assert least - EPS <= histogram.sum_s <= most + EPS, "the seconds are those of the buckets (promise 10)"
    return tuple(alone)


def error_of(generation: Generation) -> BoundedGenError | None:
    """Of one that is settled."""
    try:
        generation.result()
    except BoundedGenError as error:
        return error
    return None
