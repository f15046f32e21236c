"""The constructor's options that choose a kind of requests: checked against the table of kinds, as plain data.

Nothing is started here. What only the engine's process can tell (a hybrid model, the words of two tokenizers, what the
release can prove) is refused there, as a ModelLoadFailed that no other attempt can heal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from boundedgen._arguments import kind_of, plain_str, reading, short, suggestion, whole_number
from boundedgen._engine._model_files import model_defect
from boundedgen._kinds import DRAFT, PROMPT_LOOKUP, Chosen, Kind
from boundedgen._scheduler_config import plain_properties

_BATCHED = 256  # SchedulerConfig's max_num_batched_tokens
_BLOCKS_MOST = 2**63
_PATH_MOST = 4096
_OF_DRAFT = ("models_path", "device", "properties", "num_kv_blocks", *DRAFT.fields)


@frozen(kw_only=True)
class Beside:
    """What the options have to go with: the rest of the constructor's arguments, checked."""

    models_path: str
    device: str
    scheduler: Mapping[str, Any]
    properties: Mapping[str, Any]
    policy: str  #: of Admission


def chosen_kind(draft: object, prompt_lookup: object, beside: Beside) -> Chosen | None:
    """The kind that the pipeline is made for; None: plain text. TypeError and ValueError name the option."""
    lookup = _lookup(prompt_lookup)
    drafted = None if draft is None else _draft(draft, beside)
    if lookup is not None and drafted is not None:
        raise ValueError("draft and prompt_lookup cannot be given together: the engine takes its candidates from one")
    chosen = lookup or drafted
    if chosen is not None:
        _check(chosen.kind, chosen, beside)
    return chosen


def _lookup(given: object) -> Chosen | None:
    if given is None or given is False:
        return None
    if given is True:
        given = {}
    fields = _items("prompt_lookup", given, tuple(PROMPT_LOOKUP.fields), "True, None or a mapping of its numbers")
    return Chosen(kind=PROMPT_LOOKUP, always=_numbers(PROMPT_LOOKUP, fields))


def _draft(given: object, beside: Beside) -> Chosen:
    if isinstance(given, str | os.PathLike):
        given = {"models_path": given}
    fields = _items("draft", given, _OF_DRAFT, "the path of an IR folder, or a mapping with models_path")
    device = fields.get("device", beside.device)
    if not isinstance(device, str) or not (device := plain_str(device)):
        raise TypeError(f"draft['device'] must be a name such as 'GPU' or 'CPU', not {short(device)}")
    properties = fields.get("properties")
    blocks = fields.get("num_kv_blocks", beside.scheduler.get("num_kv_blocks", 0))
    settings = {
        "models_path": _folder(fields.get("models_path"), beside),
        "device": device,
        "properties": dict(beside.properties) if properties is None else _properties(properties),
        "num_kv_blocks": _whole("draft['num_kv_blocks']", blocks, 0, _BLOCKS_MOST),
    }
    return Chosen(kind=DRAFT, always=_numbers(DRAFT, fields), settings=settings)


def _items(name: str, given: object, known: tuple[str, ...], what: str) -> dict[str, Any]:
    """What is set in it. The names are all checked before the values."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be {what}, not {kind_of(given)}")
    found: dict[str, Any] = {}
    with reading(name, TypeError, ours=(ValueError,)):
        for key, value in given.items():
            plain = plain_str(key) if isinstance(key, str) else ""
            if plain not in known:
                raise ValueError(f"{name} has no field {short(key)}{suggestion(plain, known, {})}")
            found[plain] = value
    return {key: value for key, value in found.items() if value is not None}


def _numbers(kind: Kind, fields: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: _whole(f"{kind.name}[{name!r}]", fields.get(name, kind.defaults[name]), *limits)
        for name, limits in kind.fields.items()
    }


def _whole(name: str, value: object, least: int, most: int) -> int:
    with reading(name, TypeError):
        number = whole_number(value)
    if number is None:
        raise TypeError(f"{name} must be a whole number, not {short(value)}")
    if not least <= number <= most:
        raise ValueError(f"{name} is {short(value)}; it must be at least {least} and at most {most}")
    return number


def _properties(given: Any) -> dict[str, Any]:
    return plain_properties(given, name="draft['properties']")


def _folder(given: object, beside: Beside) -> str:
    name = "draft['models_path']"
    if not isinstance(given, str | os.PathLike):
        what = "missing" if given is None else f"a {kind_of(given)}"
        raise TypeError(f"{name} is {what}; give the path of an IR folder with its tokenizer")
    with reading(name, TypeError):
        path = os.fspath(given)
    plain = plain_str(path) if isinstance(path, str) else ""
    if not 0 < len(plain) <= _PATH_MOST or not plain.isprintable():
        raise ValueError(f"{name} is {short(path)}; give a path that a folder can have, as a str")
    folder = Path(os.path.abspath(plain))
    if folder.suffix.lower() == ".gguf" and not folder.is_dir():
        raise ValueError(f"{name} is a GGUF file, which the engine takes for no draft model: export it to an IR folder")
    if (defect := model_defect(folder)) is not None:
        raise ValueError(f"{name}: {defect}")
    if not (folder / "openvino_model.xml").is_file():
        raise ValueError(f"{name} holds a vision model: a draft model is one of text only")
    return str(folder)


# --- together with the rest ------------------------------------------------------------------------------------------


def _check(kind: Kind, chosen: Chosen, beside: Beside) -> None:
    for why, holds in _refusals(kind):
        if why and holds(beside):
            raise ValueError(f"{kind.name} cannot be used here: {why}")
    if kind.extra_pool and not (beside.scheduler.get("num_kv_blocks") and chosen.settings["num_kv_blocks"]):
        raise ValueError(
            f"{kind.name} needs scheduler_config.num_kv_blocks, and num_kv_blocks of its own if it is to be another "
            "number: bytes would be divided between the two models in the engine's own way"
        )
    for field, off in kind.without_scheduler.items():
        if beside.scheduler.get(field, off.value) != off.value:
            raise ValueError(f"{kind.name} cannot be used with scheduler_config.{field}: {off.why}")
    room, least = int(beside.scheduler.get("max_num_batched_tokens", _BATCHED)), chosen.drafted + 2
    if not kind.whole_steps and room < least:
        raise ValueError(
            f"scheduler_config.max_num_batched_tokens is {room}; with {kind.name} and num_assistant_tokens="
            f"{chosen.drafted} a step needs room for at least {least}"
        )


def _refusals(kind: Kind) -> tuple[tuple[str, Callable[[Beside], bool]], ...]:
    return (
        (
            kind.not_adaptive and f"Admission('adaptive'): {kind.not_adaptive}",
            lambda beside: beside.policy == "adaptive",
        ),
        (kind.not_vision, lambda beside: (Path(beside.models_path) / "openvino_language_model.xml").is_file()),
        (kind.not_gguf, lambda beside: beside.models_path.lower().endswith(".gguf")),
    )
