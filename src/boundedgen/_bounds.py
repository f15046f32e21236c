"""Bounds (a caller's, relative), Deadline (absolute, named) and Limits (a whole pipeline's)."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, final

from attrs import Attribute, Converter, field, fields, frozen

from boundedgen._arguments import kind_of, names_unknown_keywords, reading, real_number, short, whole_number
from boundedgen._fields import tells_of_its_fields

Seconds = float | int | timedelta | None
SECONDS_MOST: Final = 1e9  #: 31 years: what every clock and every call that waits can take


def seconds(name: str, value: Seconds) -> float | None:
    """`value` in seconds, infinite where no float holds it; None stays None. TypeError and ValueError (NaN) name it."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    with reading(name, TypeError):
        plain = real_number(value)
    if plain is None:
        raise TypeError(f"{name} must be seconds or a timedelta, not {kind_of(value)}")
    if math.isnan(plain):
        raise ValueError(f"{name} is not a number (NaN); give seconds, a timedelta or None")
    return plain


def patience(timeout: Seconds) -> float | None:
    """Seconds to wait for: 0 for less, None for ever. Raises TypeError and ValueError (NaN), which name `timeout`."""
    plain = seconds("timeout", timeout)
    return None if plain is None or plain > SECONDS_MOST else max(0.0, plain)


def _total(value: Seconds) -> float | None:
    return seconds("total", value)


def _queued(value: Seconds) -> float | None:
    return seconds("queued", value)


def _first_token(value: Seconds) -> float | None:
    return seconds("first_token", value)


def _next_token(value: Seconds) -> float | None:
    return seconds("next_token", value)


@final
@tells_of_its_fields
@names_unknown_keywords
@frozen
class Bounds:
    """How long a generation may take, in seconds or timedelta. None: this call adds no bound of that kind.

    `total` and `queued` count from submit, and run on while the engine is replaced. `queued` and `first_token`
    are met once. `next_token` counts from the last visible token. `first_token` and `next_token` stand still
    while the engine is not ready. Zero or less is legal: such a generation ends DEADLINE at once and never
    enters the engine. The effective bound is the tighter of the pipeline's and the call's.
    """

    #: seconds from submit to the end; runs on while the engine is replaced; None: no such bound
    total: float | None = field(default=None, converter=_total, kw_only=True)
    #: seconds from submit to the first admission; runs on while the engine is replaced; None: no such bound
    queued: float | None = field(default=None, converter=_queued, kw_only=True)
    #: seconds from submit to the first visible token; stands still while the engine is not ready; None: no such bound
    first_token: float | None = field(default=None, converter=_first_token, kw_only=True)
    #: seconds from one visible token to the next; stands still while the engine is not ready; None: no such bound
    next_token: float | None = field(default=None, converter=_next_token, kw_only=True)

    def tightest(self, other: "Bounds") -> "Bounds":
        """The tighter of this and the `other`, kind by kind."""
        pairs = ((a.name, getattr(self, a.name), getattr(other, a.name)) for a in fields(Bounds))
        return Bounds(
            **{name: min((v for v in (mine, theirs) if v is not None), default=None) for name, mine, theirs in pairs}
        )


@final
@frozen
class Deadline:
    """An absolute instant and the bound that it comes from."""

    at: float  #: `time.monotonic()` seconds
    bound: str  #: "total", "queued", "first_token" or "next_token"


PLACES_MOST: Final = 10_000_000  #: of one kind: places are made beforehand, so that taking one needs no lock
_SIZE_MOST: Final = 2**63 - 1


def _limit(
    default: float | int | None,
    unit: str,
    why: str,
    *,
    least: float = 0.0,
    most: float | None = None,
    whole: bool = False,
    optional: bool = False,
) -> Any:
    """One row of the table of limits: its default, unit and reason, and what it accepts."""
    highest = most or (_SIZE_MOST if whole else SECONDS_MOST)

    def plain(value: Any, about: "Attribute[Any]") -> Any:
        if value is None and optional:
            return None
        name = f"Limits.{about.name}"
        with reading(name, TypeError):
            number = whole_number(value) if whole else real_number(_in_seconds(value))
        if number is None:
            raise TypeError(f"{name} must be {'a whole number' if whole else 'a number'} ({unit}), not {short(value)}")
        if not least <= number <= highest:
            raise ValueError(
                f"{name} is {short(value)}; it must be finite, at least {least:g} and at most {highest:g} ({unit})"
            )
        return number

    converter = Converter(plain, takes_field=True)
    return field(default=default, converter=converter, kw_only=True, metadata={"unit": unit, "why": why})


def _in_seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


