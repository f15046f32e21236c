"""What must be true of a governor, computed from what was asked of it and what it was told, never from its state.

One checker a promise (design §3). `Oracle` hears every input and every effect in the order in which they happen and
raises AssertionError at the first one that breaks a promise.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define, field, frozen
from stateful.budgets import Budgets
from stateful.durations import Durations
from stateful.pauses import Pauses

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen._core._sequences import Resume, Submission
from boundedgen.testing._faults import JUSTIFIES
from boundedgen.testing._faults import FaultKind as K
from boundedgen.testing._ready_time import ReadyTime
from boundedgen.testing._sim import SimEngine

EPS = 1e-6
NOTICED = 1.5  #: seconds between two wakes: LOOK + LATE of the watch; a shorter absence may pass for none
BLAMED = (
    ev.Cause.STEP,
    ev.Cause.STEP_RAISED,
    ev.Cause.PROGRESS,
    ev.Cause.DIED,
    ev.Cause.ACK,
    ev.Cause.WIRE,
)  #: what is inside can bring these about
FROM_OUTSIDE = (-1, -2, -3, -9, -15)  #: but not by these signals


@define(eq=False)
class Row:
    """A sequence, as its caller sees it."""

    submission: Submission
    text: list[int]
    ends: str  #: "stop" or "length", if it is left alone
    total_at: float
    queued_at: float
    first_end: float  #: reading of ready time; infinite once met
    submitted_reading: float
    gap: float
    known_at: float
    gap_end: float = float("inf")
    since: float = 0.0  #: submission, of the first of those that it superseded in turn
    elder: int = 0
    supersedes: "Row | None" = None
    cleared: bool = True
    admitted: bool = False
    stay: int | None = None
    emitted: list[int] = field(factory=list)
    finish: ev.Finish | None = None
    finish_ended: float = 0.0  #: when the step that brought it ended
    settled: str | None = None
    refused: bool = False
    refused_by_engine: bool = False
    ignored: int = 0
    stalled: bool = False  #: the driver was stopped during its life
    crashes: int = 0
    fruitless: int = 0
    strikes: int = 0
    suspect: bool = False


@define(eq=False)
class StayRow:
    """A stay, as the engine and the governor speak of it."""

    id: int
    row: Row
    needs: tuple[int, ...]
    probe: bool
    sent_outside: float
    trial: bool = False  #: of a suspect that has shown nothing since
    first: bool = False  #: its sequence had never been inside
    taken: bool = False
    stop_sent: bool = False
    stop_taken_steps: int | None = None
    ended: bool = False  #: finished, or stopped by the child at its deadline
    gone: str = ""
    proved: bool = False


@define(eq=False)
class LeaseRow:
    id: str
    ttl: float
    expires: float  #: reading of ready time
    graced: bool = False
    over: bool = False
    stalled: bool = False


@frozen
class Needs:
    """Blocks that must be set aside: engine-facts, `s · ceil((prompt + new - 1) / block)` in every pool."""

    pools: tuple[ev.PoolFacts, ...]
    probe: tuple[int, ...]

    def of(self, submission: Submission) -> tuple[int, ...]:
        tokens = submission.prompt_tokens + submission.max_new_tokens - 1
        sizes = (p.tokens_per_block for p in self.pools)
        return tuple(submission.sequences * (1 if size is None else -(-tokens // size)) for size in sizes)

    def fits(self, needs: list[tuple[int, ...]]) -> bool:
        sums = [sum(column) for column in zip(*needs, strict=True)] or [0] * len(self.pools)
        return all(s <= p.blocks - q for s, p, q in zip(sums, self.pools, self.probe, strict=True))


class Oracle:
    def __init__(self, limits: Limits, forget_after: float, admission: Admission) -> None:
        self.limits = limits
        self.ageing, self.margin = admission.ageing, admission.margin
        self.pauses = Pauses(admission.policy == "adaptive")
        self.durations = Durations()
        self.turns: dict[tuple[bool, int], float] = {}  #: the last admission, by suspects or not and priority
        self.first: dict[int, float] = {}  #: the first submission of a priority
        self.forget_after = forget_after
        self.ready = ReadyTime()
        self.rows: dict[int, Row] = {}
        self.stays: dict[int, StayRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.reasons: Counter[str] = Counter()
        self.engine: SimEngine | None = None  #: the truth about faults and steps
        self.incarnation = 0
        self.phase = "down"  #: down, starting, up, dying, failed, closed
        self.facts: ev.EngineFacts | None = None
        self.needs: Needs | None = None
        self.running_max = 0
        self.spawned_at = 0.0
        self.reported_steps = 0
        self.budgets = Budgets(limits)
        self.closing = False
        self.drain_until = float("inf")
        self.respawn_at: float | None = None  #: what the restart policy decided
        self.died_now = False  #: an engine was lost in this wake
        self.doomed = False  #: by its own word; the kill comes with the tick
        self.told = 0  #: the latest incarnation whose end was told
        self.exit_status = 0  #: of the last engine that has left
        self.inside: list[Row] = []  #: when its engine was lost in this wake
        self.disbelieved = 0  #: the incarnation whose canary came back otherwise
        self.canaries: list[tuple[int, ...]] = []  #: the trusted one, and what came since
        self.lost: list[Row] = []  #: settled engine_lost in this wake; the kill is carried out after the answers
        self.permanent = False
        self.given_up = False
        self.killed_at = float("inf")
        self.failures = 0  #: deaths in a row that were not asked for
        self.failing_since = 0.0
        self.ready_since = self.well_since = float("inf")  #: ready; and no engine was lost since
        self.progress_at: float | None = None
        self.woke_at = float("-inf")
        self.awake_at, self.awake_outside = 0.0, 0.0  #: the last wake
        self.absences: list[tuple[float, float]] = []  #: from a wake to one that came too late
        self.absences_outside: list[tuple[float, float]] = []
        self.rss: int | None = None  #: as the engine that is up told last
        self.safe = False  #: in this wake: the engine is too old or too large, and holds nothing
        self.empty_at = 0.0  #: the wake since which it has held nothing
        self.paused = False  #: so that it can become empty
        self.pause_turns_at = float("-inf")  #: when that begins or ends
        self.recycled = False  #: no engine was lost, or ready, since one was recycled
        self.recyclings = self.restarts = 0
        self.ghosts: set[int] = set()
        self.states: list[str] = []

    # --- inputs --------------------------------------------------------------------------------------------------

    def submitted(self, submission: Submission, text: list[int], ends: str, now: float) -> None:
        assert submission.id not in self.rows
        b, at = submission.bounds, submission.submitted_at
        row = Row(
            submission,
            text,
            ends,
            total_at=_plus(at, b.total),
            queued_at=_plus(at, b.queued),
            first_end=_plus(self.ready.at(now), b.first_token),
            submitted_reading=self.ready.at(now),
            gap=float("inf") if b.next_token is None else b.next_token,
            known_at=now,
            cleared=submission.cleared,
            stalled=self.woke_at == now,
            since=at,
            elder=submission.id,
        )
        first = self._named(submission) if submission.supersede else None
        if first is not None:
            row.since, row.elder, row.supersedes = first.since, first.elder, first
        row.gap_end = row.submitted_reading + row.gap if row.gap <= 0 else row.gap_end
        self.rows[submission.id] = row
        self.first.setdefault(submission.priority, now)
        if (
            submission.lease is None
            and submission.implicit_ttl is not None
            and self.phase != "failed"
            and not self.closing
        ):
            self.granted(f"implicit-{submission.id}", submission.implicit_ttl, now)

    def _named(self, submission: Submission) -> Row | None:
        """The newest that is open under the same owner and label."""
        name = (submission.owner, submission.label)
        same = [r for r in self.open_rows() if (r.submission.owner, r.submission.label) == name]
        return next((r for r in reversed(same) if not r.submission.probe), None)

    def accepted(self, sequence: int) -> None:
        """Its submission was taken: what it supersedes has made way, unless it was refused itself."""
        row = self.rows[sequence]
        if row.supersedes is not None:
            refused = row.settled in ("engine_failed", "shutdown", "lease", "rejected")
            assert (row.supersedes.settled == "cancelled") is not refused, "of two with a name, the newer one is held"

    def tightened(self, sequence: int, bounds: Bounds, at: float, now: float) -> None:
        """A gap of less than nothing is over now, and not before."""
        row = self.rows[sequence]
        reading = self.ready.at(at)
        gap = None if bounds.next_token is None else max(0.0, bounds.next_token)
        row.total_at = min(row.total_at, _plus(row.submission.submitted_at, bounds.total))
        row.queued_at = min(row.queued_at, _plus(at, bounds.queued))
        row.known_at = now
        if not row.emitted:
            row.first_end = min(row.first_end, _plus(reading, bounds.first_token))
            row.gap_end = min(row.gap_end, row.submitted_reading) if gap == 0.0 else row.gap_end
        elif gap is not None:
            row.gap_end = min(row.gap_end, reading + gap)
        row.gap = min(row.gap, float("inf") if gap is None else gap)

    def cancelled(self, sequence: int, was_open: bool, result: bool) -> None:
        assert result is was_open, "cancel tells whether it ended the sequence"
        assert not was_open or self.rows[sequence].settled == "cancelled"

    def granted(self, lease: str, ttl: float, now: float) -> None:
        self.leases[lease] = LeaseRow(lease, ttl, self.ready.at(now) + ttl, stalled=self.woke_at == now)

    def renewed(self, lease: str, at: float, result: bool) -> None:
        row = self.leases[lease]
        reading = self.ready.at(at)
        if row.over or row.expires < reading - EPS:
            assert not result, "an expired or revoked lease never comes back"
        elif row.expires > reading + EPS:
            assert result, "a live lease is renewed"
        if result:
            row.graced = False
            row.expires = max(row.expires, reading + row.ttl)

    def close(self, drain_s: float, now: float) -> None:
        self.closing = True
        self.drain_until = min(self.drain_until, now + max(0.0, drain_s))

    def stalled(self, now: float) -> None:
        """The driver was stopped and wakes now: nothing of the time since its last wake counts against the engine."""
        self.woke_at = now
        self.absences.append((self.awake_at, now))
        self.absences_outside.append((self.awake_outside, self._outside(now)))
        for row in self.open_rows():
            row.stalled = True
        for lease in self.leases.values():
            lease.stalled = True

    def received(self, report: ev.Report, now: float) -> None:
        if report.incarnation != self.incarnation:
            return
        if self.phase in ("failed", "closed"):
            if isinstance(report, ev.Exited):  # given up as unkillable, and gone after all
                self._all_gone()
            return
        match report:
            case ev.Exited():
                self.exit_status = report.status
                self._exited(now)
            case _ if self.doomed:
                return
            case ev.Ready() if self.phase == "starting":
                self.rss = report.rss_bytes
                if self._trusted(report.facts.canary):
                    self._became_ready(report.facts, now)
                else:
                    self.disbelieved = self.incarnation
                    self._doom(now)
            case ev.BootFailed():
                self.permanent = self.permanent or (report.permanent and self.phase == "starting")
                self._doom(now)
            case ev.StepRaised() | ev.WireBroken():
                self._doom(now)
            case ev.Progress() if self.phase == "up":
                self._progressed(report, now)

    def _trusted(self, canary: tuple[int, ...]) -> bool:
        """The answer of the first engine, until two in a row agree on another one."""
        self.canaries.append(canary)
        if canary != self.canaries[0] and self.canaries[-2:] != [canary] * 2:
            return False
        self.canaries = [canary]
        return True

    def _doom(self, now: float) -> None:
        """It has said itself that it is lost: nothing that it says after that counts."""
        if self.phase in ("starting", "up"):
            self.doomed = True
            self.ready.stand(now)

    # --- what inputs mean ----------------------------------------------------------------------------------------

    def _became_ready(self, facts: ev.EngineFacts, now: float) -> None:
        again = self.facts is not None
        self.restarts += again and not self.recycled
        self.recycled = False
        self.phase, self.facts, self.ready_since = "up", facts, now
        self.well_since = min(self.well_since, now)
        self.needs = Needs(facts.pools, tuple(facts.probe_blocks.get(p.name, 0) for p in facts.pools))
        self.running_max = min(facts.running_max, self.limits.running_max or facts.running_max)
        self.ready.run(now)
        if again:
            for lease in self.leases.values():
                self._grace(lease, self.ready.at(now))

    def _grace(self, lease: LeaseRow, reading: float) -> None:
        if not lease.graced:
            lease.graced = True
            lease.expires = max(lease.expires, min(lease.expires + self.limits.lease_grace, reading + lease.ttl))

    def _exited(self, now: float) -> None:
        if self.phase in ("starting", "up"):
            self.died_now = True
            self._failed(now)
        self.respawn_at = now if self.recycled else None
        self.ready.stand(now)
        self._all_gone()
        self.phase = "down"
        self.ghosts.clear()

    def _all_gone(self) -> None:
        for stay in self.open_stays():
            stay.gone = "died"
            self.durations.entered([stay.id])

    def _failed(self, now: float) -> None:
        self.recycled, self.well_since = False, float("inf")
        self.failing_since = self.failing_since if self.failures else now
        self.failures += 1

    def _served(self, now: float) -> None:
        """Tokens reached a caller; a mere boot forgets nothing."""
        if now - self.well_since >= self.forget_after:
            self.failures = 0

    def _progressed(self, report: ev.Progress, now: float) -> None:
        self.reported_steps = report.steps
        self.budgets.received(report, self.woke_at)
        self.durations.reported(report)
        self.durations.entered(report.taken)
        self.rss = self.rss if report.rss_bytes is None else report.rss_bytes
        for id_ in report.taken:
            self.stays[id_].taken = True
        assert self.engine is not None
        self.pauses.reported(report, self.engine)
        for finish in report.finished:
            self._finished(finish, report)
        for id_ in report.stopping:
            stay = self.stays[id_]
            stay.ended = True
            if stay.stop_taken_steps is None:
                stay.stop_taken_steps = report.steps - 1
        for refusal in report.refused:
            self._let_go(refusal.stay, "refused")
            self.durations.refused(refusal.stay)
            stay = self.stays[refusal.stay]
            stay.row.refused_by_engine |= refusal.code != ev.NO_ROOM
            stay.row.admitted &= not (stay.first and refusal.code == ev.NO_ROOM)
        for release in report.released:
            self._let_go(release.stay, "released")
            self.durations.entered([release.stay])
        if report.held is not None:
            self._reconcile(set(report.held))
        if report.scheduled or report.taken or report.released or report.finished:
            self.progress_at = now

    def _finished(self, finish: ev.Finish, report: ev.Progress) -> None:
        stay = self.stays[finish.stay]
        stay.ended = True
        if stay.stop_taken_steps is None:
            stay.stop_taken_steps = report.steps - 1
        stay.row.finish, stay.row.finish_ended = finish, report.ended
        if finish.why == "ignored":
            stay.row.ignored += 1
            assert self.engine is not None
            assert K.IGNORE in self.engine.triggered, "under reservation the engine never ignores anybody"

    def _let_go(self, id_: int, how: str) -> None:
        stay = self.stays[id_]
        stay.gone = stay.gone or how
        if stay.row.settled is not None or (stay.row.finish is not None and stay.row.finish.why != "ignored"):
            self.pauses.left(id_)
        self.ghosts.discard(id_)

    def _reconcile(self, held: set[int]) -> None:
        for stay in self.open_stays():
            if stay.taken and stay.id not in held:
                stay.gone = "reconciled"
        self.ghosts = {i for i in held if self.stays[i].gone}

    # --- recycling -----------------------------------------------------------------------------------------------

    def ticks(self, now: float) -> None:
        """Reports and commands of this wake are heard. Nobody is held back for longer than a drain in eleven."""
        drain = self.limits.recycle_drain
        worn = self.phase == "up" and not self.doomed and not self.closing and self._worn(now)
        held = any(True for _ in self.open_stays())
        self.safe = worn and not held
        self.empty_at = float("inf") if held else min(self.empty_at, now)
        if not worn or self.safe:
            self.paused, self.pause_turns_at = False, float("-inf")
        elif drain and now >= self.pause_turns_at:
            self.paused = not self.paused
            self.pause_turns_at = now + (drain if self.paused else 10 * drain)

    def _worn(self, now: float) -> bool:
        limits, age = self.limits, now - self.ready_since
        if limits.engine_age is not None and now >= self.ready_since + limits.engine_age:
            return True
        large = limits.engine_rss_bytes is not None and self.rss is not None and self.rss >= limits.engine_rss_bytes
        return large and age >= 10 * (self.ready_since - self.spawned_at) - EPS

    # --- effects -------------------------------------------------------------------------------------------------

    def observe(self, effect: ev.Effect, now: float) -> None:
        match effect:
            case ev.Spawn():
                self._spawn(effect, now)
            case ev.Kill():
                self._kill(effect, now)
            case ev.Admit():
                self._admit(effect, now)
            case ev.Stop():
                self._stop(effect, now)
            case ev.Emit():
                self._emit(effect, now)
            case ev.Settle():
                self._settle(effect, now)
            case ev.Prove():
                self._prove(effect)
            case ev.EndLease():
                self._end_lease(effect, now)
            case ev.Lost():
                assert self.told < effect.incarnation == self.incarnation, "the end of each engine is told once"
                self.told = effect.incarnation
                self._lost(effect.cause)
            case ev.DecideRestart():
                assert self.phase == "down"
                assert not self.recycled, "a recycling is no loss"
                assert not self.closing
                assert not self.permanent
                assert (effect.failures, effect.since) == (self.failures, self.failing_since), "the budget is told"
            case ev.Became():
                self._became(effect.state, now)

    def _lost(self, cause: ev.Cause) -> None:
        """Promise 5: only newcomers of the fatal step, and who was alone, are struck; nobody by a hand from outside."""
        inside = [s for s in self.stays.values() if not s.proved and not s.probe]
        rows = [(s, s.row) for s in inside if s.row.settled is None and s.row.stay == s.id]
        self.inside = [row for stay, row in rows if stay.id not in self.pauses.put_back]
        for _, row in rows:
            row.fruitless += 1
        if cause not in BLAMED or (cause is ev.Cause.DIED and self.exit_status in FROM_OUTSIDE):
            return
        for stay, row in rows:
            row.crashes += 1
            row.suspect = len(inside) == 1 or not stay.taken
            row.strikes += len(inside) == 1 or (row.suspect and not row.strikes)

    def _may_go_on(self, row: Row) -> bool:
        """It was asked for, and there is something left that can be generated as if nothing had been."""
        resume, shown = row.submission.resume, len(row.emitted)
        fresh = resume is not Resume.NEVER and not shown
        return not self.closing and (fresh or (resume is Resume.ALWAYS and shown < row.submission.max_new_tokens))

    def _became(self, state: str, now: float) -> None:
        assert self.states[-1:] != [state], "health changes when it says so"
        self.states.append(state)
        if state == "failed":
            assert self.given_up or self.permanent or self._reap_overdue(now)
            self.phase = "failed"
        elif state == "closed":
            assert self.closing
            assert self.phase in ("down", "failed") or self._reap_overdue(now), "closed while the engine lives"
            self.phase = "closed"

    def _spawn(self, effect: ev.Spawn, now: float) -> None:
        assert self.phase == "down", "never two engines at once"
        assert effect.incarnation == self.incarnation + 1
        assert not self.closing or (self.recycled and now < self.drain_until)
        assert not self.given_up
        assert not self.permanent
        assert self.respawn_at is None or self._on_time(now, self.respawn_at), "started again too early or too late"
        self.incarnation, self.phase, self.spawned_at = effect.incarnation, "starting", now
        self.doomed = False
        self.progress_at = None
        self.budgets.spawned(effect.incarnation)
        self.durations.spawned()
        self.pauses.spawned()

    def _kill(self, effect: ev.Kill, now: float) -> None:
        assert effect.incarnation == self.incarnation
        assert self.phase in ("starting", "up"), "an engine is killed once"
        if effect.cause is ev.Cause.CLOSE:
            assert self.closing
            assert now <= self.drain_until + EPS or now == self.woke_at, "the drain lasted too long"
        elif effect.cause is ev.Cause.RECYCLE:
            assert self.safe, "an engine was recycled that is not worn, or holds something"
            its_time = self.ready_since + (self.limits.engine_age or 0.0)
            assert self.limits.engine_age is None or self._on_time(now, max(its_time, self.empty_at)), "recycled late"
            self.recycled, self.recyclings = True, self.recyclings + 1
        else:
            assert self.engine is not None
            why = self.engine.triggered & JUSTIFIES[effect.cause]
            assert why or self.disbelieved == self.incarnation, (
                f"false kill: {effect.cause} ({effect.detail}); faults {sorted(self.engine.triggered)}"
            )
            if effect.cause is ev.Cause.STEP:
                pulse = self.engine.pulse(now)
                noticed = [(since, to) for since, to in self.absences if to - since > NOTICED]
                age = _without(noticed, pulse.begun_at, now)
                assert age > self.budgets.of(pulse) - EPS, "a step is killed before its budget is used up"
            self._failed(now)
        self.phase, self.killed_at, self.died_now = "dying", now, True
        self.ready.stand(now)

    def _check_turn(self, row: Row, now: float) -> None:
        """Suspects first; then who is of a higher class, unless this one has aged; then the owner's earliest due.

        What is fair between owners is left to tests/core/test_order.py.
        """
        waiting = self.waiting(probe=row.submission.probe)
        assert row in waiting
        assert row.suspect or not any(r.suspect for r in waiting), "suspects are tried before anybody else comes in"
        rivals = [r for r in waiting if r.suspect is row.suspect]
        mine, top = row.submission.priority, max(r.submission.priority for r in rivals)
        passed_over = now - self.turns.get((row.suspect, mine), self.first[mine])
        assert mine == top or passed_over >= (top - mine) * self.ageing - EPS, "a higher priority comes first"
        same = [r for r in rivals if (r.submission.owner, r.submission.priority) == (row.submission.owner, mine)]
        assert row is min(same, key=self._due), "the earliest deadline comes first, and what is far ages"
        if not row.submission.probe:
            self.turns[row.suspect, mine] = now

    def _heads(self) -> list[Row]:
        """Those that can be next: the first of each owner in each class, of suspects where there are any."""
        waiting = self.waiting(probe=False)
        waiting = [r for r in waiting if r.suspect] or waiting
        first: dict[tuple[str, int], Row] = {}
        for row in sorted(waiting, key=self._due):
            first.setdefault((row.submission.owner, row.submission.priority), row)
        return list(first.values())

    def _due(self, row: Row) -> tuple[float, int]:
        queued_at = float("inf") if row.admitted else row.queued_at
        return min(row.total_at, queued_at, row.since + self.ageing), row.elder

    def _admit(self, effect: ev.Admit, now: float) -> None:
        row = self.rows[effect.sequence]
        assert self.phase == "up", "admission only to a ready engine"
        assert effect.incarnation == self.incarnation
        assert effect.stay not in self.stays, "stay ids are never reused"
        assert effect.stay > max(self.stays, default=0)
        assert row.settled is None
        assert row.cleared
        assert row.stay is None or self.stays[row.stay].proved, "one stay at a time"
        assert effect.deadline == row.total_at, "the deadline travels with the stay"
        self._check_turn(row, now)
        self.pauses.admitted(effect, row.submission, row.gap)
        assert self.needs is not None
        needs = self.needs.of(row.submission)
        probe = row.submission.probe
        assert probe or not self.paused, "somebody was admitted to an engine that is to become empty"
        assert probe or not self._trial(), "a suspect is tried with no newcomer beside it"
        self.stays[effect.stay] = StayRow(
            effect.stay, row, needs, probe, self._outside(now), row.suspect, not row.admitted
        )
        self.durations.admitted(effect.stay, row.submission, now, first=not row.admitted)
        row.stay, row.admitted = effect.stay, True
        if len(list(self.open_stays())) == 1:
            self.progress_at = now
        self._check_capacity()

    def _check_capacity(self) -> None:
        """Reservations of all that is not proved gone fit every pool; the probe has a place of its own."""
        assert self.needs is not None
        normal = [s for s in self.open_stays() if not s.probe]
        assert len(normal) <= self.running_max
        assert self.pauses.adaptive or self.needs.fits([s.needs for s in normal])
        assert sum(s.probe for s in self.open_stays()) <= 1

    def _stop(self, effect: ev.Stop, now: float) -> None:
        assert effect.incarnation == self.incarnation
        assert self.phase == "up"
        if effect.stay in self.ghosts:
            return
        stay = self.stays[effect.stay]
        assert not stay.proved  # one that left in the very report which tells of its deadline may be stopped yet
        assert not stay.stop_sent, "one stop a stay"
        assert stay.row.settled is not None or stay.row.ignored
        assert not stay.ended or stay.id not in self.pauses.put_back, "it was stopped already"
        stay.stop_sent, stay.sent_outside = True, self._outside(now)

    def _emit(self, effect: ev.Emit, now: float) -> None:
        row = self.rows[effect.sequence]
        assert row.settled is None, "nothing is emitted after settlement"
        assert effect.token_ids
        row.emitted += effect.token_ids
        self.durations.shown(row.submission, len(effect.token_ids), now)
        assert row.stay is not None
        row.suspect = self.stays[row.stay].trial = False
        row.fruitless = 0
        self._served(now)
        assert row.emitted == row.text[: len(row.emitted)], "tokens arrive once, in order, unchanged"
        row.first_end, row.gap_end, row.known_at = float("inf"), self.ready.at(now) + row.gap, now

    def _prove(self, effect: ev.Prove) -> None:
        stay = self.stays[effect.stay]
        assert stay.gone, "proved without proof"
        assert not stay.proved
        assert stay.row.submission.id == effect.sequence
        assert (effect.proof == "died") is (stay.gone == "died")
        stay.proved = True

    def _end_lease(self, effect: ev.EndLease, now: float) -> None:
        lease = self.leases[effect.lease]
        assert not lease.over
        lease.over = True
        if effect.how == "expired":
            late = self.ready.at(now) - lease.expires
            stood = not self.ready.running and self.ready.stood_at < now
            assert not stood, "leases stand still while the engine is not ready"
            assert late >= -EPS, "a lease ended early"
            assert late <= EPS or lease.stalled, "a lease ended late"

    # --- settlement ----------------------------------------------------------------------------------------------

    def _settle(self, effect: ev.Settle, now: float) -> None:
        row = self.rows[effect.sequence]
        assert row.settled is None, "settled twice"
        row.settled = effect.reason
        self.reasons[effect.reason] += not row.submission.probe
        self.durations.settled(row.submission, now)
        if effect.results:
            self.durations.shown_at_the_end(row.submission, now)
        assert effect.held is any(s.row is row for s in self.stays.values() if not s.proved), "held: a proof follows"
        shown_at_the_end = row.finish is not None and any(result.token_ids for result in row.finish.results)
        if shown_at_the_end and effect.reason in ("stop", "length", "cache_exhausted"):
            self._served(now)
        implicit = self.leases.get(f"implicit-{effect.sequence}")
        if effect.detail.startswith("it would take"):
            self._check_hopeless(row, effect, now)
        elif effect.reason == "deadline":
            self._check_deadline(row, effect, now)
        else:
            self._check_reason(row, effect, now)
            late = now - max(row.known_at, min(at for _, at in self._dues(row, now)))
            assert late <= EPS or row.stalled, f"{effect.reason} came after the deadline"
        if implicit is not None:
            implicit.over = True

    def _check_hopeless(self, row: Row, effect: ev.Settle, now: float) -> None:
        """Whether the estimate is good is left to tests/core/test_forecast.py."""
        assert self.margin is not None
        assert (effect.bound, effect.deadline) == ("queued", row.total_at)
        assert row.total_at > now, "it is over anyway"
        assert not row.admitted, "nothing that was let in is given up"
        assert self.phase == "up", "it is decided at its turn"
        assert self.waiting(probe=False), "nobody else wants the time"

    def _check_deadline(self, row: Row, effect: ev.Settle, now: float) -> None:
        dues = dict(self._dues(row, now))
        assert effect.bound in dues, f"{effect.bound} is not a bound of it that counts now"
        at = dues[effect.bound]
        assert at <= now + EPS, "settled before its deadline"
        assert abs(effect.deadline - at) <= EPS
        assert at <= min(dues.values()) + EPS, "the earliest deadline is named"
        assert now - max(at, row.known_at) <= EPS or row.stalled, "settled after its deadline"

    def _dues(self, row: Row, now: float) -> Iterator[tuple[str, float]]:
        """Its deadlines as instants; while ready time stands still, one on it is either due already or never comes."""
        yield "total", row.total_at
        if not row.admitted:
            yield "queued", row.queued_at
        reading = self.ready.at(now)
        for name, end in (("first_token", row.first_end), ("next_token", row.gap_end)):
            if self.ready.running or end <= reading:
                yield name, now - (reading - end)

    def _check_reason(self, row: Row, effect: ev.Settle, now: float) -> None:
        submission, finish = row.submission, row.finish
        lease = self.leases.get(submission.lease or f"implicit-{submission.id}")
        match effect.reason:
            case "stop" | "length":
                assert finish is not None
                assert finish.why == effect.reason == row.ends
                assert row.finish_ended <= row.total_at + EPS, "its step ended after its deadline"
                self._check_result(row, effect)
            case "rejected":
                by_size = self.phase == "up" and not self.doomed and self._never_fits(submission)
                assert row.refused or row.refused_by_engine or by_size, "only a living engine tells what never fits"
            case "lease":
                assert lease is None or lease.over
            case "engine_lost":
                assert row.stay is not None, "one that waits survives the engine"
                assert now < row.total_at + EPS, "a deadline wins over the loss of the engine"
                self._check_loss(row, self.stays[row.stay])
            case "quarantined":
                assert row in self.inside
                assert row.strikes == 2, "two strikes are quarantine"
                assert self._may_go_on(row)
            case "engine_failed":
                assert self.phase == "failed" or self.permanent or self.given_up or self._reap_overdue(now)
            case "cache_exhausted":
                assert row.ignored
            case "shutdown":
                assert self.closing
            case other:
                assert other == "cancelled", other
                assert not effect.detail or self._makes_way(row, effect.detail), "ended for one that is not there"

    def _makes_way(self, row: Row, detail: str) -> bool:
        return any(r.supersedes is row and detail.endswith(f" {r.submission.id}") for r in self.open_rows())

    def _check_loss(self, row: Row, stay: StayRow) -> None:
        if stay.gone == "reconciled":
            return
        if stay.proved and self.phase == "up":
            assert self._never_fits(row.submission), "it could go on in the engine that came back"
        else:
            self.lost.append(row)
            assert max(row.crashes, row.fruitless) >= 3 or not self._may_go_on(row), "it could go on, and nobody let it"

    def _trial(self) -> bool:
        return any(s.trial and not s.proved for s in self.stays.values())

    def _reap_overdue(self, now: float) -> bool:
        unkillable = self.engine is not None and K.UNKILLABLE in self.engine.triggered
        return unkillable and self.phase == "dying" and self._on_time(now, self.killed_at + self.limits.reap)

    def _on_time(self, now: float, at: float) -> bool:
        """Not early, and late only if the driver was stopped."""
        return at - EPS <= now and (now <= at + EPS or now == self.woke_at)

    def _never_fits(self, submission: Submission) -> bool:
        return self.needs is not None and not submission.probe and not self.needs.fits([self.needs.of(submission)])

    def _check_result(self, row: Row, effect: ev.Settle) -> None:
        if row.submission.sequences == 1:
            assert row.emitted == row.text, "a finished generation has all its tokens"
            return
        assert not row.emitted
        assert len(effect.results) == row.submission.sequences
        assert list(effect.results[0].token_ids) == row.text

    # --- after each wake -----------------------------------------------------------------------------------------

    def after_wake(self, now: float) -> None:
        """What must hold whenever the driver goes to sleep."""
        self.awake_at, self.awake_outside = now, self._outside(now)
        assert not (self.closing and self.phase == "down"), "closed once the engine is gone"
        assert not (self.safe and self.phase == "up"), "a worn engine that holds nothing is recycled at once"
        assert not (self.recycled and self.phase == "down"), "and the next one is started at once"
        self._check_nobody_is_overdue(now)
        self._check_work_is_conserved()
        self._check_stops_were_sent()
        self._check_engine_is_judged(now)
        if self.engine is not None:
            self.pauses.check_the_cache(self.engine)
        if self.phase in ("failed", "closed") or now >= self.drain_until:
            assert not list(self.open_rows()), "everything is settled at the end"
        assert all(s.proved for s in self.stays.values() if s.gone), "a release is proved in the wake it is heard of"
        assert self.died_now or not self.lost, "engine_lost, and the engine lives"
        assert self.phase in ("starting", "up") or self.told == self.incarnation, "the end of an engine is told"
        for row in self.inside if self.phase != "failed" else ():
            goes_on = self._may_go_on(row) and row.strikes < 2 and max(row.crashes, row.fruitless) < 3
            assert row.settled is not None or goes_on, "it waits for another engine, and must not"
        self.died_now, self.lost, self.inside = False, [], []

    def _check_nobody_is_overdue(self, now: float) -> None:
        reading = self.ready.at(now)
        for row in self.open_rows():
            assert min(at for _, at in self._dues(row, now)) > now - EPS, "a deadline passed unanswered"
        for lease in self.leases.values():
            overdue = self.ready.running and not lease.over and lease.expires <= reading - EPS
            assert not overdue, "a lease outlived its ttl"
        for row in self.open_rows():
            its = self.leases.get(row.submission.lease or "")
            assert its is None or not its.over, "a sequence outlived its lease"

    def _check_work_is_conserved(self) -> None:
        """What fits a ready engine does not wait; what can never fit is not kept."""
        if self.phase != "up" or self.needs is None:
            return
        held = [s for s in self.open_stays() if not s.probe]
        for row in self.waiting(probe=False):
            assert not self._never_fits(row.submission), "what can never fit is refused"
        calm = held and self.reported_steps < self.pauses.calm_until
        busy = self._trial() or self.paused or calm or len(held) >= self.running_max
        heads = [] if busy else self._heads()
        fitting = [self.needs.fits([s.needs for s in held] + [self.needs.of(head.submission)]) for head in heads]
        assert not fitting or not all(fitting), "a sequence waits although it fits"
        if self.waiting(probe=True):
            assert any(s.probe for s in self.open_stays()), "a probe waits although its own place is free"

    def _check_stops_were_sent(self) -> None:
        for stay in self.open_stays() if self.phase == "up" else ():
            assert stay.row.settled is None or stay.stop_sent or stay.ended, "settled, and nobody told the engine"

    def _check_engine_is_judged(self, now: float) -> None:
        """A fault is noticed in its time: the converse of 'no false kill'."""
        limits, engine = self.limits, self.engine
        if self.phase == "starting":
            assert self._watched(self.spawned_at, now) < limits.boot + EPS, "a boot is overdue"
        if self.phase == "dying":
            assert now - self.killed_at < limits.reap + EPS or now == self.woke_at, "a killed engine is overdue"
        if self.phase != "up" or engine is None:
            return
        pulse = engine.pulse(now)
        for stay in self.open_stays():
            if stay.stop_taken_steps is not None and self.woke_at < now:
                steps = self.reported_steps - stay.stop_taken_steps
                assert steps < limits.reclaim_steps, "a stay is not released, and nobody noticed"
        if pulse.in_step:
            assert self._watched(pulse.begun_at, now) < self.budgets.of(pulse) + EPS, "a step is overdue"
            return
        for stay in self.open_stays():
            self._check_stay_is_judged(stay, now)
        if self.progress_at is not None and list(self.open_stays()):
            age = self._watched(self.progress_at, now)
            assert age < limits.progress + self._longest_step(engine) + 1.0 + EPS, "no progress, and nobody noticed"

    def _longest_step(self, engine: SimEngine) -> float:
        return 2 * (engine.model.step_s + engine.model.token_s * engine.model.max_num_batched_tokens)

    def _check_stay_is_judged(self, stay: StayRow, now: float) -> None:
        limits = self.limits
        waited = _without(self.absences_outside, stay.sent_outside, self._outside(now))
        if not stay.taken or (stay.stop_sent and not stay.ended):
            assert waited < limits.ack + EPS, "a command is not taken, and nobody noticed"

    def _watched(self, at: float, now: float) -> float:
        """The seconds since `at` in which somebody looked."""
        return _without(self.absences, at, now)

    def _outside(self, now: float) -> float:
        """A clock that stands still inside of steps."""
        if self.engine is None:
            return now
        pulse = self.engine.pulse(now)
        return now - pulse.inside_s - (now - pulse.begun_at if pulse.in_step else 0.0)

    # --- views ---------------------------------------------------------------------------------------------------

    def open_rows(self) -> Iterator[Row]:
        return (row for row in self.rows.values() if row.settled is None)

    def open_stays(self) -> Iterator[StayRow]:
        return (stay for stay in self.stays.values() if not stay.gone)

    def waiting(self, *, probe: bool) -> list[Row]:
        """Those that may be admitted."""
        rows = (r for r in self.open_rows() if r.cleared and r.submission.probe is probe)
        return [r for r in rows if r.stay is None or self.stays[r.stay].proved]


def _without(absences: list[tuple[float, float]], at: float, until: float) -> float:
    return until - at - sum(max(0.0, min(to, until) - max(since, at)) for since, to in absences)


def _plus(at: float, bound: float | None) -> float:
    return float("inf") if bound is None else at + bound
