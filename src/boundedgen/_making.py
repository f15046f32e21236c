"""The constructor's arguments, checked and turned into what the pipeline is made of. Nothing is started here."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, final

from attrs import frozen

from boundedgen._arguments import kind_of, names_unknown_keywords, plain_str, reading, short
from boundedgen._bounds import SECONDS_MOST, Bounds, Limits, seconds
from boundedgen._engine._devices import preflight
from boundedgen._errors import ModelLoadFailed
from boundedgen._grammar import GrammarChecker
from boundedgen._restart import RestartPolicy
from boundedgen._scheduler_config import plain_properties, scheduler_fields
from boundedgen._text import GenAITokenizer
from boundedgen.abc import EngineHost, Tokenizer

POLICIES = ("reserve", "engine")
_SECRET = re.compile("key|token|secret|password|credential|encrypt", re.IGNORECASE)
CLOSING_SLACK = 2.0  #: seconds on top of the drain and the reap within which `close` is back
PATH_MOST = 4096  #: PATH_MAX of Linux
DEVICE_MOST = 256  #: "AUTO:GPU.1,GPU.0,CPU" and the like


@final
@names_unknown_keywords
@frozen(kw_only=True)
class Admission:
    """How sequences are let into the engine.

    "reserve": a sequence enters once every cache pool has room for its whole prompt and output beside all that is
    held. The engine's own preemption, which crashes, is never needed.
    "engine": only `Limits.running_max` counts, and overflow is left to the engine. For tests and for the brave.
    """

    policy: str = "reserve"  #: "reserve" or "engine"

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.policy, str) or plain_str(self.policy) not in POLICIES:
            raise ValueError(
                f"Admission.policy is {short(self.policy)}; this version knows {', '.join(map(repr, POLICIES))}"
            )


@frozen(kw_only=True)
class Parts:
    """What a pipeline needs of the world."""

    host: EngineHost
    grammars: GrammarChecker | None  #: None: an engine of the caller's own, whose grammars are not checked
    configuration: Mapping[str, Any]  #: what the user asked for, for the black box; empty: an engine of their own


def parts_of(
    models_path: str | os.PathLike[str] | None,
    scheduler_config: object,
    device: str,
    properties: Mapping[str, Any] | None,
    tokenizer_properties: Mapping[str, Any] | None,
    limits: Limits,
    engine: EngineHost | None,
) -> Parts:
    """The engine's host, and the grammar checker that belongs to it."""
    if engine is not None:
        if not isinstance(engine, EngineHost):
            raise TypeError(f"engine must be a boundedgen.abc.EngineHost, not {kind_of(engine)}")
        return Parts(host=engine, grammars=None, configuration={})
    path, device = _path(models_path), _device(device)
    plan = scheduler_fields(scheduler_config)
    plain = plain_properties(properties, name="properties")
    for_tokenizer = plain_properties(tokenizer_properties, name="tokenizer_properties")

    def tokenizer() -> Tokenizer:
        # A GGUF file that is cut off would take this process with it (docs/engine-facts.md).
        if (defect := preflight(path, device)) is not None:
            raise ModelLoadFailed(defect.text)
        return GenAITokenizer(path, for_tokenizer)

    from boundedgen._engine._host import GenAIHost

    host = GenAIHost(
        path,
        plan.fields,
        device,
        plain,
        tokenizer_properties=for_tokenizer,
        limits=limits,
        tokenizer=tokenizer,
        insist_prefix_caching=plan.insist_prefix_caching,
    )
    asked = {"models_path": path, "device": device, "scheduler": plan.fields, "properties": without_secrets(plain)}
    return Parts(host=host, grammars=GrammarChecker(path, for_tokenizer, limits), configuration=asked)


def without_secrets(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "…" if _SECRET.search(name) else value for name, value in properties.items()}


def _path(models_path: object) -> str:
    if not isinstance(models_path, str | os.PathLike):
        what = "None" if models_path is None else kind_of(models_path)
        raise TypeError(f"models_path must be the path of an IR folder or of a GGUF file, not {what}")
    with reading("models_path", TypeError):
        path = os.fspath(models_path)
    plain = plain_str(path) if isinstance(path, str) else ""
    if not plain or "\0" in plain or len(plain) > PATH_MOST:
        raise ValueError(f"models_path is {short(path)}; give a path that a file can have, as a str")
    return os.path.abspath(plain)


def _device(device: object) -> str:
    if not isinstance(device, str) or not 0 < len(plain := plain_str(device)) <= DEVICE_MOST:
        raise TypeError(f"device must be a name such as 'GPU', 'GPU.1' or 'CPU', not {short(device)}")
    return plain


def checked(
    limits: Limits, bounds: Bounds, lease_ttl: Any, admission: Admission, restart: RestartPolicy
) -> float | None:
    """Types and sense of the pipeline's own settings; the lease's ttl in seconds."""
    for name, value, kind in (
        ("limits", limits, Limits),
        ("bounds", bounds, Bounds),
        ("admission", admission, Admission),
        ("restart", restart, RestartPolicy),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {kind_of(value)}")
    if bounds.total is None or math.isinf(bounds.total):
        raise ValueError(
            "bounds.total of a pipeline must be finite: every generation has to end; for example Bounds(total=600)"
        )
    ttl = seconds("lease_ttl", lease_ttl)
    if ttl is not None:
        check_ttl("lease_ttl", ttl, limits)
    return ttl


def check_ttl(name: str, ttl: float, limits: Limits) -> float:
    if not 0 < ttl <= limits.lease_ttl_max:
        raise ValueError(
            f"{name} is {ttl:g} s; it must be more than 0 and at most Limits.lease_ttl_max ({limits.lease_ttl_max:g} s)"
        )
    return ttl


def drain_seconds(drain: float | timedelta) -> float:
    """How long `close` waits, in seconds; 0 for less. Checked in the caller's thread: the driver trusts it."""
    drain_s = seconds("drain", drain)
    if drain_s is None or math.isinf(drain_s):
        raise ValueError(f"drain is {short(drain)}; give a finite number of seconds, or a timedelta")
    return min(max(0.0, drain_s), SECONDS_MOST)
