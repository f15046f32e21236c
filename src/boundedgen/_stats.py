"""What `stats()`, `health()` and `probe()` answer: frozen values, typed, with units in their names.

Durations end in `_s` (seconds), counters in `_total` (since the pipeline was built), ratios are 0 to 1. What cannot be
known is None, never 0. Ages are computed when the answer is read.
"""

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from attrs import Attribute, AttrsInstance, Factory, asdict, field, frozen

from boundedgen._core._times import EDGES, FIRST_TOKEN, NEXT_TOKEN, QUEUED, STEP, TOTAL, Photograph
from boundedgen._errors import BoundedGenError
from boundedgen._fields import tells_of_its_fields

_Value = TypeVar("_Value", bound=AttrsInstance)
PLACES: Final = {edge: place for place, edge in enumerate((*EDGES, math.inf))}  #: of the buckets, by upper edge


def made(kind: type[_Value], fields: dict[str, Any]) -> _Value:
    """What `kind(**fields)` is, if they are all there: then it costs a tenth. `fields` becomes the value's own."""
    value = object.__new__(kind)
    object.__setattr__(value, "__dict__", fields)
    return value


@final
class ProbeVerdict(enum.StrEnum):
    """What a probe found out."""

    OK = "ok"  #: a token came through
    FAILED = "failed"  #: none did; also a timeout: a probe is never inconclusive
    NOT_RUN = "not_run"  #: the engine has no room that could be set aside for it; `reason` says which


@final
@tells_of_its_fields
@frozen(kw_only=True)
class PoolStats:
    """One kind of cache block. The sizes are the engine's own; what is reserved, boundedgen's."""

    name: str  #: "kv", "linear_attention" on hybrid models, "draft" for that of a draft model
    blocks_total: int  #: all there are, without the probe's
    blocks_reserved: int  #: set aside for stays whose release is not proved; with "adaptive" it can exceed the total
    blocks_free: int = field(  #: blocks_total - blocks_reserved, 0 at least: what a newcomer can get
        init=False, default=Factory(lambda self: max(0, self.blocks_total - self.blocks_reserved), takes_self=True)
    )
    tokens_per_block: int | None  #: None: one block a sequence, however long