@final
@tells_of_its_fields
@names_unknown_keywords
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
        1024,
        "sequences",
        "a queue without end serves only those who already left; 64 more may wait that supersede one that runs",
        least=1,
        most=PLACES_MOST,
        whole=True,
    )
    owner_max: int | None = _limit(
        None,
        "sequences",
        "waiting or running for one owner, if one was named; None: no limit",
        least=1,
        most=PLACES_MOST,
        whole=True,
        optional=True,
    )
    leases_max: int = _limit(
        10_000, "leases", "memory; a lease costs less than a kilobyte", least=1, most=PLACES_MOST, whole=True
    )
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
        "templating and encoding run in the caller's thread and hold the interpreter lock; also of tools, of "
        "template_context, and as many token ids",
        least=1,
        whole=True,
    )
    images_max: int = _limit(16, "images", "of one request", least=0, whole=True)
    image_pixels: int = _limit(
        16_000_000,
        "pixels",
        "of all images of a request: while the engine encodes them nobody gets a token; a photo has 12 million",
        least=1,
        whole=True,
    )
    image_bytes: int = _limit(
        512 << 20,
        "bytes",
        "of the images of all requests that have shown no token yet; three a pixel. More are refused: Saturated",
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
    stop_token_ids: int = _limit(
        4096,
        "ids",
        "of one request; each is checked at the door, sent to the engine and kept there",
        least=0,
        whole=True,
    )
    grammar_bytes: int = _limit(256 << 10, "bytes", "a grammar is compiled before it is used", least=1, whole=True)
    grammar_s: float = _limit(3.0, "s", "to compile a grammar; the engine does it again, inside a step", least=0.01)
    adapters_max: int = _limit(8, "files", "LoRA adapters at once; each costs time in every step", least=1, whole=True)
    adapter_bytes: int = _limit(
        1 << 30,
        "bytes",
        "all adapters of a pipeline; they are copied into memory, so that no engine gets others than were checked",
        least=1,
        whole=True,
    )
    label_bytes: int = _limit(256, "bytes", "labels and owners appear in logs and stats", least=0, whole=True)
    owners_tracked: int = _limit(10_000, "owners", "memory of per-owner counts", least=1, whole=True)
    unread: float = _limit(
        60.0, "s", "a reader that began and then left text unread for this long is ended SLOW_READER", least=0.001
    )
    ended_kept: int = _limit(
        1000, "sequences", "rows kept of ended ones, for their proof of release", least=0, whole=True
    )
    recorded: int = _limit(
        1_000,
        "inputs",
        "what the governor was told last, for replay: about ten a step, no text; 0: none",
        least=0,
        whole=True,
    )
    boot: float = _limit(300.0, "s", "load the model and compile its kernels", least=0.01)
    first_step: float = _limit(
        120.0,
        "s",
        "added to the budget of the first steps of an incarnation: kernels are compiled and caches warmed",
        least=0.0,
    )
    new_shape: float = _limit(
        20.0,
        "s",
        "added to the budget of the first two steps of each size (power of two of their tokens) that an incarnation "
        "makes: kernels are compiled by size; of this and first_step the larger counts",
        least=0.0,
    )
    step: float = _limit(
        10.0,
        "s",
        "base of a step's budget; where steps of its size, or smaller ones, take long, five times that",
        least=0.001,
    )
    step_per_token: float = _limit(0.02, "s/token", "added for each token that the step schedules", least=0.0)
    step_per_attention: float = _limit(
        2e-6, "s/(token x token)", "added for each scheduled token times its context", least=0.0
    )
    step_max: float = _limit(120.0, "s", "cap of a step's budget", least=0.001)
    encode: float = _limit(
        20.0,
        "s",
        "base of the budget for encoding the images of a request; where others take long, five times that; the first "
        "two of an incarnation have first_step on top",
        least=0.001,
    )
    encode_per_pixel: float = _limit(1e-5, "s/pixel", "added for each pixel of its images", least=0.0)
    encode_max: float = _limit(300.0, "s", "cap of that budget", least=0.001)
    progress: float = _limit(30.0, "s", "steps return, but nothing is scheduled and nothing released", least=0.01)
    ack: float = _limit(10.0, "s outside of steps", "the engine has not taken a command", least=0.01)
    reclaim: float = _limit(5.0, "s outside of steps", "from the stop being taken to the proof of release", least=0.01)
    reclaim_steps: int = _limit(3, "steps", "begun after the stop was taken; the engine needs one", least=1, whole=True)
    reap: float = _limit(
        30.0, "s", "a killed engine that has not left by then is lost for good: the pipeline is FAILED", least=0.01
    )
    drain: float = _limit(30.0, "s", "a normal `with` exit waits this long for what is running", least=0.0)
    probe_idle: float | None = _limit(
        None,
        "s",
        "ready and idle for this long, the lane is probed, and again after each such time: an engine or a driver that "
        "hangs meanwhile is found before the next request; None: it is not",
        least=1.0,
        optional=True,
    )
    probe_timeout: float = _limit(
        10.0, "s", "without a token within this, the probe of an idle lane is FAILED, and the lane STALLED", least=0.01
    )
    engine_age: float | None = _limit(
        None,
        "s",
        "since it was ready; an engine that is older is replaced at a moment at which it holds nothing. None: never",
        least=0.01,
        optional=True,
    )
    engine_rss_bytes: int | None = _limit(
        None,
        "bytes",
        "resident memory of the engine's process; one that is larger is replaced in the same way, but not within ten "
        "times its boot. None: never",
        least=1,
        whole=True,
        optional=True,
    )
    recycle_drain: float = _limit(
        10.0,
        "s",
        "an engine to be replaced for its age or size is given nothing new for this long, so that what it holds can "
        "end; if that does not, it is put off for ten times as long. 0: nothing is held back for it",
        least=0.0,
    )
    outbox_bytes: int = _limit(
        1 << 20,
        "bytes",
        "commands that are encoded in one wake while the engine does not read; more of them wait as they are",
        least=1 << 16,
        whole=True,
    )
    frame_bytes: int = _limit(
        32 << 20, "bytes", "one report of the engine, of many steps if nobody read them", least=1 << 20, whole=True
    )
    stderr_bytes: int = _limit(64 << 10, "bytes", "kept of the engine's last output", least=0, whole=True)
    evidence: float = _limit(
        2.0,
        "s",
        "a lost engine is looked at for `black_box` before it is killed, its callers answered; at most half of reap, "
        "and part of it; 0: it is not looked at",
        least=0.0,
    )
    incidents_kept: int = _limit(
        20,
        "folders",
        "in `black_box`; the oldest are removed, but for the first of a row of failures",
        least=1,
        whole=True,
    )
    incident_bytes: int = _limit(4 << 20, "bytes", "all files of one incident", least=1 << 18, whole=True)

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
