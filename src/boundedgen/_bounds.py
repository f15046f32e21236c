"""Bounds (a caller's, relative), Deadline (absolute, named) and Limits (a whole pipeline's)."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, final

from attrs import Attribute, field, fields, frozen

Seconds = float | int | timedelta | None


def seconds(name: str, value: Seconds) -> float | None:
    """`value` in seconds; None stays None. Not a number and not-a-duration are refused by name."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    if math.isnan(value):
        raise ValueError(f"{name} is not a number (NaN); give seconds, a timedelta or None")
    return float(value)


def _total(value: Seconds) -> float | None:
    return seconds("total", value)


def _queued(value: Seconds) -> float | None:
    return seconds("queued", value)


def _first_token(value: Seconds) -> float | None:
    return seconds("first_token", value)


def _next_token(value: Seconds) -> float | None:
    return seconds("next_token", value)


@final
@frozen
class Bounds:
    """How long a generation may take, in seconds or timedelta. None: this call adds no bound of that kind.

    `total` and `queued` count from submit, and run on while the engine is replaced. `queued` and `first_token`
    are met once. `next_token` counts from the last visible token. `first_token` and `next_token` stand still
    while the engine is not ready. Zero or less is legal: such a generation ends DEADLINE at once and never
    enters the engine. The effective bound is the tighter of the pipeline's and the call's.
    """

    total: float | None = field(default=None, converter=_total, kw_only=True)
    queued: float | None = field(default=None, converter=_queued, kw_only=True)
    first_token: float | None = field(default=None, converter=_first_token, kw_only=True)
    next_token: float | None = field(default=None, converter=_next_token, kw_only=True)

    def tightest(self, other: "Bounds") -> "Bounds":
        """The tighter of both, kind by kind."""
        pairs = ((a.name, getattr(self, a.name), getattr(other, a.name)) for a in fields(Bounds))
        return Bounds(
            **{name: min((v for v in (mine, theirs) if v is not None), default=None) for name, mine, theirs in pairs}
        )


@final
@frozen
class Deadline:
    """An absolute instant (`time.monotonic()` seconds) and the bound that it comes from."""

    at: float
    bound: str


PLACES_MOST = 10_000_000  #: of one kind: places are made beforehand, so that taking one needs no lock


def _limit(
    default: float | int | None, unit: str, why: str, *, least: float = 0.0, whole: bool = False, optional: bool = False
) -> Any:
    """One row of the table of limits: its default, unit and reason, and what it accepts."""

    def check(self_: Any, attribute: "Attribute[Any]", value: Any) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise TypeError(
                f"Limits.{attribute.name} must be {'a whole number' if whole else 'a number'} ({unit}), not {value!r}"
            )
        if math.isnan(value) or math.isinf(value) or value < least:
            raise ValueError(f"Limits.{attribute.name} is {value!r}; it must be finite and at least {least:g} ({unit})")
        if attribute.name in ("waiting_max", "owner_max", "leases_max") and value > PLACES_MOST:
            raise ValueError(f"Limits.{attribute.name} is {value}; it must be at most {PLACES_MOST}: each costs memory")

    def convert(value: Any) -> Any:
        return value.total_seconds() if isinstance(value, timedelta) else value

    return field(default=default, validator=check, converter=convert, kw_only=True, metadata={"unit": unit, "why": why})


