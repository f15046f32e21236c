"""A governor under the test's hand: every input is a call, every effect is kept, time is a number."""

from typing import Any, TypeVar

from boundedgen._bounds import Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen._core._governor import Governor
from boundedgen._core._leases import Lease
from boundedgen._core._sequences import Submission

LIMITS = Limits(
    boot=10.0, first_step=4.0, new_shape=0.0, step=2.0, step_per_token=0.01, step_max=8.0, progress=6.0, ack=3.0,
    reclaim=2.0, reclaim_steps=3, reap=2.0, lease_grace=2.0,
)  # fmt: skip
KV = ev.PoolFacts("kv", 9, 4)  # one of them is the probe's

E = TypeVar("E")


def facts(*pools: ev.PoolFacts, running_max: int = 2) -> ev.EngineFacts:
    pools = pools or (KV,)
    return ev.EngineFacts(
        device="TEST",
        versions={},
        pools=pools,
        block_size=4,
        cache_bytes=None,
        vocab_size=259,
        running_max=running_max,
        probe_blocks={pool.name: 1 for pool in pools},
        max_prompt_tokens=None,
        hybrid=False,
        proof="perf_metrics",
    )


class Governed:
    """`wake` is the driver's order: reports first, then commands, then the tick."""

    def __init__(self, limits: Limits = LIMITS, *, ready: bool = True, **settings: Any) -> None:
        self.now = 100.0
        self.governor = Governor(limits, **settings)
        self.effects: list[ev.Effect] = []
        self.fresh: list[ev.Effect] = []
        self.steps = 0
        self._ids = 0
        self.governor.start(self.now)
        self.tick()
        if ready:
            self.ready()

    @property
    def incarnation(self) -> int:
        return self.governor.life.incarnation

    def ready(self, found: ev.EngineFacts | None = None) -> None:
        self.steps = 0
        self.hear(ev.Ready(self.incarnation, facts() if found is None else found))

    # --- inputs ----------------------------------------------------------------------------------------------------

    def tick(self, later: float = 0.0) -> list[ev.Effect]:
        """`later` seconds pass; the governor ticks."""
        self.now += later
        self.governor.tick(self.now)
        return self.collect()

    def collect(self) -> list[ev.Effect]:
        self.fresh = self.governor.poll()
        self.effects += self.fresh
        self.governor.next_wakeup()
        return self.fresh

    def hear(self, *reports: ev.Report) -> list[ev.Effect]:
        for report in reports:
            self.governor.receive(report, self.now)
        return self.tick()

    def step(self, *, at: float | None = None, scheduled: int = 1, tick: bool = True, **news: Any) -> list[ev.Effect]:
        """A step that began and ended now, with its report."""
        self.steps += 1
        began = self.now if at is None else at
        pulse = ev.Pulse(self.steps, self.steps, began, began)
        self.governor.pulse(pulse, self.now)
        usage, held = 0.0, news.pop("held", None)
        report = ev.Progress(self.incarnation, self.steps, began, began, scheduled, usage, held, **news)
        self.governor.receive(report, self.now)
        return self.tick() if tick else []

    def submission(self, prompt: int = 1, new: int = 4, **fields: Any) -> Submission:
        self._ids += 1
        bounds = fields.pop("bounds", Bounds(total=600))
        return Submission(self._ids, prompt, new, bounds=bounds, submitted_at=self.now, **fields)

    def submit(self, prompt: int = 1, new: int = 4, *, tick: bool = True, **fields: Any) -> int:
        submission = self.submission(prompt, new, **fields)
        self.governor.submit(submission, self.now)
        if tick:
            self.tick()
        return submission.id

    def running(self, **fields: Any) -> tuple[int, int]:
        """One that is admitted and taken: its sequence and its stay."""
        sequence = self.submit(**fields)
        stay = self.stay_of(sequence)
        self.step(taken=(stay,))
        return sequence, stay

    def lease(self, id_: str = "lease", ttl: float = 5.0) -> str:
        self.governor.grant(Lease(id_, "owner", ttl), self.now)
        return id_

    def die(self, status: int = -9) -> list[ev.Effect]:
        return self.hear(ev.Exited(self.incarnation, status, ""))

    def restarted(self, delay: float = 0.0, found: ev.EngineFacts | None = None) -> None:
        self.governor.restart(delay, self.now)
        self.tick(delay)
        self.ready(found)

    # --- what came out ---------------------------------------------------------------------------------------------

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def admitted(self) -> list[int]:
        """Sequences, in the order of their admissions."""
        return [effect.sequence for effect in self.all(ev.Admit)]

    def stay_of(self, sequence: int) -> int:
        return next(e.stay for e in reversed(self.all(ev.Admit)) if e.sequence == sequence)

    def settled(self, sequence: int) -> ev.Settle | None:
        found = [effect for effect in self.all(ev.Settle) if effect.sequence == sequence]
        assert len(found) <= 1, "settled twice"
        return found[0] if found else None

    def reason(self, sequence: int) -> str | None:
        found = self.settled(sequence)
        return None if found is None else found.reason

    def kills(self) -> list[ev.Cause]:
        return [effect.cause for effect in self.all(ev.Kill)]

    def state(self) -> str:
        return self.governor.state()
