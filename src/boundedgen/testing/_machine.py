"""A state machine for Hypothesis over a simulation: callers, owners, time and faults in any order."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, TypeVar

import tenacity
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._errors import (
    BoundedGenError,
    EngineFailed,
    EngineUnavailable,
    LeaseExpired,
    NeverFits,
    PipelineClosed,
    Rejected,
    Saturated,
)
from boundedgen._generation import Generation
from boundedgen._making import CLOSING_SLACK
from boundedgen._restart import RestartPolicy
from boundedgen._stats import HealthState, ProbeVerdict
from boundedgen.testing import strategies
from boundedgen.testing._faults import BOOT_FAULTS, Fault, FaultKind
from boundedgen.testing._oracle import Oracle
from boundedgen.testing._rows import EPS, LeaseRow, Row
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._simulation import Simulation

__all__ = ["BoundedMachine"]

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]


class BoundedMachine(RuleBasedStateMachine):
    """Checks boundedgen's promises, as far as the public API shows them, whatever a simulated engine does; build on it.

    A subclass gives its `TestCase` to pytest or unittest. It may say what is simulated (`make_engine`, `make_limits`,
    `make_admission`, `fault_kinds`), set up a server of its own around `simulation.pipeline` (`begin`), check it at
    every event (`check`), and have rules of its own; generations that go through `ask` are checked with the others.

    Each run ends with mending: no more faults, time passes, and then everybody must have been answered, everything
    given back, and the lane serve again.
    """

    #: Seconds; no generation is given longer.
    total_max: ClassVar[float] = 40.0
    #: What may go wrong. UNKILLABLE costs a lane for good, so it is not among them.
    fault_kinds: ClassVar[Collection[FaultKind]] = frozenset(FaultKind) - {FaultKind.UNKILLABLE}

    simulation: Simulation
    oracle: Oracle

    # --- for subclasses ------------------------------------------------------------------------------------------

    def make_engine(self, draw: Draw) -> SimModel:
        """What is simulated; `draw(strategy)` gives a value of a strategy."""
        model: SimModel = draw(strategies.models())
        return model

    def make_limits(self, draw: Draw) -> Limits:
        """The pipeline's limits. A sound engine of `make_engine` must be able to keep them."""
        limits: Limits = draw(strategies.limits())
        return limits

    def make_admission(self, draw: Draw) -> Admission:
        """How the pipeline lets sequences in: "reserve" or "adaptive"."""
        admission: Admission = draw(strategies.admissions())
        return admission

    def begin(self) -> None:
        """Called once `simulation` is there, before its engine is ready."""

    def check(self) -> None:
        """Called at every event, at every instant at which anything has happened. It may not wait."""

    def ask(
        self,
        prompt: Sequence[int],
        *,
        bounds: Bounds | None = None,
        lease: LeaseRow | None = None,
        priority: int = 0,
        **config: Any,
    ) -> Generation | None:
        """Submit the token ids of `prompt` and have the answer checked. None: it was refused, with good reason."""
        pipeline = self.simulation.pipeline
        held = None if lease is None else lease.lease
        try:
            generation = self.at_once(
                lambda: pipeline.submit(prompt, bounds=bounds, lease=held, priority=priority, **config)
            )
        except (Rejected, LeaseExpired) as error:
            self.oracle.refused(error)
            self._check_refusal(error, lease)
            return None
        sequences = config.get("num_return_sequences", 1)
        self.oracle.submitted(generation, prompt, bounds, sequences=sequences, priority=priority, lease=lease)
        return generation

    def at_once(self, call: Callable[[], T]) -> T:
        """What `call` returns; it must not wait (promise 9)."""
        before = self.simulation.now
        try:
            return call()
        finally:
            assert self.simulation.now == before, "a call that waits for nobody has waited (promise 9)"

    def _check_refusal(self, error: BoundedGenError, lease: LeaseRow | None) -> None:
        state = self.simulation.pipeline.health().state
        justified = {
            EngineUnavailable: not self._served or (state is HealthState.RECOVERING and self._looks_ahead()),
            EngineFailed: state is HealthState.FAILED,
            PipelineClosed: self.oracle.closing,
            LeaseExpired: lease is not None and not lease.lease.live,
            NeverFits: True,
            Saturated: self.limits.waiting_max <= 3 or self.limits.owner_max is not None or self._could_be_late(),
        }
        assert justified.get(type(error), False), f"refused for no reason: {error!r}"

    def _could_be_late(self) -> bool:
        """Behind those who wait."""
        return self._looks_ahead() and self.simulation.pipeline.stats().waiting > 0

    def _looks_ahead(self) -> bool:
        """What is too late is turned away."""
        return self.simulation.admission.margin is not None

    # --- its life ------------------------------------------------------------------------------------------------

    @initialize(data=st.data(), patience=st.sampled_from([1, 1000, 1000]), booted=st.booleans())
    def start(self, data: st.DataObject, patience: int, booted: bool) -> None:
        self.model, self.limits = self.make_engine(data.draw), self.make_limits(data.draw)
        stop = tenacity.stop_after_attempt(patience)
        bounds = Bounds(total=self.total_max)
        self.simulation = Simulation(
            model=self.model,
            limits=self.limits,
            bounds=bounds,
            admission=self.make_admission(data.draw),
            restart=RestartPolicy(wait=tenacity.wait_fixed(0.5), stop=stop, forget_after=5),
        )
        self.oracle = Oracle(self.simulation, self.model, self.limits, bounds)
        self._streams: dict[int, tuple[Any, list[str]]] = {}
        self._served = False
        self._sound = True  # nothing has failed yet
        self.begin()
        self._unwatch = self.simulation.watch(self._look)
        self.simulation.advance(self.model.boot_s + 0.01 if booted else 0)

    def _look(self) -> None:
        self._sound = False  # until all of it was looked at: what follows a failure must not hide it
        self._served = self._served or self.simulation.pipeline.health().ready
        self.oracle.look()
        self.check()
        self._sound = True

    @invariant()
    def what_was_asked_is_heard(self) -> None:
        if hasattr(self, "oracle"):
            self.simulation.advance(0)
            self._look()

    def _pick(self, which: int) -> Row | None:
        rows = list(self.oracle.open_rows())
        return rows[which % len(rows)] if rows else None

    # --- callers -------------------------------------------------------------------------------------------------

    @rule(
        length=st.integers(1, 30),
        first=st.integers(3, 258),
        new=st.integers(1, 14),
        sequences=st.sampled_from([1, 1, 1, 2]),
        data=st.data(),
        priority=st.sampled_from([0, 0, 0, 1]),
        which=st.integers(0, 4),
    )
    def submit(
        self, length: int, first: int, new: int, sequences: int, data: st.DataObject, priority: int, which: int
    ) -> None:
        bounds: Bounds = data.draw(strategies.bounds(total_max=self.total_max))
        config: dict[str, Any] = {"max_new_tokens": new}
        if sequences > 1:
            bounds = Bounds(total=bounds.total, queued=bounds.queued)
            config |= {"num_return_sequences": sequences, "do_sample": True}
        prompt = [3 + (first + n) % 256 for n in range(length)]
        leases = self.oracle.leases
        lease = leases[-1 - which] if which < min(len(leases), 2) else None
        self.ask(prompt, bounds=bounds, lease=lease, priority=priority, **config)

    @rule(burst=st.integers(2, 6), new=st.integers(1, 30))
    def submit_many(self, burst: int, new: int) -> None:
        for n in range(burst):
            self.ask([4, 5, 6 + n], max_new_tokens=new)

    @rule(short=st.integers(0, 10), burst=st.integers(2, 5))
    def outgrow_what_was_expected(self, short: int, burst: int) -> None:
        """Answers of a token or two, and then long ones at once."""
        for n in range(short):
            self.ask([3 + n, 21], max_new_tokens=30)
        self.simulation.advance(2.0)
        for n in range(burst):
            self.ask([3 + n, 4], max_new_tokens=30)
        self.simulation.advance(2.0)

    @rule(which=st.integers(0, 30), any_of=st.booleans())
    def cancel(self, which: int, any_of: bool) -> None:
        rows = list(self.oracle.rows.values())
        row = rows[which % len(rows)] if any_of and rows else self._pick(which)
        if row is not None:
            ended = row.reason is not None
            row.cancelled = self.at_once(row.generation.cancel) or row.cancelled
            assert not (ended and row.cancelled and row.reason != "cancelled"), "it was settled before (promise 1)"

    @rule(which=st.integers(0, 30), data=st.data())
    def tighten(self, which: int, data: st.DataObject) -> None:
        if (row := self._pick(which)) is not None:
            bounds = data.draw(strategies.bounds(total_max=self.total_max))
            self.at_once(lambda: row.generation.tighten(bounds))
            row.tighten(bounds, self.simulation.now)

    @rule(which=st.integers(0, 30), timeout=st.sampled_from([0.0, 1.0, 100.0]))
    def wait_for(self, which: int, timeout: float) -> None:
        if (row := self._pick(which)) is not None:
            began = self.simulation.now
            with contextlib.suppress(TimeoutError, BoundedGenError):
                row.generation.result(timeout)
            assert self.simulation.now <= max(began, min(began + timeout, row.total_at)) + EPS, "it waited too long"
            assert row.reason is not None or self.simulation.now >= began + timeout - EPS

    @rule(which=st.integers(0, 30), chunks=st.integers(1, 4))
    def read(self, which: int, chunks: int) -> None:
        if (row := self._pick(which)) is not None:
            if row.id not in self._streams:
                self._streams[row.id] = (iter(row.generation), [])
            stream, texts = self._streams[row.id]
            with contextlib.suppress(BoundedGenError):
                texts.extend(chunk.text for _, chunk in zip(range(chunks), stream, strict=False))

    @rule(timeout=st.sampled_from([1.0, 5.0, 20.0]))
    def probe(self, timeout: float) -> None:
        began = self.simulation.now
        verdict = self.simulation.pipeline.probe(timeout).verdict
        assert self.simulation.now <= began + timeout + EPS, "a probe takes no longer than it may"
        assert verdict is not ProbeVerdict.NOT_RUN or not self.model.probe_blocks

    # --- owners --------------------------------------------------------------------------------------------------

    @rule(ttl=st.sampled_from([0.5, 1.0, 3.0, 6.0]))
    def grant(self, ttl: float) -> None:
        with contextlib.suppress(EngineFailed, PipelineClosed):
            self.oracle.granted(self.at_once(lambda: self.simulation.pipeline.lease("owner", ttl=ttl)))

    @precondition(lambda self: self.oracle.leases)
    @rule(which=st.integers(0, 30))
    def renew(self, which: int) -> None:
        row = self.oracle.leases[which % len(self.oracle.leases)]
        try:
            self.at_once(row.lease.renew)
        except LeaseExpired:
            self.oracle.renewed(row, False)
        else:
            self.oracle.renewed(row, True)

    @precondition(lambda self: self.oracle.leases)
    @rule(which=st.integers(0, 30))
    def revoke(self, which: int) -> None:
        row = self.oracle.leases[which % len(self.oracle.leases)]
        row.revoked = True
        self.at_once(row.lease.revoke)

    @rule(ttl=st.sampled_from([0.5, 3.0]), by=st.sampled_from([-0.01, 0.0, 0.01]), renewed=st.booleans())
    def outlive_a_lease(self, ttl: float, by: float, renewed: bool) -> None:
        """Two generations under one lease, and a renewal just in time or late."""
        before = len(self.oracle.leases)
        self.grant(ttl)
        for lease in self.oracle.leases[before:]:
            for n in range(2):
                self.ask([7, 8, 10 + n], lease=lease, max_new_tokens=25)
            self.simulation.advance(max(0.0, lease.lease.remaining_s + by))
            if renewed:
                self.renew(before)

    # --- time ----------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        self.simulation.advance(min(8.0, data.draw(strategies.delays(self.limits))))

    @rule(which=st.integers(0, 30), by=st.sampled_from([-0.01, 0.0, 0.01]))
    def advance_around_a_deadline(self, which: int, by: float) -> None:
        if (row := self._pick(which)) is not None:
            self.simulation.advance(min(max(0.0, row.due() + by - self.simulation.now), 8.0))

    @rule(which=st.integers(0, 30), by=st.sampled_from([-0.01, 0.0, 0.01]))
    def advance_around_the_end_of_a_lease(self, which: int, by: float) -> None:
        if self.oracle.leases:
            lease = self.oracle.leases[which % len(self.oracle.leases)].lease
            self.simulation.advance(max(0.0, lease.remaining_s + by))

    # --- faults --------------------------------------------------------------------------------------------------

    @rule(data=st.data(), ahead=st.integers(1, 4), load=st.booleans())
    def inject(self, data: st.DataObject, ahead: int, load: bool) -> None:
        if kinds := set(self.fault_kinds) - BOOT_FAULTS:
            self._inject(data.draw(strategies.faults(kinds)), ahead)
        if load:
            self.submit_many(3, 25)
            self.simulation.advance(3.5)

    @rule(data=st.data())
    def lose_the_engine_and_spoil_the_next_boot(self, data: st.DataObject) -> None:
        boots = BOOT_FAULTS.intersection(self.fault_kinds)
        if boots and FaultKind.CRASH in self.fault_kinds:
            self._inject(Fault(kind=FaultKind.CRASH), 1)
            self._inject(data.draw(strategies.faults(boots)), 0)
            self.submit_many(3, 5)
            self.simulation.advance(3.5)

    def _inject(self, fault: Fault, ahead: int) -> None:
        """In so many steps from now; those of a boot, in the next one."""
        if fault.kind not in BOOT_FAULTS and self.simulation.engines:
            fault = fault.at(self.simulation.engine.pulse(self.simulation.now).steps_begun + ahead)
        self.simulation.inject(fault)

    @rule(drain=st.sampled_from([0.0, 1.0, 6.0]), sure=st.sampled_from([False] * 9 + [True]))
    def close(self, drain: float, sure: bool) -> None:
        if sure:
            self._close(drain)

    def _close(self, drain: float) -> None:
        self.oracle.closing, began = True, self.simulation.now
        self.simulation.pipeline.close(drain)
        assert self.simulation.now <= began + drain + self.limits.reap + CLOSING_SLACK + EPS, "closing took too long"
        assert not list(self.oracle.open_rows()), "everybody is answered when it is closed (promise 1)"

    # --- liveness ------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "oracle"):
            return
        try:
            if self._sound:
                self._end_well()
        finally:
            self._unwatch()
            self._streams.clear()
            self.simulation.close()

    def _end_well(self) -> None:
        simulation = self.simulation
        simulation.mend()
        simulation.advance(self.total_max + 5)
        self.oracle.check_the_end()
        self._check_streams()
        state = simulation.pipeline.health().state
        if state is HealthState.FAILED:
            self._fail_for_ever()
        elif not self.oracle.closing:
            self._serve_again()
        self._close(0)
        assert simulation.pipeline.health().state in (HealthState.CLOSED, HealthState.FAILED)

    def _check_streams(self) -> None:
        for id_, (stream, texts) in self._streams.items():
            generation = self.oracle.rows[id_].generation
            with contextlib.suppress(BoundedGenError):
                texts.extend(chunk.text for chunk in stream)
            assert "".join(texts) == generation.partial.text, "chunks join to the text (promise 1)"

    def _serve_again(self) -> None:
        """A lasting fault of before may lie in wait until it is met; what comes after that finds a sound engine."""
        for _ in range(2):
            self.simulation.pipeline.probe(self.total_max)
            self.simulation.advance(self.total_max)
        probe = self.simulation.pipeline.probe(self.total_max)
        if self.simulation.pipeline.health().state is HealthState.FAILED:
            return
        assert probe.verdict is ProbeVerdict.OK, f"a mended lane serves: {probe}"
        self.simulation.advance(self.total_max)
        self.oracle.check_all_is_given_back()

    def _fail_for_ever(self) -> None:
        with contextlib.suppress(BoundedGenError):
            self.at_once(lambda: self.simulation.pipeline.submit([3], max_new_tokens=1))
            raise AssertionError("a failed lane refuses at once (promise 8)")