@final
@frozen
class Limits:
    """Every limit of a pipeline. `Limits.table()` lists name, default, unit and reason; the docs print it."""

    running_max: int | None = _limit(
        None,
        "sequences",
        "held at once (the engine does not enforce it). None: max_num_seqs of the scheduler configuration",
        least=1,
        whole=True,
        optional=True,
    )
    waiting_max: int = _limit(
        1024, "sequences", "a queue without end serves only those who already left", least=1, whole=True
    )
    owner_max: int | None = _limit(
        None, "sequences", "waiting or running for one owner; None: no limit", least=1, whole=True, optional=True
    )
    leases_max: int = _limit(10_000, "leases", "memory; a lease costs less than a kilobyte", least=1, whole=True)
    lease_ttl_max: float = _limit(3600.0, "s", "an owner gone for longer than this must not hold the lane", least=0.001)
    lease_grace: float = _limit(
        5.0,
        "s",
        "added to a lease after an outage of the engine, once, up to its ttl: its owner may have been waiting too",
        least=0.0,
    )
    prompt_bytes: int = _limit(
        1 << 20,
        "bytes",
        "templating and encoding run in the caller's thread and hold the interpreter lock",
        least=1,
        whole=True,
    )
    max_new_tokens: int = _limit(
        32_768, "tokens", "the engine's own default is 2^64-1; more is clamped to this", least=1, whole=True
    )
    max_new_tokens_default: int = _limit(512, "tokens", "where the caller names no length", least=1, whole=True)
    sequences_max: int = _limit(16, "sequences", "of one request: beams, or num_return_sequences", least=1, whole=True)
    stop_strings: int = _limit(16, "strings", "of one request; each is compared at every token", least=0, whole=True)
    stop_string_length: int = _limit(
        256, "characters", "the engine withholds text as long as the longest one", least=1, whole=True
    )
    grammar_bytes: int = _limit(256 << 10, "bytes", "a grammar is compiled before it is used", least=1, whole=True)
    grammar_s: float = _limit(3.0, "s", "to compile a grammar; the engine does it again, inside a step", least=0.01)
    label_bytes: int = _limit(256, "bytes", "labels and owners appear in logs and stats", least=0, whole=True)
    owners_tracked: int = _limit(10_000, "owners", "memory of per-owner counts", least=1, whole=True)
    unread: float = _limit(
        60.0, "s", "a reader that began and then left text unread for this long is ended SLOW_READER", least=0.001
    )
    ended_kept: int = _limit(
        1000, "sequences", "rows kept of ended ones, for their proof of release", least=0, whole=True
    )
    boot: float = _limit(300.0, "s", "load the model and compile its kernels", least=0.01)
    first_step: float = _limit(
        120.0,
        "s",
        "added to the budget of the first steps of an incarnation: kernels are compiled and caches warmed",
        least=0.0,
    )
    step: float = _limit(10.0, "s", "base of a step's budget", least=0.001)
    step_per_token: float = _limit(0.02, "s/token", "added for each token that the step schedules", least=0.0)
    step_per_attention: float = _limit(
        2e-6, "s/(token x token)", "added for each scheduled token times its context", least=0.0
    )
    step_max: float = _limit(120.0, "s", "cap of a step's budget", least=0.001)
    progress: float = _limit(30.0, "s", "steps return, but nothing is scheduled and nothing released", least=0.01)
    ack: float = _limit(10.0, "s outside of steps", "the engine has not taken a command", least=0.01)
    reclaim: float = _limit(5.0, "s outside of steps", "from the stop being taken to the proof of release", least=0.01)
    reclaim_steps: int = _limit(3, "steps", "begun after the stop was taken; the engine needs one", least=1, whole=True)
    reap: float = _limit(
        5.0, "s", "a killed engine that has not left by then is lost for good: the pipeline is FAILED", least=0.01
    )
    drain: float = _limit(30.0, "s", "a normal `with` exit waits this long for what is running", least=0.0)
    outbox_bytes: int = _limit(
        64 << 20, "bytes", "commands that the engine has not read yet", least=1 << 16, whole=True
    )
    frame_bytes: int = _limit(32 << 20, "bytes", "one message between parent and engine", least=1 << 16, whole=True)
    stderr_bytes: int = _limit(64 << 10, "bytes", "kept of the engine's last output", least=0, whole=True)

    def __attrs_post_init__(self) -> None:
        if self.max_new_tokens_default > self.max_new_tokens:
            raise ValueError(
                f"Limits.max_new_tokens_default is {self.max_new_tokens_default}, more than Limits.max_new_tokens "
                f"({self.max_new_tokens}); lower the first or raise the second"
            )

    @classmethod
    def table(cls) -> list[Mapping[str, Any]]:
        """One row a limit: name, default, unit and why."""
        return [
            {"name": a.name, "default": a.default, "unit": a.metadata["unit"], "why": a.metadata["why"]}
            for a in fields(cls)
        ]
