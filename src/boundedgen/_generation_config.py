"""What a caller asks of the engine: checked field by field, completed, and turned into plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from boundedgen._arguments import kind_of, reading
from boundedgen._bounds import Limits
from boundedgen._core._sequences import Resume
from boundedgen._errors import InvalidRequest
from boundedgen._generation_fields import F32_LEAST, FIELDS, NEUTRAL, UNSET, FieldChecks, flag
from boundedgen._kinds import Chosen, Kind
from boundedgen._prompt import messages, token_ids

__all__ = [
    "after",
    "engine_fields",
    "generation_fields",
    "messages",
    "results_of",
    "resume_of",
    "sequences_of",
    "streams",
    "token_ids",
    "wants_chat_template",
]

#: In an object these values mean that nobody set the field.
_OBJECT_UNSET: Final[Mapping[str, Any]] = {
    "max_new_tokens": UNSET,
    "max_length": UNSET,
    "no_repeat_ngram_size": UNSET,
    "top_k": UNSET,
    "rng_seed": 0,
    "eos_token_id": -1,
}
#: What beam search does not take (GenerationConfig::validate), and the value that switches it off.
_NOT_WITH_BEAMS: Final[Mapping[str, Any]] = {
    "do_sample": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
#: What makes the engine leave the grammar, measured with 2026.4.1: beams never see it, of several samples only the
#: first keeps to it, and past its end (not ended by an end-of-sequence token) any token comes.
_NOT_WITH_GRAMMAR: Final[Mapping[str, Any]] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "ignore_eos": False,
    "min_new_tokens": 0,
}

#: What looks back at the generated text, and would begin anew with a continuation; and the value that switches it off.
#: Stop strings do not: what an engine has shown is behind the window that it looks at (see _engine/_cut_stops.py). Nor
#: does repetition_penalty: the engine counts the prompt too, each token once.
_NOT_CONTINUED: Final[Mapping[str, Any]] = {
    "structured_output_config": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram_size": None,
}
_SEEDS: Final = 2**63


def generation_fields(
    config: object | Mapping[str, Any] | None,
    keywords: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    limits: Limits,
    prompt_tokens: int,
    vocab_size: int | None,
    draw_seed: Callable[[], int],
    chosen: Chosen | None = None,
) -> dict[str, Any]:
    """GenerationConfig fields for the engine, JSON types only, with `max_new_tokens` always set.

    `defaults` (the model's generation_config.json) < mapping < keywords; a `GenerationConfig` object replaces the
    first two. A value of None means: not set. In `defaults`, what is unknown or unusable is passed over, and so is
    `max_length` (there it is the size of the context). End-of-sequence ids of the model hold unless `eos_token_id`
    is given; `stop_token_ids` come on top. `rng_seed` is set when sampling. Structured output is {kind: text}.
    Raises InvalidRequest, which names the argument.
    """
    asked = FieldChecks(limits, vocab_size, chosen)
    fields = _base(asked, config, defaults)
    _overlay(fields, asked.layer(keywords))
    _set_length(fields, limits, prompt_tokens)
    _set_stop_ids(fields, asked.model_stop_ids(defaults))
    _check_together(fields, limits)
    if chosen is not None:
        _check_kind(fields, chosen.kind)
    if fields.get("do_sample"):
        fields.setdefault("rng_seed", draw_seed())
    if "logprobs" in fields:
        fields["logprobs"] = min(fields["logprobs"], 1)
    fields.pop("apply_chat_template", None)
    return fields


def engine_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` as the engine gets them: it cuts at whole tokens, so it keeps stop strings and TextStream cuts."""
    return {**fields, "include_stop_str_in_output": True} if fields.get("stop_strings") else dict(fields)


def wants_chat_template(config: object | Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> bool:
    """Whether to wrap a str prompt as a user message. An object's attribute does not count: it is True in each."""
    given = keywords.get("apply_chat_template")
    with reading("generation_config"):
        if given is None and isinstance(config, Mapping):
            given = config.get("apply_chat_template")
    with reading("apply_chat_template"):
        return flag("apply_chat_template", given) if given is not None else False


def results_of(fields: Mapping[str, Any]) -> int:
    """Sequences that the caller gets back."""
    return int(fields.get("num_return_sequences", 1))


def sequences_of(fields: Mapping[str, Any]) -> int:
    """Sequences that the engine holds for the request: all beams of all groups, or all samples."""
    return max(int(fields.get("num_beams", 1)), results_of(fields))


def streams(fields: Mapping[str, Any]) -> bool:
    """Whether tokens show before the end: only requests of one sequence do."""
    return sequences_of(fields) == 1


def resume_of(fields: Mapping[str, Any]) -> Resume:
    """What can become of it on another engine: what it has shown may be continued only where its tokens tell all."""
    continuable = streams(fields) and all(fields.get(name, off) == off for name, off in _NOT_CONTINUED.items())
    return Resume.ALWAYS if continuable else Resume.UNSEEN


def after(config: Mapping[str, Any], shown: int, times: int) -> dict[str, Any]:
    """What is left of `config` (as the engine takes it) when `shown` tokens are there; each time with another seed."""
    left = dict(config, max_new_tokens=config["max_new_tokens"] - shown)
    if "min_new_tokens" in left:
        left["min_new_tokens"] = max(0, left["min_new_tokens"] - shown)
    if "rng_seed" in left:
        left["rng_seed"] = (left["rng_seed"] + times) % _SEEDS or 1
    return left


def _base(asked: FieldChecks, config: object, defaults: Mapping[str, Any]) -> dict[str, Any]:
    if config is None:
        return asked.usable(defaults)
    if isinstance(config, Mapping):
        fields = asked.usable(defaults)
        _overlay(fields, asked.layer(config))
        return fields
    if type(config).__name__ == "GenerationConfig":
        with reading("generation_config"):
            given = _read_object(config)
        return asked.layer(given)
    raise InvalidRequest(
        "generation_config must be an openvino_genai.GenerationConfig or a mapping of its fields, "
        f"not {kind_of(config)}"
    )


def _read_object(config: object) -> dict[str, Any]:
    """What somebody set in a GenerationConfig. It can be neither copied nor pickled, only read by attribute."""
    untouched = type(config)()
    found: dict[str, Any] = {}
    for name in (n for n in dir(config) if not n.startswith("_")):
        value = getattr(config, name)
        if callable(value) or (name in _OBJECT_UNSET and value == _OBJECT_UNSET[name]):
            continue
        if name in FIELDS or name in NEUTRAL or value != getattr(untouched, name):
            found[name] = value
    return {n: v for n, v in found.items() if not (n in ("stop_token_ids", "stop_strings") and not v)}


def _overlay(fields: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """The engine lets max_new_tokens win over max_length; between layers the nearer one does."""
    if "max_length" in layer and "max_new_tokens" not in layer:
        fields.pop("max_new_tokens", None)
    fields.update(layer)


def _set_length(fields: dict[str, Any], limits: Limits, prompt_tokens: int) -> None:
    whole = fields.pop("max_length", None)
    if "max_new_tokens" not in fields and whole is not None:
        fields["max_new_tokens"] = whole - prompt_tokens
        if whole <= prompt_tokens:
            raise InvalidRequest(
                f"max_length is {whole} and counts the prompt, which has {prompt_tokens} tokens: no room is left; "
                "raise it or set max_new_tokens"
            )
    length = min(fields.get("max_new_tokens", limits.max_new_tokens_default), limits.max_new_tokens)
    fields["max_new_tokens"] = length
    if fields.get("min_new_tokens", 0) > length:
        raise InvalidRequest(
            f"min_new_tokens is {fields['min_new_tokens']}, more than max_new_tokens ({length} after "
            "Limits.max_new_tokens); lower it"
        )


def _set_stop_ids(fields: dict[str, Any], of_model: list[int]) -> None:
    ends = fields.pop("eos_token_id", None) or of_model
    stops = sorted({*ends, *fields.pop("stop_token_ids", [])})
    if stops:
        fields["stop_token_ids"] = stops
    if ends:
        fields["eos_token_id"] = ends[0]


def _check_together(fields: Mapping[str, Any], limits: Limits) -> None:
    beams, results = fields.get("num_beams", 1), results_of(fields)
    if beams > 1:
        _check_beams(fields, beams, results)
    elif results > 1 and not fields.get("do_sample"):
        raise InvalidRequest(
            f"num_return_sequences is {results}, but greedy decoding has one result; set do_sample=True or num_beams"
        )
    if "structured_output_config" in fields:
        _check_grammar(fields)
    if fields.get("do_sample") and fields.get("temperature", 1.0) < F32_LEAST:
        raise InvalidRequest(
            f"temperature is {fields['temperature']:g} with do_sample=True; make it positive, or set do_sample=False"
        )
    if sequences_of(fields) > limits.sequences_max:
        raise InvalidRequest(
            f"the request asks for {sequences_of(fields)} sequences (num_beams {beams}, "
            f"num_return_sequences {results}); at most {limits.sequences_max} (Limits.sequences_max)"
        )


def _check_kind(fields: Mapping[str, Any], kind: Kind) -> None:
    """What the kind of requests that the pipeline is made for does not go with."""
    if kind.single and sequences_of(fields) > 1:
        raise InvalidRequest(
            f"num_beams or num_return_sequences asks for {sequences_of(fields)} sequences on a pipeline with "
            f"{kind.name}: {kind.single}"
        )
    for name, off in kind.without.items():
        if fields.get(name, off.value) != off.value:
            raise InvalidRequest(f"{name} is {_told(fields[name])} on a pipeline with {kind.name}: {off.why}")


def _told(value: object) -> str:
    """Floats without what 32 bits made of their digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_grammar(fields: Mapping[str, Any]) -> None:
    for name, off in _NOT_WITH_GRAMMAR.items():
        if fields.get(name, off) != off:
            raise InvalidRequest(
                f"{name} is {_told(fields[name])} with structured_output_config: the engine would leave the grammar; "
                f"set {name}={off}"
            )


def _check_beams(fields: Mapping[str, Any], beams: int, results: int) -> None:
    for name, off in _NOT_WITH_BEAMS.items():
        if fields.get(name, off) != off:
            raise InvalidRequest(
                f"{name} is {_told(fields[name])} with num_beams={beams}: beam search does not take it; "
                f"set {name}={off}"
            )
    if fields.get("stop_strings"):
        # Any number of tokens can hold one: the candidates of a step could all end at it, see below.
        raise InvalidRequest(
            f"stop_strings with num_beams={beams}: the engine fails when all candidates of a step end; "
            "leave them out, or use stop_token_ids"
        )
    groups = fields.get("num_beam_groups", 1)
    if beams % groups:
        raise InvalidRequest(f"num_beam_groups is {groups}, which does not divide num_beams ({beams})")
    if (groups > 1) != bool(fields.get("diversity_penalty")):
        raise InvalidRequest(
            f"num_beam_groups is {groups} and diversity_penalty {fields.get('diversity_penalty', 0.0):g}: set both "
            "(more than 1, not 0) for groups of beams, or neither"
        )
    if results > beams:
        raise InvalidRequest(f"num_return_sequences is {results}, more than num_beams ({beams}); lower it")
    ends, candidates = len(fields.get("stop_token_ids", ())), 2 * (beams // groups)
    if ends >= candidates:
        # When all candidates of a step end there, the engine raises in step(), for everybody (2026.4.1).
        raise InvalidRequest(
            f"stop_token_ids holds {ends} ids (the model's own included) with num_beams={beams}; a group of beams "
            f"looks at {candidates} candidates, and the engine fails when all of them end: give fewer, or more beams"
        )
