"""A state machine drives the governor against a simulated engine with faults; oracle.py judges.

`BOUNDEDGEN_EXAMPLES=3000 BOUNDEDGEN_STEPS=120 pytest tests/stateful` runs it deep, with fresh randomness.
"""

import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from stateful.oracle import EPS, Oracle

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core import _deadlines
from boundedgen._core import _events as ev
from boundedgen._core._forecast import ENOUGH
from boundedgen._core._governor import Governor
from boundedgen._core._leases import Lease
from boundedgen._core._sequences import Resume, Submission
from boundedgen.abc import Request
from boundedgen.testing._clock import VirtualClock
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_model import SimModel

#: A failure is shrunk before it is shown; a deep run takes as long as it takes.
pytestmark = pytest.mark.timeout(0 if "BOUNDEDGEN_EXAMPLES" in os.environ else 900)

K = FaultKind
LIMITS = Limits(
    boot=10.0, first_step=4.0, new_shape=1.0, step=2.0, step_per_token=0.01, step_max=8.0, progress=6.0, ack=3.0,
    reclaim=2.0, reclaim_steps=3, reap=2.0, lease_grace=2.0,
)  # fmt: skip
BOOT_FAULTS = (K.STILLBORN, K.BOOT_FAILS, K.BOOT_DIES, K.BOOT_LIES)
TOTAL_MAX = 40.0  #: every submission is bounded, so that liveness has a date

KV = ev.PoolFacts("kv", 13, 4)
POOLS = {
    "plain": (KV,),
    "hybrid, a block a sequence": (KV, ev.PoolFacts("linear_attention", 3, None)),
    "hybrid, cached": (KV, ev.PoolFacts("linear_attention", 6, 8)),
}
KV_BLOCKS = (4, 13, 26)  #: an engine that sizes its cache by bytes comes back with another number
#: Where an engine can become too old or too large; one that is always too large is not within ten boots.
WEAR: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"engine_age": 2.5, "recycle_drain": 1.0},
    {"engine_age": 15.0, "recycle_drain": 3.0},
    {"engine_age": 15.0, "recycle_drain": 0.0},
    {"engine_rss_bytes": 1_000, "recycle_drain": 1.0},
)
FORGET_AFTER = 20.0
AGEING = 3.0
SLACK = _deadlines.SLACK
FAULTS = [k for k in K if k is not K.LATE_WORDS and k is not K.UNKILLABLE and k not in BOOT_FAULTS]


def natural_length(prompt: Sequence[int]) -> int | None:
    return 1 + prompt[0] % 7 if prompt[0] % 3 == 0 else None


spans = st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.7, 1.0, 2.0, 3.5, 8.0])
bound = st.none() | st.sampled_from([-1.0, 0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 9.0])
bounds = st.builds(
    Bounds,
    total=st.sampled_from([0.5, 2.0, 6.0, TOTAL_MAX, TOTAL_MAX]),
    queued=bound,
    first_token=bound,
    next_token=bound,
)
loose = st.just(Bounds(total=TOTAL_MAX))
met = st.sampled_from([{}, {}, {"queued": 0.5}, {"first_token": 3.0}, {"next_token": 2.0}, {"next_token": 4.0}])
late = st.sampled_from([0.0, 0.0, 0.3, 1.0])  # well within one standstill of the ready clock


