"""What a generation gives: chunks on the way, a completion at its end, a reclamation when the engine let go of it."""

from typing import final

from attrs import field, frozen

from boundedgen._errors import FinishReason


@final
@frozen(kw_only=True)
class Chunk:
    """New output. The texts of all chunks concatenate to `Completion.text`; a chunk can have tokens and no text yet."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  #: one a token, when asked for


@final
@frozen(kw_only=True)
class Alternative:
    """Another sequence of the same request."""

    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    score: float | None
    logprobs: tuple[float, ...] = field(default=(), repr=False)


@final
@frozen(kw_only=True)
class Completion:
    """The whole output, or, on an error's `partial`, what there was. Text is not in its repr."""

    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    finish_reason: FinishReason | None  #: None: still going on
    prompt_tokens: int
    completion_tokens: int
    queued_s: float | None  #: from submit to the first admission; None: never admitted
    first_token_s: float | None  #: from submit
    total_s: float  #: from submit to the end, or to now
    resumed: int = 0  #: how often it was continued on another incarnation
    seed: int | None = None  #: None: not sampled
    score: float | None = None  #: of the best sequence, when several were asked for
    logprobs: tuple[float, ...] = field(default=(), repr=False)
    alternatives: tuple[Alternative, ...] = ()  #: the other sequences asked for, best first
    id: int = 0
    label: str = ""


@final
@frozen(kw_only=True)
class Reclamation:
    """Proof that the engine let go of a generation.

    `proof`: "perf_metrics" or "request_count" (the engine's own evidence), "died" (with its engine), "reconciled",
    "refused", or "never_held" (it never entered the engine). `steps` began after the engine took the stop.
    """

    steps: int
    seconds: float
    proof: str
