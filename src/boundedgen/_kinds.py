"""The kinds of request that a pipeline serves, as data: what the engine is loaded with, what every request has to say,
what one takes of each pool beyond its tokens, and what the engine breaks with it. One kind a pipeline.

The facts are measured with openvino-genai 2026.4.1 (docs/engine-facts.md). Whoever checks, reserves or loads reads the
kind; nobody asks which one it is. It goes to the engine's process as plain data (`spec`, `of`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import asdict, field, frozen

from boundedgen._arguments import kind_of, plain_str, reading, short, suggestion, whole_number
from boundedgen._scheduler_config import plain_properties

ASSISTANT_MOST: Final = 16  #: tokens; each step computes so many more a sequence, taken or not
_ASSISTANT: Final = 5  #: tokens, if nobody says
_WHOLE_PROMPTS: Final = 4096  #: tokens a step, which the longest prompt has to fit
_NGRAM_MOST: Final = 64
_NGRAM: Final = 3

_ONE: Final = "the engine serves one sequence a request with it"
_SINGLE: Final[Mapping[str, tuple[Any, str]]] = {
    "num_beams": (1, _ONE),
    "num_return_sequences": (1, _ONE),
}


@frozen
class Kind:
    """See the module's docstring. The default is plain text."""

    name: str = ""  #: "prompt_lookup" or "draft"; empty: nothing beside text
    always: Mapping[str, int] = field(factory=dict)  #: fields that every request has to set; callers may lower them
    #: Fields that the engine breaks with it: the value that switches each off, and why.
    off: Mapping[str, tuple[Any, str]] = field(factory=dict)
    scheduler: Mapping[str, Any] = field(factory=dict)  #: of its configuration, where nobody says otherwise
    scheduler_needs: Mapping[str, tuple[Any, str]] = field(factory=dict)  #: of it, the only value that works, and why
    own_stops: bool = False  #: stop strings are looked for by us, for the engine's own search raises in `step()`
    lookahead: int = 0  #: tokens of the KV pool that a sequence takes beyond prompt + new - 1
    linear_each: int = 1  #: linear-attention blocks that a sequence takes, without prefix caching
    hybrid: bool = True  #: it works on models with linear attention
    vision: bool = True  #: and on those that see
    counts: bool = True  #: the engine's count of requests is right, so that release can be proved by it
    assistant: int = 0  #: tokens at most that a step proposes beyond its own; 0: it makes one a step
    drafts: bool = False  #: how many are proposed in a step is known: as many as there may be
    draft: Mapping[str, Any] | None = None  #: models_path, device, properties and num_kv_blocks of the draft model

    def spec(self) -> dict[str, Any]:
        """Plain data of which `of` makes it again."""
        return asdict(self)

    def told(self, public: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        """For the black box. `public`: takes the secrets out of properties."""
        if not self.name:
            return {}
        fields: dict[str, Any] = dict(self.always)
        if self.draft is not None:
            fields |= {**self.draft, "properties": public(self.draft["properties"] or {})}
        return {self.name: fields}


TEXT: Final = Kind()


def of(spec: Mapping[str, Any] | None) -> Kind:
    """From what `spec` gave."""
    return TEXT if spec is None else Kind(**spec)


def prompt_lookup(given: object) -> Kind:
    """From the pipeline's argument `prompt_lookup`, True or a mapping. TypeError and ValueError name the field."""
    name = "prompt_lookup"
    if given is True:
        given = {}
    fields = _mapping(name, given, ("num_assistant_tokens", "max_ngram_size"))
    tokens = _number(name, fields, "num_assistant_tokens", _ASSISTANT, ASSISTANT_MOST)
    ngram = _number(name, fields, "max_ngram_size", _NGRAM, _NGRAM_MOST)
    return Kind(
        name=name,
        always={"num_assistant_tokens": tokens, "max_ngram_size": ngram},
        off={**_SINGLE, "min_new_tokens": (0, "the engine ends most of them early")},
        scheduler_needs={
            "enable_prefix_caching": (False, "it was not measured with prompt lookup"),
            "dynamic_split_fuse": (True, "without it answers are wrong once prompts wait for the next step"),
        },
        own_stops=True,
        lookahead=tokens,
        linear_each=tokens + 2,
        assistant=tokens,
    )


def draft(given: object) -> Kind:
    """From the pipeline's argument `draft`, a path or a mapping. TypeError and ValueError name the field."""
    name = "draft"
    if isinstance(given, str | os.PathLike):
        given = {"models_path": given}
    fields = _mapping(name, given, ("models_path", "device", "properties", "num_kv_blocks", "num_assistant_tokens"))
    tokens = _number(name, fields, "num_assistant_tokens", _ASSISTANT, ASSISTANT_MOST)
    blocks = fields.get("num_kv_blocks")
    if blocks is not None:
        blocks = _number(name, fields, "num_kv_blocks", 1, 2**62)
    given_properties = fields.get("properties")
    properties = None
    if given_properties is not None:
        properties = plain_properties(given_properties, name="draft['properties']")
    device = fields.get("device")
    if device is not None and not (isinstance(device, str) and device):
        raise TypeError(f"draft['device'] must be a name such as 'GPU' or 'CPU', not {short(device)}")
    return Kind(
        name=name,
        always={"num_assistant_tokens": tokens},
        off=_SINGLE,
        scheduler={"dynamic_split_fuse": False, "max_num_batched_tokens": _WHOLE_PROMPTS},
        scheduler_needs={
            "enable_prefix_caching": (False, "with a draft model the engine raises in step() once somebody samples"),
            "dynamic_split_fuse": (False, "the answer to a prompt that is taken in parts is wrong"),
        },
        hybrid=False,
        vision=False,
        counts=False,
        assistant=tokens,
        drafts=True,
        draft={
            "models_path": _model(fields.get("models_path")),
            "device": device,
            "properties": properties,
            "num_kv_blocks": blocks,
        },
    )


def _mapping(name: str, given: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of {', '.join(known)}, not {kind_of(given)}")
    with reading(name, TypeError, ours=(ValueError,)):
        plain = {plain_str(key) if isinstance(key, str) else key: value for key, value in given.items()}
        for key in plain:
            if key not in known:
                what = key if isinstance(key, str) else ""
                raise ValueError(f"{name} has no field {short(key)}{suggestion(what, known, {})}")
    return plain


def _number(name: str, fields: Mapping[str, Any], field_: str, usual: int, most: int) -> int:
    given = fields.get(field_, usual)
    number = whole_number(given)
    if number is None:
        raise TypeError(f"{name}[{field_!r}] must be a whole number, not {short(given)}")
    if not 1 <= number <= most:
        raise ValueError(f"{name}[{field_!r}] is {short(given)}; it must be at least 1 and at most {most}")
    return number


def _model(path: object) -> str:
    """The folder of a draft model. What is in it the engine checks while it loads; that it is one is seen here."""
    if not isinstance(path, str | os.PathLike):
        what = "None" if path is None else kind_of(path)
        raise TypeError(f"draft['models_path'] must be the path of a folder with the draft model, not {what}")
    folder = Path(os.path.abspath(os.fspath(path)))
    for file in ("openvino_model.xml", "openvino_tokenizer.xml"):
        if not (folder / file).is_file():
            raise ValueError(
                f"draft['models_path'] is {short(str(folder))}, where there is no {file}: give a folder with a model "
                "in OpenVINO's format and its tokenizer (a GGUF file cannot draft)"
            )
    return str(folder)
