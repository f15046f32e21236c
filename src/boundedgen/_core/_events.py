"""What the engine reports, what the governor wants done: the two vocabularies, as plain frozen data.

Nouns are reports (in), verbs are effects (out). Every report carries the incarnation that it speaks of; a report of
another incarnation changes nothing. Times are `time.monotonic()` seconds, which parent and child share.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import NamedTuple

from attrs import frozen


class Cause(enum.StrEnum):
    """Why an engine was killed or is gone. The list is closed."""

    STEP = "step"  #: a step did not return within its budget
    BOOT = "boot"  #: it did not become ready in time, or could not
    RECLAIM = "reclaim"  #: a stopped stay was not released
    PROGRESS = "progress"  #: steps return, nothing is scheduled and nothing released
    ACK = "ack"  #: it does not take commands
    STEP_RAISED = "step_raised"  #: step() raised; the pipeline is poisoned for ever
    DIED = "died"  #: the process ended by itself, or was killed from outside
    WIRE = "wire"  #: a frame that cannot be read
    CANARY = "canary"  #: the generation before traffic did not come back right
    CLOSE = "close"  #: the pipeline was closed
    RECYCLE = "recycle"  #: it was too old or too large, or is to have other adapters, and held nothing

    @property
    def orderly(self) -> bool:
        """Nothing has failed: it is no loss, no incident and nobody's fault, and calls for no alarm."""
        return self in (Cause.CLOSE, Cause.RECYCLE)


# --- what an engine is -------------------------------------------------------------------------------------------


@frozen
class PoolFacts:
    """One kind of cache block. `tokens_per_block` None: one block a sequence, however long it is."""

    name: str  #: "kv", "linear_attention", or one that a kind of requests brings with it ("draft")
    blocks: int  #: all there are, the probe's included
    tokens_per_block: int | None
    #: what each sequence needs on top of prompt + new - 1 tokens, or of its one block where they are not counted by
    #: tokens: in tokens there, in blocks here
    ahead: int = 0


@frozen
class EngineFacts:
    """What an incarnation told of itself when it became ready."""

    device: str
    versions: Mapping[str, str]
    pools: tuple[PoolFacts, ...]
    block_size: int
    cache_bytes: int | None
    vocab_size: int | None
    running_max: int  #: sequences that the configuration allows at once, without the probe's
    probe_blocks: Mapping[str, int]  #: blocks by pool that are set aside for probe(); empty: no pool could grow
    max_prompt_tokens: int | None  #: longest prompt that one step can take (dynamic_split_fuse off), else None
    hybrid: bool
    proof: str  #: "perf_metrics" or "request_count": how release is proved
    findings: tuple[str, ...] = ()  #: settings that were changed or are known to be unsafe, in words
    canary: tuple[int, ...] = ()  #: token ids that it generated before anybody else's, greedily
    exact: bool = False  #: the same settings give the same canary, in every incarnation
    drafted: int = 0  #: candidates that a step looks at beside a token, at most; 0: it does not draft
    counts_proposed: bool = False  #: it is known how many it drafts
    adapters: tuple[tuple[str, float], ...] = ()  #: file name and weight of each that it was built with


# --- reports -----------------------------------------------------------------------------------------------------


@frozen
class Ready:
    incarnation: int
    facts: EngineFacts
    rss_bytes: int | None = None  #: resident memory of its process; None: not told


@frozen
class BootFailed:
    incarnation: int
    kind: str  #: "model", "device", "memory" or "other"
    text: str  #: the engine's own words and what to do
    permanent: bool  #: cannot heal by trying again


class Output(NamedTuple):
    """New tokens of one stay, in order. Only requests of one sequence show any before they finish."""

    stay: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@frozen
class SequenceResult:
    """One finished sequence of a request: best first in `Finish.results`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float | None


@frozen
class Finish:
    """A stay ended by the engine's own doing. `why`: "stop", "length" or "ignored" (it ran out of cache)."""

    stay: int
    why: str
    results: tuple[SequenceResult, ...] = ()  #: for requests of several sequences; empty else: `Output` has it all


