"""What a generation gives: chunks on the way, a completion at its end, a reclamation when the engine let go of it.

Text and tokens are in no repr: what was asked and answered must not end up in a log by accident.
"""

from typing import final

from attrs import field, frozen

from boundedgen._errors import FinishReason


@final
@frozen(kw_only=True)
class Chunk:
    """New output. The texts of all chunks concatenate to `Completion.text`. Text is not in its repr."""

    text: str = field(repr=False)  #: can be empty: tokens that do not make a whole character yet
    token_ids: tuple[int, ...] = field(repr=False)  #: can be empty: text that was held back until the end
    logprobs: tuple[float, ...] = field(default=(), repr=False)  #: natural logarithms, one a token, when asked for


@final
@frozen(kw_only=True)
class Alternative:
    """Another sequence of the same request. Text is not in its repr."""

    text: str = field(repr=False)  #: all of it
    token_ids: tuple[int, ...] = field(repr=False)  #: without the prompt's
    score: float | None  #: the engine's: for beams, of the whole sequence; higher is better
    logprobs: tuple[float, ...] = field(default=(), repr=False)  #: one a token, when asked for


@final
@frozen(kw_only=True)
class Completion:
    """The whole output, or, on an error's `partial`, what there was. Text is not in its repr."""

    text: str = field(repr=False)  #: of the best sequence
    token_ids: tuple[int, ...] = field(repr=False)  #: of the best sequence, without the prompt's
    finish_reason: FinishReason | None  #: None: still going on
    prompt_tokens: int  #: with what the chat template adds
    completion_tokens: int  #: of the best sequence
    queued_s: float | None  #: seconds from submit to the first admission; None: never admitted
    first_token_s: float | None  #: seconds from submit; None: there was none
    total_s: float  #: seconds from submit to the end, or to now while it is going on
    resumed: int = 0  #: how often it was taken up again by another engine (`RestartPolicy.resume`)
    seed: int | None = None  #: that sampling began with, given or drawn; None: not sampled
    score: float | None = None  #: the engine's, of the best sequence, when several were asked for; else None
    logprobs: tuple[float, ...] = field(default=(), repr=False)  #: one a token, when asked for
    alternatives: tuple[Alternative, ...] = ()  #: the other sequences asked for, best first
    id: int = 0  #: `Generation.id`
    label: str = ""  #: the caller's


@final
@frozen(kw_only=True)
class Reclamation:
    """Proof that the engine let go of a generation."""

    steps: int  #: begun after the engine took the stop, until the proof; 0 for one that had finished by itself by then
    seconds: float  #: from the stop being taken to the proof
    #: "perf_metrics" or "request_count" (the engine's own evidence), "died" (with its engine), "reconciled" (the engine
    #: no longer knew it), "refused" (the engine never took it), "never_held" (it never entered the engine).
    proof: str