class GovernorMachine(RuleBasedStateMachine):
    @initialize(
        pools=st.sampled_from(sorted(POOLS)),
        running_max=st.sampled_from([1, 2, 4]),
        batch=st.sampled_from([6, 64]),
        step_s=st.sampled_from([0.1, 0.4, 1.5]),
        pipe_s=st.sampled_from([0.0, 0.003]),
        patience=st.sampled_from([2, 50, 50]),
        faults=st.sampled_from([(), (), (), (K.STILLBORN,), (K.BOOT_FAILS,), (K.BOOT_DIES,), (K.BOOT_LIES,)]),
        lurking=st.none() | st.sampled_from(FAULTS),
        booted=st.booleans(),
        slack=st.sampled_from([0, SLACK]),
        wear=st.sampled_from(WEAR),
        rss_bytes=st.sampled_from([None, None, None, 2_000]),
        boot_s=st.sampled_from([3.0, 3.0, 0.5]),
        margin=st.sampled_from([None, 0.25, 2.0]),
        policy=st.sampled_from(["reserve", "adaptive", "adaptive"]),
        covered=st.sampled_from([0.1, 0.5, 1.0]),
        learned=st.sampled_from([None, 2, 6]),
    )
    def begin(
        self,
        pools: str,
        running_max: int,
        batch: int,
        step_s: float,
        pipe_s: float,
        patience: int,
        faults: tuple[K, ...],
        lurking: K | None,
        booted: bool,
        slack: int,
        wear: dict[str, Any],
        rss_bytes: int | None,
        boot_s: float,
        margin: float | None,
        policy: str,
        covered: float,
        learned: int | None,
    ) -> None:
        _deadlines.SLACK = slack
        self.clock = VirtualClock()
        self.model = SimModel(
            pools=POOLS[pools],
            probe_blocks={p.name: 1 for p in POOLS[pools]},
            running_max=running_max,
            max_num_batched_tokens=batch,
            natural_length=natural_length,
            boot_s=boot_s,
            rss_bytes=rss_bytes,
            step_s=step_s,
            pipe_s=pipe_s,
        )
        self.limits = evolve(LIMITS, **wear)
        admission = Admission(policy=policy, covered=covered, ageing=AGEING, weights={"a": 2.0}, margin=margin)
        self.governor = Governor(self.limits, admission, forget_after=FORGET_AFTER)
        if learned is not None:  # answers were short so far
            self.governor.forecast.seen = ENOUGH
            self.governor.forecast.lengths.add(learned, ended=True)
        self.oracle = Oracle(self.limits, FORGET_AFTER, admission)
        self.engine: SimEngine | None = None
        self.next_faults = [Fault(kind=kind, permanent=patience == 2) for kind in faults]
        if lurking is not None:
            self.next_faults.append(Fault(kind=lurking, at_step=4, seconds=20.0))
        self.patience = patience
        self.restart_delay = 0.5
        self.todo: list[ev.Effect] = []
        self.commands: list[Callable[[float], None]] = []
        self.stopped = False  # the driver does not run
        self.heard: list[ev.Report] = []
        self.poisoned: set[int] = set()
        self.ids = 0
        self.broken = False
        self._feed(lambda: self.governor.start(self.now))
        self._carry_out()
        self._sleep()
        self._advance_to(self.now + (4.0 if booted else 0.0))

    # --- the driver ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now()

    def _feed(self, what: Callable[[], Any]) -> Any:
        """One input; every effect of it is shown to the oracle at once and carried out at the end of the wake."""
        result = what()
        for effect in self.governor.poll():
            self.oracle.observe(effect, self.now)
            self.todo.append(effect)
        return result

    def _wake(self) -> None:
        """The driver's order: pulse, reports, commands, tick, effects."""
        self.broken = True  # until this wake has ended well: a teardown after a failure would hide it
        now, governor = self.now, self.governor
        if self.stopped:
            self.stopped = False
            self.oracle.stalled(now)
        if self.engine is not None:
            governor.pulse(self.engine.pulse(now), now)
            for report in self.engine.receive(now):
                self._receive(report)
        commands, self.commands = self.commands, []
        for command in commands:
            command(now)
        self.oracle.ticks(now)
        self._feed(lambda: governor.tick(now))
        self._carry_out()
        self.oracle.after_wake(now)
        self._check_books()
        self._sleep()
        self.broken = False

    def _sleep(self) -> None:
        self.wakeup = self.governor.next_wakeup()

    def _receive(self, report: ev.Report) -> None:
        self.oracle.received(report, self.now)
        self._feed(lambda: self.governor.receive(report, self.now))
        self.heard.append(report)

    def _carry_out(self) -> None:
        while self.todo:
            effects, self.todo = self.todo, []
            for effect in effects:
                self._do(effect)

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Spawn():
                self.engine = SimEngine(effect.incarnation, self.now, self.model, self.next_faults)
                self.oracle.engine, self.next_faults = self.engine, []
            case ev.Kill():
                self._the_engine.kill(self.now)
            case ev.Admit():
                self._admit(effect)
            case ev.Stop():
                self._the_engine.stop(effect.stay, self.now)
            case ev.DecideRestart():
                self._decide(effect)

    def _decide(self, effect: ev.DecideRestart) -> None:
        delay = self.restart_delay if effect.failures <= self.patience else None
        self.oracle.given_up = delay is None
        self.oracle.respawn_at = None if delay is None else self.now + delay
        self._feed(lambda: self.governor.restart(delay, self.now))

    def _admit(self, effect: ev.Admit) -> None:
        submission = self.oracle.rows[effect.sequence].submission
        if submission.id in self.poisoned:
            self._the_engine.faults.append(Fault(kind=K.CRASH, stay=effect.stay))
        shown = self.oracle.rows[effect.sequence].emitted
        left = submission.max_new_tokens - len(shown)
        config = {"max_new_tokens": left, "num_return_sequences": submission.sequences}
        prompt = (*_prompt(submission), *shown)
        request = Request(effect.stay, prompt, config, effect.deadline, len(shown), effect.claim)
        self._the_engine.admit(request, self.now)

    @property
    def _the_engine(self) -> SimEngine:
        assert self.engine is not None
        return self.engine

    def _check_books(self) -> None:
        """Promise 10: what the governor counts is what was seen."""
        tally, census, oracle = self.governor.tally, self.governor.census(), self.oracle
        assert tally.submitted == sum(not r.submission.probe for r in oracle.rows.values())
        assert +Counter(tally.finished) == +oracle.reasons
        assert tally.submitted == tally.finished.total() + census.waiting + census.running
        assert (tally.restarts, tally.kills["recycle"]) == (oracle.restarts, oracle.recyclings)
        assert tally.paused <= oracle.pauses.paused
        oracle.durations.check(tally.times)
        assert set(self.governor.sequences) == {r.submission.id for r in oracle.open_rows()}
        if oracle.phase not in ("failed", "closed"):
            assert set(self.governor.stays) == {s.id for s in oracle.open_stays()}

    def _advance_to(self, until: float) -> None:
        """Let time pass; the driver wakes at every report and whenever it asked to; a stopped one, at the end."""
        if self.stopped:
            self.clock.advance_to(until)
            self._the_engine.run(until)
            self._wake()
            return
        spins = 0
        while (at := self._next_wake(until)) is not None:
            spins = spins + 1 if at <= self.now else 0
            assert spins < 5, f"the driver spins: next_wakeup does not move on; {self._wakers()}"
            self.clock.advance_to(at)
            self._wake()
        self.clock.advance_to(until)

    def _wakers(self) -> dict[str, Any]:
        g = self.governor
        return {
            "now": self.now,
            "reading": g.clock.at(self.now),
            "ready": g._ready.earliest(),
            "leases": g.leases.earliest(),
            "wall": g._wall.earliest(),
            "life": g.life.next(),
            "watch": g.watch.next(self.now),
            "report": self._the_engine.next_report(),
        }

    def _next_wake(self, until: float) -> float | None:
        engine = self._the_engine
        while True:
            event = engine.next_event()
            wakes = [t for t in (self.wakeup, engine.next_report()) if t is not None]
            wake = min(wakes, default=None)
            if event is not None and event <= until and (wake is None or event < wake):
                engine.run(event)
            else:
                return wake if wake is not None and wake <= until else None

    def _command(self, command: Callable[[float], None]) -> None:
        """From a caller's thread: wakes the driver, which gets to it when it runs."""
        self.commands.append(command)
        if not self.stopped:
            self._wake()

    # --- rules: callers ------------------------------------------------------------------------------------------

    @rule(
        prompt=st.integers(1, 30),
        new=st.integers(1, 14),
        sequences=st.sampled_from([1, 1, 1, 2, 3]),
        bounds=bounds | loose,
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        owner=st.sampled_from(["", "", "a", "b"]),
        label=st.sampled_from(["", "x", "x", "y"]),
        supersede=st.booleans(),
        ttl=st.sampled_from([None, None, 0.5, 5.0]),
        which=st.integers(0, 4),
        cleared=st.sampled_from([True, True, True, False]),
        poison=st.sampled_from([False] * 9 + [True]),
        resume=st.sampled_from(Resume),
        continuable=st.sampled_from([True, True, False]),
    )
    def submit(self, which: int, poison: bool, ttl: float | None, supersede: bool, **fields: Any) -> None:
        leases = [i for i in self.oracle.leases if not i.startswith("implicit")]
        lease = leases[-1 - which] if which < min(len(leases), 2) else None
        names = {"prompt": "prompt_tokens", "new": "max_new_tokens"}
        given = {names.get(k, k): v for k, v in fields.items()}
        supersede = supersede and bool(given["label"])
        submission = self._new(lease=lease, implicit_ttl=ttl, supersede=supersede, **given)
        if poison:
            self.poisoned.add(submission.id)
        self._command(lambda now: self._submit(submission, now))

    @rule(
        burst=st.integers(2, 6),
        new=st.integers(1, 30),
        tighter=st.none() | st.builds(Bounds, total=bound, queued=bound, first_token=bound),
    )
    def submit_many(self, burst: int, new: int, tighter: Bounds | None) -> None:
        """More than fits at once; of the last one the bounds are tightened while it waits."""
        for _ in range(burst):
            submission = self._new(prompt_tokens=3, max_new_tokens=new, bounds=Bounds(total=TOTAL_MAX))
            self._command(lambda now, s=submission: self._submit(s, now))  # type: ignore[misc]
        if tighter is not None and not self.stopped:
            self._advance_to(self.now + 0.7)
            last, at = self.ids, self.now
            self._command(lambda now: self._tighten(last, tighter, at, now))

    @rule(
        times=st.integers(1, 4),
        owner=st.sampled_from(["a", "b"]),
        apart=st.sampled_from([0.0, 0.01, 0.7]),
        bounds=loose | bounds,
    )
    def try_again_and_again(self, times: int, owner: str, apart: float, bounds: Bounds) -> None:
        """Each try supersedes the one before, be it waiting or inside; some come in the same wake. Others wait too."""
        for _ in range(times):
            beside = self._new(prompt_tokens=3, max_new_tokens=14, bounds=Bounds(total=TOTAL_MAX), owner=owner)
            self._command(lambda now, s=beside: self._submit(s, now))  # type: ignore[misc]
            submission = self._new(
                prompt_tokens=3, max_new_tokens=14, bounds=bounds, owner=owner, label="again", supersede=True
            )
            self._command(lambda now, s=submission: self._submit(s, now))  # type: ignore[misc]
            if not self.stopped:
                self._advance_to(self.now + apart)

    @rule(total=st.sampled_from([1.0, 5.0, 20.0]))
    def probe(self, total: float) -> None:
        submission = self._new(prompt_tokens=1, max_new_tokens=1, bounds=Bounds(total=total), probe=True)
        self._command(lambda now: self._submit(submission, now))

    @precondition(lambda self: not self.stopped)
    @rule(
        many=st.lists(
            st.tuples(
                st.integers(1, 9), st.integers(15, 38), st.sampled_from([0, 0, 1]), st.sampled_from([20.0, TOTAL_MAX])
            ),
            min_size=2,
            max_size=5,
        ),
        seconds=spans,
        newcomers=st.integers(0, 2),
    )
    def grow_out_of_the_cache(self, many: list[tuple[int, int, int, float]], seconds: float, newcomers: int) -> None:
        """Long answers; where short ones are expected, more of them are inside than can stay."""
        for prompt, new, priority, total in many:
            submission = self._new(
                prompt_tokens=prompt, max_new_tokens=new, priority=priority, bounds=Bounds(total=total)
            )
            self._command(lambda now, s=submission: self._submit(s, now))  # type: ignore[misc]
        self._advance_to(self.now + seconds)
        self.submit_many(newcomers, 10, None) if newcomers else None
        self._advance_to(self.now + seconds)

    def _new(self, **fields: Any) -> Submission:
        self.ids += 1
        return Submission(id=self.ids, submitted_at=self.now, **{"continuable": True, **fields})

    def _submit(self, submission: Submission, now: float) -> None:
        text = self.model.text(_prompt(submission), submission.max_new_tokens)
        ends = "stop" if text[-1] == self.model.eos_token_id else "length"
        self.oracle.submitted(submission, text, ends, now)
        self._feed(lambda: self.governor.submit(submission, now))
        self.oracle.accepted(submission.id)

    def _pick(self, which: int) -> int | None:
        open_ids = [r.submission.id for r in self.oracle.open_rows()]
        return open_ids[which % len(open_ids)] if open_ids else None

    @rule(which=st.integers(0, 30), any_of=st.booleans())
    def cancel(self, which: int, any_of: bool) -> None:
        sequence = 1 + which % self.ids if any_of and self.ids else self._pick(which)
        if sequence is not None:
            self._command(lambda now: self._cancel(sequence, now))

    def _cancel(self, sequence: int, now: float) -> None:
        row = self.oracle.rows.get(sequence)
        if row is not None:
            was_open = row.settled is None
            self.oracle.cancelled(sequence, was_open, self._feed(lambda: self.governor.cancel(sequence, now)))

    @rule(
        which=st.integers(0, 30),
        tighter=st.builds(Bounds, total=bound, queued=bound, first_token=bound, next_token=bound),
    )
    def tighten(self, which: int, tighter: Bounds) -> None:
        sequence, at = self._pick(which), self.now
        if sequence is not None:
            self._command(lambda now: self._tighten(sequence, tighter, at, now))

    def _tighten(self, sequence: int, tighter: Bounds, at: float, now: float) -> None:
        if self.oracle.rows[sequence].settled is None:
            self.oracle.tightened(sequence, tighter, at, now)
        self._feed(lambda: self.governor.tighten(sequence, tighter, at, now))

    @rule(which=st.integers(0, 30), fine=st.booleans())
    def check_grammar(self, which: int, fine: bool) -> None:
        found = [r.submission.id for r in self.oracle.open_rows() if not r.cleared]
        if found:
            sequence = found[which % len(found)]
            self._command(lambda now: self._checked(sequence, fine, now))

    def _checked(self, sequence: int, fine: bool, now: float) -> None:
        row = self.oracle.rows[sequence]
        if fine:
            row.cleared = True
            self._feed(lambda: self.governor.clear(sequence, now))
        else:
            row.refused = True
            self._feed(lambda: self.governor.refuse(sequence, "no", now))

    # --- rules: leases -------------------------------------------------------------------------------------------

    @rule(ttl=st.sampled_from([0.5, 1.0, 3.0, 6.0]))
    def grant(self, ttl: float) -> None:
        self.ids += 1
        lease = f"lease-{self.ids}"
        self._command(lambda now: self._grant(lease, ttl, now))

    def _grant(self, lease: str, ttl: float, now: float) -> None:
        self.oracle.granted(lease, ttl, now)
        self._feed(lambda: self.governor.grant(Lease(lease, "owner", ttl), now))

    @rule(which=st.integers(0, 30), ago=late)
    def renew(self, which: int, ago: float) -> None:
        """`ago`: a renewer that was held up between looking at the clock and posting; others came in between."""
        leases, at = sorted(i for i in self.oracle.leases if not i.startswith("implicit")), self.now - ago
        if leases:
            self._command(lambda now: self._renew(leases[which % len(leases)], at, now))

    def _renew(self, lease: str, at: float, now: float) -> None:
        self.oracle.renewed(lease, at, self._feed(lambda: self.governor.renew(lease, at, now)))

    @precondition(lambda self: not self.stopped)
    @rule(ttl=st.sampled_from([0.5, 3.0]), by=st.sampled_from([-0.1, 0.1]), renewals=st.integers(0, 2))
    def outlive_a_lease(self, ttl: float, by: float, renewals: int) -> None:
        """Two generations under one lease, a driver that is stopped around its end, renewals just in time or late.

        The later of two renewals is the older one: who posted it was held up.
        """
        self.grant(ttl)
        lease = f"lease-{self.ids}"
        for _ in range(2):
            submission = self._new(prompt_tokens=5, max_new_tokens=25, bounds=Bounds(total=TOTAL_MAX), lease=lease)
            self._command(lambda now, s=submission: self._submit(s, now))  # type: ignore[misc]
        self.stopped = True
        self.clock.advance(ttl + by)
        for older in range(renewals):
            self._command(lambda now, at=self.now - 0.3 * older: self._renew(lease, at, now))  # type: ignore[misc]
        self._wake()
        self._advance_to(self.now + ttl)

    @rule(which=st.integers(0, 30))
    def revoke(self, which: int) -> None:
        leases = sorted(i for i in self.oracle.leases if not i.startswith("implicit"))
        if leases:
            lease = leases[which % len(leases)]
            self._command(lambda now: self._feed(lambda: self.governor.revoke(lease, now)))

    @rule(which=st.integers(0, 30), ago=late)
    def read(self, which: int, ago: float) -> None:
        sequence, at = self._pick(which), self.now - ago
        if sequence is not None:
            self._command(lambda now: self._read(sequence, at, now))

    def _read(self, sequence: int, at: float, now: float) -> None:
        lease = f"implicit-{sequence}"
        if lease in self.oracle.leases and self.oracle.rows[sequence].settled is None:
            self.oracle.renewed(lease, at, self.oracle.leases[lease].expires > self.oracle.ready.at(at))
        self._feed(lambda: self.governor.seen(lease, at, now))

    # --- rules: time ---------------------------------------------------------------------------------------------

    @rule(seconds=spans, wake=st.booleans())
    def advance(self, seconds: float, wake: bool) -> None:
        if self.stopped and not wake:
            self.clock.advance(seconds)
        else:
            self._advance_to(self.now + seconds)

    @rule(seconds=st.sampled_from([3.0, 30.0]))
    def suspend_everything(self, seconds: float) -> None:
        """Engine and driver are stopped and go on together: no evidence against the engine.

        One shorter than LOOK + LATE of the watch (1.5 s) cannot be told from a slow step.
        """
        self._the_engine.run(self.now)
        self._the_engine.suspend(seconds)
        self.clock.advance(seconds)
        self.stopped = True
        self._wake()

    @rule(times=st.integers(1, 8))
    def advance_wake_by_wake(self, times: int) -> None:
        for _ in range(0 if self.stopped else times):
            at = self._next_wake(self.now + 8.0)
            self._advance_to(self.now + 8.0 if at is None else at)

    @rule(which=st.integers(0, 30), by=st.sampled_from([-0.01, -EPS, 0.0, EPS, 0.01]))
    def advance_around_a_deadline(self, which: int, by: float) -> None:
        sequence = self._pick(which)
        if sequence is not None:
            row = self.oracle.rows[sequence]
            at = min(row.total_at, row.queued_at) + by
            self._advance_to(min(max(at, self.now), self.now + 8.0))

    @precondition(lambda self: not self.stopped)
    @rule()
    def stop_the_driver(self) -> None:
        self.stopped = True

    @precondition(lambda self: self.stopped)
    @rule(seconds=spans | st.just(25.0))
    def resume_the_driver(self, seconds: float) -> None:
        self._advance_to(self.now + seconds)

    @rule(seconds=spans, also=met)
    def work_for(self, seconds: float, also: dict[str, float]) -> None:
        self._work_for(seconds, also)

    def _work_for(self, seconds: float, also: dict[str, float]) -> None:
        """Three long generations under bounds that an engine at its best meets, then time."""
        for _ in range(3):
            submission = self._new(prompt_tokens=5, max_new_tokens=25, bounds=Bounds(total=TOTAL_MAX, **also))
            self._command(lambda now, s=submission: self._submit(s, now))  # type: ignore[misc]
        self._advance_to(self.now + seconds)

    # --- rules: faults -------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(FAULTS),
        ahead=st.integers(1, 4),
        seconds=st.sampled_from([0.5, 20.0]),
        steps=st.integers(1, 2),
        load=st.none() | met,
    )
    def inject(self, kind: K, ahead: int, seconds: float, steps: int, load: dict[str, float] | None) -> None:
        engine = self._the_engine
        at_step = engine.pulse(self.now).steps_begun + ahead
        engine.faults.append(Fault(kind=kind, at_step=at_step, seconds=seconds, steps=steps))
        if load is not None:
            self._work_for(3.5, load)

    @rule(kind=st.sampled_from(BOOT_FAULTS), permanent=st.sampled_from([False, False, True]))
    def spoil_the_next_boot(self, kind: K, permanent: bool) -> None:
        self.next_faults.append(Fault(kind=kind, permanent=permanent))

    @rule(sure=st.sampled_from([False, False, False, True]))
    def make_unkillable(self, sure: bool) -> None:
        if sure:
            self._the_engine.faults.append(Fault(kind=K.UNKILLABLE))

    @rule(sure=st.sampled_from([False, False, True]))
    def kill_from_outside(self, sure: bool) -> None:
        if sure:
            self._the_engine.kill(self.now)

    @precondition(lambda self: not self.stopped and self.oracle.phase == "up" and self._wears)
    @rule(new=st.sampled_from([3, 30]), others=st.integers(1, 3), drain=st.sampled_from([None] * 5 + [6.1]))
    def wear_the_engine_out(self, new: int, others: int, drain: float | None) -> None:
        """Its time comes while it serves, others want to come in, and perhaps it is closed."""
        oracle = self.oracle
        its_time = self.limits.engine_age or 10 * (oracle.ready_since - oracle.spawned_at)
        self._advance_to(max(self.now, oracle.ready_since + its_time - 0.2))
        self._the_engine.rss_bytes = 1_000
        self.submit_many(2, new, None)
        self._advance_to(self.now + 0.3)
        self.submit_many(others, 2, None)
        if drain is not None:
            self._command(lambda now: self._close(drain, now))
        self._advance_to(self.now + 3.5)

    @property
    def _wears(self) -> bool:
        return self.limits.engine_age is not None or self.limits.engine_rss_bytes is not None

    @rule(rss_bytes=st.sampled_from([500, 999, 1_000, 1_000]), load=st.booleans())
    def grow_or_shrink(self, rss_bytes: int, load: bool) -> None:
        """It tells with its next report."""
        self._the_engine.rss_bytes = rss_bytes
        if load:
            self._work_for(3.5, {})

    @rule(blocks=st.sampled_from(KV_BLOCKS))
    def resize_the_next_engine(self, blocks: int) -> None:
        first, *rest = self.model.pools
        self.model = evolve(self.model, pools=(evolve(first, blocks=blocks), *rest))

    @precondition(lambda self: not self.stopped)
    @rule(blocks=st.sampled_from(KV_BLOCKS), sequences=st.integers(1, 3), before=spans)
    def outgrow_the_engine(self, blocks: int, sequences: int, before: float) -> None:
        """A submission while the engine is replaced by one of another size, which alone tells whether it fits."""
        self.resize_the_next_engine(blocks)
        self._the_engine.kill(self.now)
        self._advance_to(self.now + before)
        submission = self._new(prompt_tokens=20, max_new_tokens=10, sequences=sequences, bounds=Bounds(total=TOTAL_MAX))
        self._command(lambda now: self._submit(submission, now))
        self._advance_to(self.now + 5.0)

    @rule(delay=st.sampled_from([0.0, 0.5, 4.0]))
    def set_restart_delay(self, delay: float) -> None:
        self.restart_delay = delay

    @precondition(lambda self: not self.stopped and any(r.incarnation < self.oracle.incarnation for r in self.heard))
    @rule(which=st.integers(0, 300))
    def late_words_change_nothing(self, which: int) -> None:
        old = [r for r in self.heard if r.incarnation < self.oracle.incarnation]
        before = pickle.dumps(vars(self.governor))
        self.governor.receive(old[which % len(old)], self.now)
        assert pickle.dumps(vars(self.governor)) == before

    @rule(
        drains=st.lists(st.sampled_from([0.0, 0.77, 6.1]), min_size=1, max_size=2),
        load=st.booleans(),
        sure=st.sampled_from([False, False, False, True]),
    )
    def close(self, drains: list[float], load: bool, sure: bool) -> None:
        """Once, or twice at once: the shorter drain counts. With `load`, work is inside if the engine can serve."""
        if not sure and not self.oracle.closing:
            return
        if load and not self.oracle.closing:
            self._advance_to(self.now + 4.0)
            self._work_for(0.3, {})
        for drain in drains:
            self._command(lambda now, d=drain: self._close(d, now))  # type: ignore[misc]
        if load:
            self._advance_to(self.now + 1.0)

    def _close(self, drain: float, now: float) -> None:
        self.oracle.close(drain, now)
        self._feed(lambda: self.governor.close(drain, now))

    # --- liveness: mend, run on, everything ends ---------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self._end_well()
        finally:
            _deadlines.SLACK = SLACK

    def _end_well(self) -> None:
        if not hasattr(self, "governor") or self.broken:
            return
        self._mend()
        self._advance_to(self.now + TOTAL_MAX + 5.0)
        assert not list(self.oracle.open_rows()), "everything is settled"
        if not self.oracle.closing and self.oracle.phase != "failed":
            self._serve_again()
        if self.oracle.phase in ("failed", "closed"):
            self._refuse_for_ever()

    def _mend(self) -> None:
        self._wake()
        self.next_faults, self.poisoned, self.restart_delay, self.patience = [], set(), 0.1, 10**6
        self._the_engine.faults.clear()

    def _serve_again(self) -> None:
        """A lasting fault of before may lie in wait until it is met; the second probe finds a healthy engine."""
        for _ in range(2):
            last = self._new(prompt_tokens=1, max_new_tokens=1, bounds=Bounds(total=TOTAL_MAX), probe=True)
            self._command(lambda now, s=last: self._submit(s, now))  # type: ignore[misc]
            self._advance_to(self.now + TOTAL_MAX + 5.0)
            if self.oracle.phase == "failed":  # unkillable
                return
        assert self.oracle.rows[self.ids].settled in ("stop", "length"), "a mended lane serves"
        assert not list(self.oracle.open_stays()), "every stay is gone"
        assert not self.governor.names, "an index of what is over"
        assert not self.governor.ledger.held
        assert not any(self.governor.ledger.reserved)
        assert len(self._the_engine.scheduler) == 0
        assert self._the_engine.held() == ()
        assert self._wears or self.wakeup is None, "nothing to do, nothing to wake up for"

    def _refuse_for_ever(self) -> None:
        last = self._new(prompt_tokens=1, max_new_tokens=1, bounds=Bounds(total=TOTAL_MAX))
        self._command(lambda now: self._submit(last, now))
        assert self.oracle.rows[last.id].settled in ("engine_failed", "shutdown")
        assert self.wakeup is None, "nothing to do, nothing to wake up for"


def _prompt(submission: Submission) -> tuple[int, ...]:
    return tuple(submission.id + n for n in range(submission.prompt_tokens))


_DEEP = os.environ.get("BOUNDEDGEN_EXAMPLES")
TestGovernor = GovernorMachine.TestCase
TestGovernor.settings = settings(
    max_examples=int(_DEEP or 150),
    stateful_step_count=int(os.environ.get("BOUNDEDGEN_STEPS", 50)),
    derandomize=_DEEP is None,
    database=None,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