NO_ROOM = "no_room"  #: it would not fit beside what has grown inside; it may come again


@frozen
class Refusal:
    """The engine did not accept an admission; it holds nothing of it."""

    stay: int
    code: str  #: "invalid", or NO_ROOM
    text: str


@frozen
class Release:
    """The engine has let go of a stay, and proved it."""

    stay: int
    steps: int  #: steps begun after the stop was taken, until the proof (0 for one that finished by itself)
    seconds: float  #: from the stop being taken to the proof
    late_tokens: int  #: produced after the stop; dropped


@frozen
class Progress:
    """At most one a step: what happened since the last one (several steps merged if the pipe was full)."""

    incarnation: int
    steps: int  #: steps ended in this incarnation, in all
    began: float
    ended: float
    scheduled: int  #: requests scheduled in the steps of this report; 0: nothing
    usage: float  #: of the fullest pool, 0..1, sampled in the last step
    held: tuple[int, ...] | None  #: the child's own table, every so many steps, for reconciliation by id
    taken: tuple[int, ...] = ()  #: stays whose admission the engine has taken
    stopping: tuple[int, ...] = ()  #: stays whose stop the engine has taken (also those it stopped at their deadline)
    paused: tuple[int, ...] = ()  #: stays that the child stopped to make room; what they had generated was read before
    refused: tuple[Refusal, ...] = ()
    outputs: tuple[Output, ...] = ()  #: but for `singles`
    finished: tuple[Finish, ...] = ()
    released: tuple[Release, ...] = ()
    cache_bytes: int | None = None
    tokens: int = 0  #: scheduled at most, as the stamps said while the step ran; of merged ones the sum
    attention: int = 0  #: likewise: sum over them of scheduled tokens times context
    rss_bytes: int | None = None  #: resident memory of its process, every so many seconds; None: not told this time
    #: stay, token id, stay, token id, …: of those that brought one token and nothing else, which nearly all do. Numbers
    #: in a row, since an object for each would be most of what a step costs, and more work for the collector of cycles.
    singles: tuple[int, ...] = ()
    accepted: int = 0  #: of the tokens told so far, not counted before: those that were drafted
    proposed: int = 0  #: of so many candidates, at most
    counted: tuple[tuple[int, int], ...] = ()  #: stay, and prompt tokens that the engine counted other than expected

    def shown(self) -> Iterator[tuple[int, tuple[int, ...], tuple[float, ...]]]:
        """Stay, token ids and logprobs of all `outputs`, `singles` among them."""
        alone = zip(self.singles[::2], zip(self.singles[1::2], strict=True), repeat(()), strict=False)
        return chain(alone, self.outputs)

    @property
    def all_outputs(self) -> tuple[Output, ...]:
        """`shown`, by name."""
        return tuple([Output(*one) for one in self.shown()])


@frozen
class StepRaised:
    incarnation: int
    steps: int
    text: str


@frozen
class WireEnded:
    """Nothing more will be heard of the engine but its exit, which may be a moment away."""

    incarnation: int


@frozen
class WireBroken:
    incarnation: int
    text: str


UNKNOWN_STATUS = 1000  #: of a process that somebody else has reaped; no exit status is so large


@frozen
class Exited:
    """The process is reaped. Always the last report of an incarnation."""

    incarnation: int
    status: int  #: exit code, or minus the signal; or UNKNOWN_STATUS
    text: str  #: the end of its output


Report = Ready | BootFailed | Progress | StepRaised | WireEnded | WireBroken | Exited


