"""Hypothesis strategies for simulations: models, limits that no sound one of them breaks, bounds, faults and delays.

Delays are drawn around what matters: just under, at and just over a limit.
"""

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core._events import PoolFacts
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim_model import SimModel

__all__ = ["admissions", "around", "bounds", "delays", "faults", "limits", "models"]

#: Limits that are spans of time, and that a test may want to meet to the instant.
ALLOWANCES = ("first_step", "new_shape")
SPANS = ("boot", *ALLOWANCES, "step", "step_max", "progress", "ack", "reclaim", "reap", "unread", "lease_grace")


def around(*instants: float, by: float = 0.001) -> st.SearchStrategy[float]:
    """One of the given numbers of seconds, or `by` less or more; never negative."""
    return st.sampled_from([max(0.0, at + offset) for at in instants for offset in (-by, 0.0, by)])


def delays(limits: Limits, bounds: Bounds | None = None, *, by: float = 0.001) -> st.SearchStrategy[float]:
    """Seconds to advance by: none, some, or `around` one of the limits or of the bounds."""
    spans = [float(getattr(limits, name)) for name in SPANS]
    given = () if bounds is None else (bounds.total, bounds.queued, bounds.first_token, bounds.next_token)
    spans += [at for at in given if at is not None and 0 < at < float("inf")]
    return st.one_of(st.just(0.0), st.floats(0.0, 2.0), around(*spans, by=by))


def models() -> st.SearchStrategy[SimModel]:
    """Small engines, plain and hybrid: tens of blocks, steps of 5 ms to 0.7 s, boots of up to 4 s."""
    return st.builds(
        _model,
        linear=st.sampled_from([None, PoolFacts("linear_attention", 3, None), PoolFacts("linear_attention", 9, 16)]),
        blocks=st.integers(5, 40),
        running_max=st.sampled_from([1, 2, 4, 16]),
        batch=st.sampled_from([8, 64, 256]),
        step_s=st.sampled_from([0.005, 0.05, 0.4]),
        boot_s=st.sampled_from([0.0, 0.5, 4.0]),
        pipe_s=st.sampled_from([0.0, 0.002]),
    )


def _model(
    linear: PoolFacts | None,
    blocks: int,
    running_max: int,
    batch: int,
    step_s: float,
    boot_s: float,
    pipe_s: float,
) -> SimModel:
    pools = (PoolFacts("kv", blocks, 8), *(() if linear is None else (linear,)))
    return SimModel(
        pools=pools,
        probe_blocks={pool.name: 1 for pool in pools},
        running_max=running_max,
        max_num_batched_tokens=batch,
        natural_length=natural_length,
        step_s=step_s,
        boot_s=boot_s,
        pipe_s=pipe_s,
    )


def natural_length(prompt: Sequence[int]) -> int | None:
    """Where the text of a drawn model ends by itself: after 1 to 7 tokens for a third of the prompts."""
    return 1 + prompt[-1] % 7 if prompt[-1] % 3 == 0 else None


def admissions() -> st.SearchStrategy[Admission]:
    """ "reserve", and "adaptive" that sets little or much aside."""
    return st.builds(
        Admission, policy=st.sampled_from(["reserve", "adaptive"]), covered=st.sampled_from([0.1, 0.5, 0.9])
    )


def limits() -> st.SearchStrategy[Limits]:
    """Limits of some seconds that only a fault makes one of `models()` exceed."""
    return st.builds(
        Limits,
        boot=st.sampled_from([6.0, 20.0]),
        first_step=st.sampled_from([0.0, 4.0]),
        new_shape=st.sampled_from([0.0, 2.0]),
        step=st.sampled_from([1.0, 3.0]),
        step_per_token=st.sampled_from([0.0, 0.01]),
        step_max=st.sampled_from([3.0, 8.0]),
        progress=st.sampled_from([3.0, 6.0]),
        ack=st.sampled_from([1.0, 3.0]),
        reclaim=st.sampled_from([1.0, 2.0]),
        reclaim_steps=st.sampled_from([3, 5]),
        reap=st.just(2.0),
        lease_grace=st.sampled_from([0.0, 2.0]),
        waiting_max=st.sampled_from([3, 1024]),
        owner_max=st.sampled_from([None, None, 2]),
        engine_age=st.sampled_from([None, None, 6.0, 20.0]),
        recycle_drain=st.sampled_from([0.0, 1.0, 3.0]),
    )


def bounds(*, total_max: float = 40.0) -> st.SearchStrategy[Bounds]:
    """Bounds of a call: some none, some over before they begin, none later than `total_max` seconds."""
    bound = st.none() | st.sampled_from([-1.0, 0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 9.0])
    totals = [at for at in (0.0, 0.5, 2.0, 6.0) if at < total_max]
    return st.builds(
        Bounds,
        total=st.sampled_from([*totals, total_max, total_max]),
        queued=bound,
        first_token=bound,
        next_token=bound,
    )


def faults(kinds: Collection[FaultKind] | None = None, *, at_step_max: int = 8) -> st.SearchStrategy[Fault]:
    """One fault of the given kinds (all but UNKILLABLE, after which a lane is lost) in one of the first steps."""
    if kinds is None:
        kinds = [kind for kind in FaultKind if kind is not FaultKind.UNKILLABLE]
    return st.builds(
        Fault,
        kind=st.sampled_from(sorted(kinds)),
        at_step=st.integers(1, at_step_max),
        seconds=st.sampled_from([0.5, 20.0]),
        steps=st.integers(1, 2),
        signal=st.sampled_from([6, 9, 11]),
    )
