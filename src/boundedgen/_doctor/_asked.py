"""What the doctor is asked, checked: the arguments of the pipeline that somebody wants to build."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from attrs import field, frozen

from boundedgen._arguments import plain_str
from boundedgen._bounds import Limits
from boundedgen._scheduler_config import SchedulerPlan, plain_properties, scheduler_fields

USUAL_TOKENS = 4096  #: prompt and answer of a sequence, where nobody says and the model takes so many
_SIZES = ("num_kv_blocks", "cache_size")


@final
@frozen(kw_only=True)
class Asked:
    """`model` None: the machine alone."""

    model: str | None = None
    device: str = "GPU"
    scheduler: SchedulerPlan
    sized: bool = False  #: the user says how large the cache is; else the library's default counts
    properties: Mapping[str, Any]
    tokens: int  #: of a sequence: prompt and answer
    sequences: int | None = None  #: that are wanted at once; None: as many as fit, within reason
    adapters: Mapping[str, Any] = field(factory=dict)  #: path -> weight, of the lane
    device_lock: str | None = None
    beside: bool = False  #: load, whoever else runs an engine there
    boot_s: float  #: that the engine may take until it is ready


def asked(
    model: str | None = None,
    *,
    device: str = "GPU",
    scheduler: str | None = None,
    properties: str | None = None,
    tokens: int | None = None,
    sequences: int | None = None,
    adapters: str | None = None,
    device_lock: str | None = None,
    beside: bool = False,
    boot: float | None = None,
) -> Asked:
    """From the command line. `scheduler`, `properties`, `adapters`: JSON, or a file of it; one adapter is its file.

    Raises TypeError or ValueError.
    """
    settings = _json("--scheduler", scheduler)
    if not device:
        raise ValueError("--device is empty; give a device as OpenVINO names it: GPU, GPU.1, CPU")
    for name, number in (("--max-tokens", tokens), ("--sequences", sequences)):
        if number is not None and number < (least := 2 if name == "--max-tokens" else 1):
            raise ValueError(f"{name} is {number}; it must be at least {least}")
    path = None if model is None else os.path.abspath(plain_str(model))
    return Asked(
        model=path,
        device=device,
        scheduler=scheduler_fields(settings),
        sized=any(settings.get(name) for name in _SIZES),
        properties=plain_properties(_json("--properties", properties), name="--properties"),
        tokens=tokens or _usual_tokens(path),
        sequences=sequences,
        adapters=_adapters(adapters),
        device_lock=None if device_lock is None else os.path.abspath(device_lock),
        beside=beside,
        boot_s=Limits().boot if boot is None else Limits(boot=boot).boot,
    )


def _adapters(given: str | None) -> dict[str, Any]:
    if given is None or not given.endswith(".safetensors"):
        return _json("--adapters", given)
    return {given: 1.0}


def _json(option: str, given: str | None) -> dict[str, Any]:
    if given is None:
        return {}
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
        fields = json.loads(text)
    except OSError as error:
        raise ValueError(f"{option}: {given} is no JSON object, nor a file: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{option} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{option} must be a JSON object, of names and values")
    return fields


def _usual_tokens(model: str | None) -> int:
    """No more than the model was made for, where its config.json says that."""
    try:
        config = json.loads(Path(model or "", "config.json").read_text(encoding="utf-8"))
        most = config.get("max_position_embeddings") or config["text_config"]["max_position_embeddings"]
        return max(2, min(USUAL_TOKENS, int(most)))
    except Exception:  # whatever is in there
        return USUAL_TOKENS