@frozen
class Pulse:
    """The step stamps, read from shared memory: true also while the engine hangs."""

    steps_begun: int = 0
    steps_ended: int = 0
    begun_at: float = 0.0  #: of the last step begun
    ended_at: float = 0.0  #: of the last step ended
    inside_s: float = 0.0  #: all ended steps together, and all ended encodings of images
    scheduled: int = 0  #: tokens that the step in flight schedules at most (estimated by the child)
    attention: int = 0  #: sum over them of scheduled tokens times context
    encodes_begun: int = 0  #: admissions with images, whose encoder runs between steps
    encodes_ended: int = 0
    encode_begun_at: float = 0.0  #: of the last one begun
    encode_ended_at: float = 0.0  #: of the last one ended
    pixels: int = 0  #: of the last one begun

    @property
    def in_step(self) -> bool:
        return self.steps_begun > self.steps_ended

    @property
    def encoding(self) -> bool:
        """The images of a request are being encoded; no step runs meanwhile."""
        return self.encodes_begun > self.encodes_ended


# --- effects -----------------------------------------------------------------------------------------------------
# Those that there are many of are named tuples, which are made in two thirds of the time.


@frozen
class Spawn:
    incarnation: int


@frozen
class Kill:
    incarnation: int
    cause: Cause
    detail: str


@frozen
class Lost:
    """The end of an engine has begun, by whose hand ever; once an incarnation."""

    incarnation: int
    cause: Cause
    detail: str
    output: str = ""  #: the end of what it wrote, if it ended by itself


@frozen
class Claim:
    """What the child has to know of a stay, so that it can keep all of them within the cache (Admission "adaptive")."""

    pausable: bool  #: it can be stopped and continued; else all that it may ever need is kept free for it
    rank: tuple[float, float, float]  #: the lowest is the least urgent: priority, minus the deadline, minus its number


class Admit(NamedTuple):
    """Hand a sequence to the engine as `stay`. `deadline`: the child stops it then by itself."""

    incarnation: int
    stay: int
    sequence: int
    deadline: float
    resumed: int = 0  #: times that it was taken up again; its prompt is followed by what was shown so far
    paused: int = 0  #: times that it was stopped to make room, likewise
    claim: Claim | None = None  #: None: its blocks are set aside, whatever it does
    followed: bool = False  #: others wait behind it


@frozen
class Stop:
    incarnation: int
    stay: int


class Emit(NamedTuple):
    sequence: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Settle(NamedTuple):
    """Answer the caller. The last word on a sequence."""

    sequence: int
    reason: str  #: a FinishReason value
    detail: str = ""
    bound: str = ""  #: for DEADLINE: which one
    deadline: float = 0.0
    results: tuple[SequenceResult, ...] = ()
    held: bool = False  #: the engine still holds it; a Prove follows


class Prove(NamedTuple):
    """A stay is GONE: tell whoever waits for the reclamation of its sequence. `proof` "died": with its engine."""

    sequence: int
    stay: int
    steps: int
    seconds: float
    proof: str


class Counted(NamedTuple):
    """The engine counted so many prompt tokens, which are not those that were reserved for."""

    sequence: int
    tokens: int


@frozen
class DecideRestart:
    """Ask the restart policy. The answer comes back as `Governor.restart(seconds or None)`."""

    incarnation: int
    failures: int  #: in a row, this one included
    since: float  #: of the first of them
    cause: Cause


@frozen
class Probe:
    """The lane was idle for so long that it is to be tried."""


@frozen
class Equip:
    """The engines from here on are built from the equipment with this number, which means nothing to the core."""

    number: int


@frozen
class Switched:
    """What became of a switch of equipment; once for each that was asked for."""

    number: int
    outcome: str  #: "done", "late", "failed" (the engine did not start), "dropped", "closed" or "busy"
    detail: str = ""
    kind: str = ""  #: of "failed": as in BootFailed


@frozen
class EndLease:
    lease: str
    how: str  #: "expired" or "revoked"


@frozen
class Became:
    """The state that health shows has changed."""

    state: str
    detail: str


Effect = (
    Spawn
    | Kill
    | Lost
    | Admit
    | Stop
    | Emit
    | Settle
    | Prove
    | Counted
    | DecideRestart
    | Probe
    | Equip
    | Switched
    | EndLease
    | Became
)
