"""The fields of a generation configuration: which there are, and what each of them accepts."""

from __future__ import annotations

import difflib
import json
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from boundedgen._bounds import Limits
from boundedgen._errors import InvalidRequest
from boundedgen._prompt import short
from boundedgen._text import check_text

#: The engine's "not set" for sizes (openvino_genai, size_t -1).
UNSET: Final = 2**64 - 1
_SIZE_MAX: Final = 2**63 - 1
_F32_MAX: Final = 3.4e38
F32_LEAST: Final = 1.2e-38
_STOP_CRITERIA: Final = ("EARLY", "HEURISTIC", "NEVER")
_GRAMMARS: Final = ("json_schema", "regex", "grammar")
_OTHER_GRAMMARS: Final = ("structural_tags_config", "compound_grammar")


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
#: sampling ones only while do_sample is on; here they always count. Engine floats are 32 bits wide.
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
#: Known to the engine, not supported yet: the values that switch them off are accepted and dropped.
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
}


class FieldChecks:
    """Checks values one by one."""

    def __init__(self, limits: Limits, vocab_size: int | None) -> None:
        self._limits = limits
        self._vocab_size = vocab_size

    def layer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `given` sets, checked. The names are all checked before the values."""
        for name in given:
            _check_name(name, given[name])
        return {n: self.value(n, v) for n, v in given.items() if v is not None and n in FIELDS}

    def usable(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The model's own defaults. Nobody asked for them, so one that cannot be used refuses nobody."""
        kept: dict[str, Any] = {}
        for name, value in defaults.items():
            if name in FIELDS and name != "max_length" and value is not None:
                try:
                    kept[name] = self.value(name, value)
                except InvalidRequest:
                    continue
        return kept

    def model_stop_ids(self, defaults: Mapping[str, Any]) -> list[int]:
        return [int(i) for i in self.usable(defaults).get("eos_token_id", [])]

    def value(self, name: str, value: Any) -> Any:
        kind = FIELDS[name]
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
                return _structured(value, self._limits)

    def _ids(self, name: str, value: Any) -> list[int]:
        one = name == "eos_token_id" and isinstance(value, numbers.Integral)
        most = _SIZE_MAX if self._vocab_size is None else self._vocab_size - 1
        kind = _whole(0, most)
        return sorted({int(_number(name, v, kind)) for v in ([value] if one else _collection(name, value))})

    def _strings(self, name: str, value: Any) -> list[str]:
        strings = [_stop_string(name, s, self._limits) for s in _collection(name, value)]
        if len(strings) > self._limits.stop_strings:
            raise InvalidRequest(
                f"{name} holds {len(strings)} strings; at most {self._limits.stop_strings} (Limits.stop_strings)"
            )
        return sorted(set(strings))


def _check_name(name: str, value: Any) -> None:
    if name in FIELDS:
        return
    if name in NEUTRAL:
        if not any(value is n or (type(value) is type(n) and value == n) for n in NEUTRAL[name]):
            raise InvalidRequest(f"{name} is not supported yet; leave it out")
        return
    raise InvalidRequest(f"{name!r} is not a field of a generation configuration{suggestion(name, FIELDS, _ALIASES)}")


def suggestion(name: object, known: Iterable[str], aliases: Mapping[str, str]) -> str:
    """'; did you mean …?', or nothing."""
    near = [aliases[str(name)]] if name in aliases else difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def flag(name: str, value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise InvalidRequest(f"{name} must be True or False, not {short(value)}")


def _number(name: str, value: Any, kind: _Kind) -> int | float:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if kind.what == "whole" else numbers.Real):
        raise InvalidRequest(f"{name} must be {kind.words()}, not {short(value)}")
    plain = _as_int(value) if kind.what == "whole" else _as_float(value)
    if not math.isfinite(plain) or not kind.holds(plain):
        raise InvalidRequest(f"{name} is {short(value)}; it must be {kind.words()}")
    return plain


def _as_int(value: Any) -> int:
    return int(value)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _collection(name: str, value: Any) -> Collection[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return value
    raise InvalidRequest(f"{name} must be a list, a tuple or a set, not {short(value)}")


def _stop_string(name: str, value: Any, limits: Limits) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must hold strings of at least one character, not {short(value)}")
    if len(value) > limits.stop_string_length:
        raise InvalidRequest(
            f"{name} holds a string of {len(value)} characters; at most {limits.stop_string_length} "
            "(Limits.stop_string_length)"
        )
    return check_text(name, value)


def _stop_criteria(value: Any) -> str:
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if isinstance(name, str) and name.upper() in _STOP_CRITERIA:
        return name.upper()
    raise InvalidRequest(f"stop_criteria must be one of {', '.join(_STOP_CRITERIA)}, not {short(value)}")


def _structured(value: Any, limits: Limits) -> dict[str, str]:
    name = "structured_output_config"
    read: Callable[[str], Any] = value.get if isinstance(value, Mapping) else lambda n: getattr(value, n, None)
    if not isinstance(value, Mapping) and type(value).__name__ != "StructuredOutputConfig":
        raise InvalidRequest(f"{name} must be a StructuredOutputConfig or a mapping, not {type(value).__name__}")
    for other in _OTHER_GRAMMARS:
        if read(other) is not None:
            raise InvalidRequest(f"{name}.{other} is not supported yet; use one of {', '.join(_GRAMMARS)}")
    unknown = [k for k in value if k not in _GRAMMARS + _OTHER_GRAMMARS] if isinstance(value, Mapping) else []
    if unknown:
        raise InvalidRequest(f"{name} has no field {unknown[0]!r}{suggestion(unknown[0], _GRAMMARS, {})}")
    given = [k for k in _GRAMMARS if read(k) is not None]
    if len(given) != 1:
        raise InvalidRequest(f"{name} must set exactly one of {', '.join(_GRAMMARS)}; it sets {len(given)}")
    return {given[0]: _grammar_text(f"{name}.{given[0]}", read(given[0]), limits)}


def _grammar_text(name: str, value: Any, limits: Limits) -> str:
    if isinstance(value, Mapping) and name.endswith("json_schema"):
        try:
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{name} must hold plain JSON types: {type(error).__name__}") from None
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be a str of at least one character, not {type(value).__name__}")
    size = len(check_text(name, value).encode())
    if size > limits.grammar_bytes:
        raise InvalidRequest(f"{name} is {size} bytes; at most {limits.grammar_bytes} (Limits.grammar_bytes)")
    return value
