"""The fields of a generation configuration: which there are, and what each of them accepts."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from attrs import frozen

from boundedgen._arguments import plain_str, reading, real_number, short, suggestion, whole_number
from boundedgen._bounds import Limits
from boundedgen._engine._releases import installed_release
from boundedgen._errors import InvalidRequest
from boundedgen._grammar_fields import structured
from boundedgen._kinds import Chosen
from boundedgen._refused_fields import REFUSED
from boundedgen._text import check_text

#: The engine's "not set" for sizes (openvino_genai, size_t -1).
UNSET: Final = 2**64 - 1
_SIZE_MAX: Final = 2**63 - 1
_F32_MAX: Final = 3.4e38
F32_LEAST: Final = 1.2e-38
_STOP_CRITERIA: Final = ("EARLY", "HEURISTIC", "NEVER")
_LONGEST_CRITERION: Final = max(map(len, _STOP_CRITERIA))


@frozen
class _Kind:
    """What one field accepts. `above`: the lower end itself is excluded; `below`: so is the upper."""

    what: str
    least: float = 0.0
    most: float = _SIZE_MAX
    above: bool = False
    below: bool = False

    def words(self) -> str:
        low = f"more than {self.least:g}" if self.above else f"at least {self.least:g}"
        high = f"less than {self.most:g}" if self.below else f"at most {self.most:g}"
        return f"{'a whole number' if self.what == 'whole' else 'a finite number'}, {low} and {high}"

    def holds(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        return low and (value < self.most if self.below else value <= self.most)


def _whole(least: int = 0, most: int = _SIZE_MAX) -> _Kind:
    return _Kind("whole", least, most)


def _real(least: float = -_F32_MAX, most: float = _F32_MAX, *, above: bool = False, below: bool = False) -> _Kind:
    return _Kind("real", least, most, above, below)


_FLAG: Final = _Kind("flag")
#: The engine gives one value a token whatever is asked, but takes memory for all: 2^31 - 1 ate 24 GB in a step.
LOGPROBS_MAX: Final = 20
#: Every field that a caller may set. Ranges are those of GenerationConfig::validate (2026.4.1), which checks the
#: sampling ones only while do_sample is on; here they always count, for the value that the engine sees: its floats are
#: 32 bits wide.
FIELDS: Final[Mapping[str, _Kind]] = {
    "max_new_tokens": _whole(1),
    "max_length": _whole(1),
    "min_new_tokens": _whole(0),
    "ignore_eos": _FLAG,
    "eos_token_id": _Kind("ids"),
    "stop_token_ids": _Kind("ids"),
    "stop_strings": _Kind("strings"),
    "include_stop_str_in_output": _FLAG,
    "apply_chat_template": _FLAG,
    "logprobs": _whole(0, LOGPROBS_MAX),
    "repetition_penalty": _real(F32_LEAST),
    "presence_penalty": _real(-2.0, 2.0),
    "frequency_penalty": _real(-2.0, 2.0),
    "num_beams": _whole(1),
    "num_beam_groups": _whole(1),
    "diversity_penalty": _real(),
    "length_penalty": _real(),
    "num_return_sequences": _whole(1),
    "no_repeat_ngram_size": _whole(1),
    "stop_criteria": _Kind("stop_criteria"),
    "do_sample": _FLAG,
    "temperature": _real(0.0),
    "top_p": _real(0.0, 1.0, above=True),
    "top_k": _whole(0),
    "min_p": _real(0.0, 1.0, below=True),
    "rng_seed": _whole(0, UNSET),
    "structured_output_config": _Kind("structured"),
}
#: Known to the engine, and refused (REFUSED says why): the values that switch them off are accepted and dropped.
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapters": (None,),
    "parsers": (None, [], ()),
    "echo": (None, False),
    "num_assistant_tokens": (None, 0),
    "assistant_confidence_threshold": (None, 0.0),
    "max_ngram_size": (None, 0),
    "branching_factor": (None, 1),
    "tree_depth": (None, 0),
    "pruning_ratio": (None, 0),
    "relevance_weight": (None, 0.5),
    "return_omni_outputs": (None, False),
}
#: Other APIs' names for ours.
_ALIASES: Final[Mapping[str, str]] = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "seed": "rng_seed",
    "n": "num_return_sequences",
    "best_of": "num_return_sequences",
    "json_schema": "structured_output_config",
    "regex": "structured_output_config",
    "grammar": "structured_output_config",
    "response_format": "structured_output_config",
    "top_logprobs": "logprobs",
}
#: What other APIs take beside the prompt, and where it goes here.
_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("timeout", "deadline", "max_time", "ttl"), "use bounds=Bounds(total=seconds)"),
    **{name: f"use bounds=Bounds({name}=seconds)" for name in ("total", "queued", "first_token", "next_token")},
    **dict.fromkeys(("streamer", "stream", "callback"), "iterate over the generation that submit returns"),
    **dict.fromkeys(("request_id", "id", "name"), "use label= for a name of yours; the generation has an id"),
    **dict.fromkeys(("user", "user_id"), "use owner="),
    **dict.fromkeys(("messages", "inputs", "input_ids", "prompts"), "give it as the first argument, prompt"),
    **dict.fromkeys(
        ("bounds", "lease", "owner", "priority", "label", "tools", "template_context"),
        "give it to submit, beside the configuration",
    ),
    **dict.fromkeys(("config", "sampling_params"), "use generation_config="),
    **dict.fromkeys(("lease_id", "lease_ttl"), "use lease=, with what pipeline.lease(owner, ttl=seconds) returns"),
    **dict.fromkeys(("images", "image", "videos", "audios"), "this version serves text only"),
    "draft_model": "a draft model is an option of the pipeline: BoundedPipeline(..., draft=FOLDER)",
}
_OF_SEVERAL: Final = ("num_beams", "num_return_sequences", "num_beam_groups", "diversity_penalty")


class FieldChecks:
    """Checks values one by one."""

    def __init__(self, limits: Limits, vocab_size: int | None, chosen: Chosen | None = None) -> None:
        self._limits = limits
        self._vocab_size = vocab_size
        self._own: dict[str, _Kind] = {}
        self._not_with: tuple[str, ...] = ()
        if chosen is not None:
            self._own = {name: _whole(*chosen.range_of(name)) for name in chosen.kind.fields}
            self._not_with = (*chosen.kind.without, *(_OF_SEVERAL if chosen.kind.single else ()))

    def layer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `given` sets, checked. The names are all checked before the values."""
        plain: dict[str, Any] = {}
        with reading("generation_config"):
            for name, value in given.items():
                plain[_known_name(name, value, self._own)] = value
        return {n: self.value(n, v) for n, v in plain.items() if v is not None and self._counts(n, v)}

    def _counts(self, name: str, value: Any) -> bool:
        """A field that only the pipeline's kind takes counts unless it is at the engine's "not set"."""
        return name in FIELDS or (name in self._own and not _is_neutral(name, value))

    def usable(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The model's own defaults. Nobody asked for them, so one that cannot be used refuses nobody."""
        kept: dict[str, Any] = {}
        for name, value in defaults.items():
            if name in FIELDS and name not in ("max_length", *self._not_with) and value is not None:
                try:
                    kept[name] = self.value(name, value)
                except InvalidRequest:
                    continue
        return kept

    def model_stop_ids(self, defaults: Mapping[str, Any]) -> list[int]:
        return [int(i) for i in self.usable(defaults).get("eos_token_id", [])]

    def value(self, name: str, value: Any) -> Any:
        """As plain data. Raises InvalidRequest, which names the field."""
        with reading(name):
            return self._value(name, value)

    def _value(self, name: str, value: Any) -> Any:
        kind = self._own.get(name) or FIELDS[name]
        match kind.what:
            case "flag":
                return flag(name, value)
            case "whole" | "real":
                return _number(name, value, kind)
            case "ids":
                return self._ids(name, value)
            case "strings":
                return self._strings(name, value)
            case "stop_criteria":
                return _stop_criteria(value)
            case _:
                return structured(value, self._limits)

    def _ids(self, name: str, value: Any) -> list[int]:
        one = name == "eos_token_id" and whole_number(value) is not None
        most = _SIZE_MAX if self._vocab_size is None else self._vocab_size - 1
        kind = _whole(0, most)
        ids = [value] if one else _collection(name, value, self._limits.stop_token_ids, "ids", "stop_token_ids")
        return sorted({int(_number(name, v, kind)) for v in ids})

    def _strings(self, name: str, value: Any) -> list[str]:
        strings = _collection(name, value, self._limits.stop_strings, "strings", "stop_strings")
        return sorted({_stop_string(name, s, self._limits) for s in strings})


def _is_neutral(name: str, value: Any) -> bool:
    return any(value is n or (type(value) is type(n) and value == n) for n in NEUTRAL[name])


def _known_name(given: object, value: Any, own: Collection[str]) -> str:
    name = plain_str(given) if isinstance(given, str) else ""
    if name not in FIELDS and name not in NEUTRAL:
        known = _ELSEWHERE.get(name)
        remedy = f"; {known}" if known else suggestion(name, FIELDS, _ALIASES)
        raise InvalidRequest(f"{short(given)} is not a field of a generation configuration{remedy}")
    if value is not None and name in FIELDS and name in installed_release().lacks:
        raise InvalidRequest(
            f"{name} came with a later release than openvino-genai {installed_release().name}; upgrade it"
        )
    if name in NEUTRAL and name not in own:
        with reading(name):
            if not _is_neutral(name, value):
                raise InvalidRequest(f"{name} {REFUSED[name].words()}")
    return name


def flag(name: str, value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise InvalidRequest(f"{name} must be True or False, not {short(value)}")


def _number(name: str, value: Any, kind: _Kind) -> int | float:
    plain = whole_number(value) if kind.what == "whole" else real_number(value)
    if plain is None:
        raise InvalidRequest(f"{name} must be {kind.words()}, not {short(value)}")
    seen = plain if isinstance(plain, int) else _as_engine_float(plain)
    if not kind.holds(seen):
        seen_as = f" ({seen:g} to the engine, in 32 bits)" if kind.holds(plain) else ""
        raise InvalidRequest(f"{name} is {short(value)}{seen_as}; it must be {kind.words()}")
    return seen


def _as_engine_float(value: float) -> float:
    """The float of 32 bits that it becomes in the engine."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _collection(name: str, value: Any, most: int, unit: str, limit: str) -> Collection[Any]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidRequest(f"{name} must be a list, a tuple or a set, not {short(value)}")
    if len(value) > most:
        raise InvalidRequest(f"{name} holds {len(value)} {unit}; at most {most} (Limits.{limit})")
    return value


def _stop_string(name: str, value: Any, limits: Limits) -> str:
    if not isinstance(value, str) or not (plain := plain_str(value)):
        raise InvalidRequest(f"{name} must hold strings of at least one character, not {short(value)}")
    if len(plain) > limits.stop_string_length:
        raise InvalidRequest(
            f"{name} holds a string of {len(plain)} characters; at most {limits.stop_string_length} "
            "(Limits.stop_string_length)"
        )
    return check_text(name, plain)


def _stop_criteria(value: Any) -> str:
    name = value if isinstance(value, str) else getattr(value, "name", None)
    plain = plain_str(name) if isinstance(name, str) else ""
    if len(plain) <= _LONGEST_CRITERION and plain.upper() in _STOP_CRITERIA:
        return plain.upper()
    raise InvalidRequest(f"stop_criteria must be one of {', '.join(_STOP_CRITERIA)}, not {short(value)}")
