"""The model is tried: a whole lane on it, for a few seconds, by the library's own means.

The engine is a child process as ever, so that a loader that crashes or hangs ends as it would in a server: with a typed
error, within the limit of a boot. Prompts are token ids and answers are counted only: nothing is loaded into this
process, not even the tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

from attrs import evolve, frozen

from boundedgen._adapters import adapters_of
from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._core._admission import Capacity
from boundedgen._core._events import Cause, EngineFacts, Progress
from boundedgen._core._recording import Record
from boundedgen._doctor._asked import Asked
from boundedgen._errors import BoundedGenError, GenerationError
from boundedgen._generation import Generation
from boundedgen._pipeline import BoundedPipeline
from boundedgen._restart import RestartPolicy
from boundedgen._stats import ProbeResult
from boundedgen.abc import EngineHost

MANY: Final = 16  #: sequences at once, where more would fit and nobody asked for them
PREFILL: Final = 256  #: prompt tokens at most: SchedulerConfig's default for what a step takes
PREFILL_S, DECODE_S, PROBE_S = 10.0, 2.0, 30.0  #: that each measurement may take
_DECODED: Final = 1024  #: tokens at most of a measurement
_PROMPT: Final = (1, 2, 3, 4)  #: token ids that every vocabulary has
_RECORDED: Final = 1_000_000  #: inputs of the governor: all of them
_LATE_S: Final = 5.0  #: on top of the limit of a boot, for the end of an engine that was too slow


@final
@frozen
class Step:
    """Of the engine, after it was ready."""

    tokens: int  #: scheduled, at most
    seconds: float


@final
@frozen
class Rate:
    """Of sequences that decode at once."""

    sequences: int
    tokens_per_s: float
    first_token_s: float  #: of the slowest


@final
@frozen(kw_only=True)
class Trial:
    """What came of it. `error`: there is no more than that, and what is above of it."""

    facts: EngineFacts | None = None
    capacity: Capacity | None = None
    load_s: float | None = None  #: from the start of the process until it was ready
    cache_bytes: int | None = None
    rss_bytes: int | None = None
    probe: ProbeResult | None = None
    steps: tuple[Step, ...] = ()
    rates: tuple[Rate, ...] = ()
    error: BoundedGenError | None = None
    cause: Cause | None = None  #: why the engine is gone
    detail: str = ""  #: the same in words
    output: str = ""  #: the end of what it wrote then


def host_of(asked: Asked) -> EngineHost:
    """The engine that a pipeline with these arguments would have, without the tokenizer in this process."""
    from boundedgen._engine._host import GenAIHost

    host = GenAIHost(
        asked.model,
        asked.scheduler.fields,
        asked.device,
        asked.properties,
        tokenizer_properties={},
        limits=_limits(asked),
        tokenizer=NoText,
        insist_prefix_caching=asked.scheduler.insist_prefix_caching,
    )
    host.adapters = adapters_of(asked.adapters, asked.model or "", _limits(asked))
    return host


def _limits(asked: Asked) -> Limits:
    return Limits(boot=asked.boot_s, recorded=_RECORDED)


def tried(asked: Asked, host: EngineHost, *, lock: str | None) -> Trial:
    """Load, measure, close. Raises nothing of what the engine does. `lock`: held meanwhile."""
    try:
        pipeline = BoundedPipeline(
            None,
            engine=host,
            limits=_limits(asked),
            restart=RestartPolicy(stop=lambda state: True),
            admission=Admission(margin=None),  # who has too little time is let in all the same
            device_lock=lock,
        )
    except BoundedGenError as error:
        return Trial(error=error)
    try:
        return _measured(pipeline, asked)
    finally:
        pipeline.close()


def _measured(pipeline: BoundedPipeline, asked: Asked) -> Trial:
    try:
        pipeline.wait_ready(asked.boot_s + _LATE_S)
    except BoundedGenError as error:
        return _ended(pipeline, Trial(), error)
    trial = _ready(pipeline)
    try:
        trial = evolve(trial, probe=pipeline.probe(PROBE_S))
        _prefill(pipeline, trial)
        for sequences in _crowds(trial, asked):
            trial = evolve(trial, rates=(*trial.rates, _decode(pipeline, trial, sequences)))
    except BoundedGenError as error:
        trial = _ended(pipeline, trial, error)
    return evolve(trial, steps=steps_of(pipeline._driver.governor.record()))


def _ready(pipeline: BoundedPipeline) -> Trial:
    snapshot, stats = pipeline._driver.snapshot, pipeline.stats()
    return Trial(
        facts=snapshot.facts,
        capacity=snapshot.capacity,
        load_s=pipeline._driver.governor.life.boot_s,
        cache_bytes=stats.cache_bytes,
        rss_bytes=stats.engine_rss_bytes,
    )


def _ended(pipeline: BoundedPipeline, trial: Trial, error: BoundedGenError) -> Trial:
    """The engine is gone, or about to go; what is known of that may come a moment later."""
    until = time.monotonic() + _LATE_S
    while (death := pipeline._driver.snapshot.death) is None and time.monotonic() < until:
        time.sleep(0.01)
    if death is None:
        return evolve(trial, error=error)
    return evolve(trial, error=error, cause=death.cause, detail=death.detail, output=death.output)


# --- measuring -------------------------------------------------------------------------------------------------------


def how_many(capacity: Capacity, tokens: int) -> int:
    """Sequences of `tokens` tokens, prompt and answer, that fit at once, by what each reserves at admission."""
    needs = capacity.needs(tokens - 1, 1, 1)
    return min(capacity.running_max, *(pool.blocks // need for pool, need in zip(capacity.pools, needs, strict=True)))


def at_once(capacity: Capacity, asked: Asked) -> int:
    """Sequences that a lane is to hold: as many as are asked for or, within reason, as fit."""
    return asked.sequences or max(1, min(MANY, how_many(capacity, asked.tokens)))


def longest(capacity: Capacity) -> int:
    """Tokens, prompt and answer, of a sequence that has the whole cache for itself."""
    least, most = 0, 1 << 40
    while least < most:
        tokens = (least + most + 1) // 2
        least, most = (tokens, most) if how_many(capacity, max(2, tokens)) else (least, tokens - 1)
    return least


def _crowds(trial: Trial, asked: Asked) -> list[int]:
    """One alone, then as many as the lane is to hold, as far as they fit while they are short."""
    assert trial.capacity is not None
    fitting = how_many(trial.capacity, len(_PROMPT) + 2)
    return sorted({min(1, fitting), min(at_once(trial.capacity, asked), fitting)} - {0})


def _prefill(pipeline: BoundedPipeline, trial: Trial) -> None:
    """For the time of the longest steps: those that are full of prompt."""
    assert trial.facts is not None
    assert trial.capacity is not None
    most = min(PREFILL, longest(trial.capacity) - 1, trial.facts.max_prompt_tokens or PREFILL)
    if most >= 1:
        prompt = [_PROMPT[at % len(_PROMPT)] for at in range(most)]
        _outcome(_submit(pipeline, prompt, 1, PREFILL_S))


def _decode(pipeline: BoundedPipeline, trial: Trial, sequences: int) -> Rate:
    assert trial.capacity is not None
    room = next(size for size in _sizes() if how_many(trial.capacity, len(_PROMPT) + size) >= sequences)
    generations = [_submit(pipeline, _PROMPT, room, DECODE_S) for _ in range(sequences)]
    return rate_of([_outcome(generation) for generation in generations])


def _sizes() -> Iterable[int]:
    size = _DECODED
    while size >= 2:
        yield size
        size //= 2


def _submit(pipeline: BoundedPipeline, prompt: Sequence[int], tokens: int, within: float) -> Generation:
    plain = {"max_new_tokens": tokens, "ignore_eos": True, "do_sample": False}
    return pipeline.submit(list(prompt), plain, bounds=Bounds(total=within))


@final
@frozen
class Outcome:
    tokens: int
    first_token_s: float | None
    total_s: float


def _outcome(generation: Generation) -> Outcome:
    """Of one that came to its end, or that its deadline cut. Raises what else ended it."""
    try:
        whole = generation.result()
    except GenerationError as error:
        if not isinstance(error, TimeoutError) or error.partial is None:
            raise
        whole = error.partial
    return Outcome(whole.completion_tokens, whole.first_token_s, whole.total_s)


def rate_of(outcomes: Sequence[Outcome]) -> Rate:
    """What all decode together, each counted from its first token. 0 where the time was too short for a second one."""
    shown = [(one.tokens - 1, one.first_token_s, one.total_s) for one in outcomes if one.first_token_s is not None]
    rates = [tokens / (total_s - first_s) for tokens, first_s, total_s in shown if total_s > first_s]
    slowest = max((first_s for _, first_s, _ in shown), default=0.0)
    return Rate(len(outcomes), sum(rates), slowest)


def steps_of(record: Record) -> tuple[Step, ...]:
    """Each that had something to do and was reported by itself, in order."""
    steps, last = [], 0
    for name, arguments in record.inputs:
        report = arguments[0] if name == "receive" else None
        if isinstance(report, Progress):
            if report.steps == last + 1 and report.tokens:
                steps.append(Step(report.tokens, report.ended - report.began))
            last = report.steps
    return tuple(steps)


@final
class NoText:
    """A tokenizer for whoever only counts tokens: prompts are ids, and what comes back is no text."""

    @property
    def vocab_size(self) -> int | None:
        return None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise TypeError("prompts of the doctor are token ids")

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        context: Mapping[str, Any] | None,
    ) -> str:
        raise TypeError("prompts of the doctor are token ids")