@final
class Buckets(Mapping[float, int]):
    """Upper edge in seconds -> how many times up to it. Nobody can change it, so that many answers share one."""

    __slots__ = ("_counts", "_up_to")

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts`: of each bucket alone, the one above the last edge included; nobody changes it any more."""
        self._counts = counts
        self._up_to: tuple[int, ...] = ()

    def __getitem__(self, edge: float) -> int:
        if not self._up_to:  # nobody has looked yet, and hardly anybody does
            self._up_to = tuple(accumulate(self._counts))
        return self._up_to[PLACES[edge]]

    def __iter__(self) -> Iterator[float]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)

    def __repr__(self) -> str:
        return repr(dict(self))


@final
@tells_of_its_fields
@frozen(kw_only=True)
class TimeHistogram:
    """How long something took, each time that it happened. What falls on an edge is below it."""

    count_total: int  #: how many times
    sum_s: float  #: seconds, all of them together
    #: upper edge in seconds -> how many times up to it; cumulative, the last edge is infinite. The edges are fixed:
    #: 1, 2, 3, 5 of each power of ten, from 0.001 to 30; then 60, 120, 300, 600
    buckets_s: Mapping[float, int]


@final
@tells_of_its_fields
@frozen(kw_only=True, slots=False)  # for `made`
class TimeStats:
    """The times that bounds are set for, as they were. No probe is in any of them but `step`."""

    queued: TimeHistogram  #: from submit to the first admission, of each sequence that the engine has taken in
    first_token: TimeHistogram  #: from submit to the first visible token, of each sequence that has shown one
    #: between two visible tokens, an outage between them included, 0 for those that came at once; not of requests of
    #: several sequences
    next_token: TimeHistogram
    total: TimeHistogram  #: from submit to the end, of each sequence that has ended, however it did
    step: TimeHistogram  #: of each step that returned; where reports were merged, the mean of those steps

    if not TYPE_CHECKING:  # mypy would believe that there is every name

        def __getattr__(self, name):
            """Of what was `made` with nothing but a photograph: most who look at stats do not look here."""
            if name not in _KINDS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.__dict__[name] = found = histogram_of(self._photograph, _KINDS[name])
            return found


def histogram_of(times: Photograph, kind: int) -> TimeHistogram:
    rows, seconds = times
    return TimeHistogram(count_total=sum(rows[kind]), sum_s=seconds[kind], buckets_s=Buckets(rows[kind]))


_KINDS = {"queued": QUEUED, "first_token": FIRST_TOKEN, "next_token": NEXT_TOKEN, "total": TOTAL, "step": STEP}


@final
@tells_of_its_fields
@frozen(kw_only=True)
class ReclaimStats:
    """Stays made to leave before their own end (cancelled, expired, revoked, paused), and proved to have left."""

    count_total: int  #: stays
    sum_s: float  #: seconds from the stop being taken to the proof, all of them together
    steps_max: int  #: steps begun after the engine took the stop, until the proof; the most so far
    seconds_max: float  #: seconds from the stop being taken to the proof; the most so far
    buckets_s: Mapping[float, int]  #: upper edge in seconds -> stays up to it; edges as of TimeHistogram
    proof: str | None  #: "perf_metrics" or "request_count", the evidence in use; None before the first READY


@final
@tells_of_its_fields
@frozen(kw_only=True)
class SequenceRow:
    """One sequence that is not settled, or is settled and still held by the engine."""

    id: int  #: `Generation.id`
    label: str  #: the caller's
    owner: str  #: the lease's, else the caller's
    #: of its explicit lease, never the id, which is a bearer token: the first 8 hex digits of the id's SHA-256, as in
    #: the black box; None: it has none
    lease: str | None
    phase: str  #: "waiting", "running" or "stopping"
    age_s: float  #: since submit
    tokens: int  #: visible so far; 0 once it is settled
    blocks: Mapping[str, int]  #: reserved, by pool; empty while it holds none
    deadline: float | None  #: `time.monotonic()` instant of the earlier of `total` and `queued`; None: it is settled
    bound: str | None  #: the bound that `deadline` comes from; None: it is settled


@final
@tells_of_its_fields
@frozen(kw_only=True, slots=False)  # for `made`
class SchedulerStats:
    """A snapshot of the lane, as the driver last published it; ages are of the moment of the call.

    In each one `submitted_total == sum(finished_total.values()) + waiting + running`. A probe is in no figure but
    `steps_total` and those of blocks that the engine itself tells. While the engine hangs `step_current_s` grows; while
    the driver does, `driver_lag_s`.
    """

    waiting: int  #: sequences that are accepted and not in the engine
    running: int  #: sequences in the engine, not answered yet
    running_max: int | None  #: sequences that it can hold at once, running and stopping; None before the first READY
    stopping: int  #: stays whose release is not proved yet; they count against capacity
    leases: int  #: live ones, implicit ones included
    incarnation: int  #: number of the engine's life, from 1
    engine_pid: int | None  #: of the engine's process, also while it boots; None while there is none
    oldest_waiting_s: float | None  #: age, since submit, of the one that waits longest; None: none waits
    oldest_running_s: float | None  #: age, since submit, of the oldest one running; None: none runs
    oldest_stopping_s: float | None  #: since the earliest stop that is not proved; None: there is none
    blocks_total: int | None  #: blocks of the KV pool, without the probe's; None before the first READY
    blocks_used: int | None  #: by this engine's own figure, at its last step; None: it made none yet, or a hybrid model
    blocks_free: int | None  #: blocks_total - blocks_reserved, 0 at least: for newcomers; None before the first READY
    blocks_reserved: int | None  #: set aside for stays whose release is not proved; None before the first READY
    block_size: int | None  #: tokens of a block of the KV pool; None before the first READY
    pools: tuple[PoolStats, ...]  #: a row a pool, the KV pool first; empty before the first READY
    cache_usage: float | None  #: 0 to 1, of the fullest pool, at this engine's last step; None: it made none yet
    cache_usage_max: float | None  #: the highest so far; None: no step yet
    cache_bytes: int | None  #: bytes of the cache by the engine's own figure; None: it does not tell
    engine_rss_bytes: int | None  #: resident memory of the engine's process, as of its last word; None: not told
    step_current_s: float  #: age of the step in flight; 0 when none is
    encode_current_s: float  #: since when the images of a request are being encoded; 0 when none are
    step_budget_s: float | None  #: what it may take before the engine is killed for it; None when none is
    last_step_s: float | None  #: how long this engine's last step took (all of them, if merged); None: it made none yet
    last_progress_s: float | None  #: since a token was scheduled or a stay released; None: there is no work
    snapshot_age_s: float  #: since the driver published this; an idle driver sleeps long, `driver_lag_s` tells
    #: how late the driver is for its next wake-up; 0 when it is not. With nothing inside none is due, so that a driver
    #: that hangs then shows no lag: with `Limits.probe_idle` there always is one
    driver_lag_s: float
    driver_lag_max_s: float  #: by how much it ever was late, since the first READY; more than 0.5 s is logged
    tokens_per_s: float | None  #: visible tokens, over the last full second with work; None: there was none
    submitted_total: int  #: sequences accepted
    rejected_total: Mapping[str, int]  #: by name of the error; nothing was started, so not in submitted_total
    finished_total: Mapping[str, int]  #: by value of FinishReason
    deadlines_total: Mapping[str, int]  #: those that ended DEADLINE, by bound (total, queued, first_token, next_token)
    leases_total: Mapping[str, int]  #: granted, renewed, expired, revoked; refused: renewals that raised LeaseExpired
    prompt_tokens_total: int  #: of sequences that were admitted
    tokens_total: int  #: visible ones
    late_tokens_total: int  #: produced after the end of their sequence; dropped. What was only drafted is not counted
    #: visible ones that were drafted (`draft`, `prompt_lookup`): steps that were saved; None: this lane does not draft
    accepted_tokens_total: int | None
    #: candidates that the draft model has made for visible tokens, at most; None: no draft model, or not ready yet
    proposed_tokens_total: int | None
    steps_total: int  #: that returned
    restarts_total: int  #: READY again after an engine was lost; one that was recycled is no loss
    kills_total: Mapping[str, int]  #: engines lost, by cause (step, boot, …): only faults, for an alarm on the sum
    closes_total: int  #: engines ended by an orderly close (cause CLOSE); in no kills_total
    recycled_total: int  #: engines replaced for their age or size, or to switch adapters (RECYCLE); in no kills_total
    resumed_total: int  #: taken up again by the next engine (RestartPolicy.resume="continue")
    paused_total: int  #: stopped to make room for what had grown, put back in their place (Admission "adaptive")
    quarantined_total: int  #: ended QUARANTINED: two engines failed on them
    requeued_total: int  #: put back in their place for lack of cache: ended by the engine, or ("adaptive") not let in
    hopeless_total: int  #: not let in, since their deadlines could not be met any more (Admission.margin)
    service_error: float | None  #: how far off predicted service times are, lately, as a share; None: not known yet
    ghosts_total: int  #: stays that only the engine knew; stopped
    forgotten_total: int  #: stays that the engine no longer knew; ended
    times: TimeStats  #: of queueing, of tokens, of whole sequences and of steps, as histograms
    reclaim: ReclaimStats  #: how fast those that were stopped have left
    #: LoRA adapters that the engine was built with, or, while it is replaced, the one before: file name -> weight
    adapters: Mapping[str, float] = field(factory=dict)
    #: of the latest probe, a caller's or an idle lane's own; None: never. It is history, and stays until the next one
    #: answers: FAILED makes health STALLED only until there is progress, or another engine
    last_probe: ProbeVerdict | None = None
    last_probe_s: float | None = None  #: seconds until it was answered or given up; None: never
    last_probe_age_s: float | None = None  #: since that answer: how old `last_probe` is; None: never
    sequences: tuple[SequenceRow, ...] | None = None  #: a row a sequence, by id; None without `stats(sequences=True)`

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the names of the fields, as strict JSON gives it back; the infinite edge is "inf"."""
        return asdict(self, value_serializer=_plain)


@final
class HealthState(enum.StrEnum):
    """What the lane is doing."""

    STARTING = "starting"  #: the first engine has not been ready yet
    READY = "ready"  #: idle or full, as long as there is progress
    STALLED = "stalled"  #: there is work, and no progress that the budgets allow for; or the last probe failed
    RECOVERING = "recovering"  #: the engine is being replaced; who has the time for it waits
    DRAINING = "draining"  #: closing; what is inside may still end
    FAILED = "failed"  #: given up: `Health.error` says why; build a new pipeline, in a new process
    CLOSED = "closed"  #: the end


@final
@tells_of_its_fields
@frozen(kw_only=True)
class Health:
    """Whether to send work here, and whether to replace the process."""

    state: HealthState  #: what the lane is doing
    reason: str  #: why, in words; empty where there is nothing to say
    since_s: float  #: how long `state` has been so; STALLED: since READY began
    incarnation: int  #: number of the engine's life, from 1
    error: BoundedGenError | None  #: the typed cause of FAILED, also once that is CLOSED; None: it has not failed
    retry_after_s: float | None  #: while not ready: when to ask again; None in READY, FAILED and CLOSED, or never
    findings: tuple[str, ...] = ()  #: settings that were changed or are unsafe; what a release lacks; an untested one
    adapters: Mapping[str, float] = field(factory=dict)  #: those of SchedulerStats
    driver_alive: bool = True  #: its thread runs (or ended in order) and is less than 10 s behind (`driver_lag_s`)
    #: of the latest probe, a caller's or an idle lane's own; None: never. It is history, and stays until the next one
    #: answers: FAILED makes health STALLED only until there is progress, or another engine
    last_probe: ProbeVerdict | None = None
    last_probe_s: float | None = None  #: seconds until it was answered or given up; None: never
    last_probe_age_s: float | None = None  #: since that answer: how old `last_probe` is; None: never

    @property
    def ready(self) -> bool:
        """Send work here: READY, idle or full."""
        return self.state is HealthState.READY

    @property
    def live(self) -> bool:
        """Do not replace the process: it works, or heals by itself. Not FAILED, not CLOSED, and the driver runs."""
        return self.driver_alive and self.state not in (HealthState.FAILED, HealthState.CLOSED)

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the names of the fields, with `ready` and `live`; `error` by its type and its hints."""
        fields = asdict(self, value_serializer=_plain)
        return {**fields, "ready": self.ready, "live": self.live}


@final
@tells_of_its_fields
@frozen(kw_only=True)
class ProbeResult:
    """A one-token generation in a slot and a block of its own."""

    verdict: ProbeVerdict  #: OK, FAILED or NOT_RUN
    seconds: float  #: until the answer, or until it was given up
    reason: str = ""  #: why it is not OK, in words

    @property
    def ok(self) -> bool:
        """The verdict is OK."""
        return self.verdict is ProbeVerdict.OK


def _plain(_: object, attribute: "Attribute[Any] | None", value: Any) -> Any:
    """`value` as strict JSON has it: lists, enums by value, errors by type, edges of a histogram as strings."""
    if attribute is not None and attribute.name == "buckets_s":
        return {"inf" if math.isinf(edge) else f"{edge:g}": count for edge, count in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, BoundedGenError):
        hints = {name: getattr(value, name) for name in ("http_status_hint", "grpc_status_hint", "retryable")}
        return {"type": type(value).__name__, "message": str(value), **hints}
    return value
