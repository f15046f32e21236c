"""The constructor's arguments, checked and turned into what the pipeline is made of. Nothing is started here."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from attrs import frozen

from boundedgen._adapters import adapters_of
from boundedgen._arguments import kind_of, plain_str, reading, short
from boundedgen._bounds import SECONDS_MOST, Limits, seconds
from boundedgen._engine._devices import preflight
from boundedgen._errors import ModelLoadFailed
from boundedgen._grammar import GrammarChecker
from boundedgen._kind_options import Beside, chosen_kind
from boundedgen._kinds import Chosen
from boundedgen._scheduler_config import plain_properties, scheduler_fields
from boundedgen._text import GenAITokenizer
from boundedgen.abc import EngineHost, Tokenizer

if TYPE_CHECKING:
    pass

_SECRET = re.compile("key|token|secret|password|credential|encrypt", re.IGNORECASE)
CLOSING_SLACK = 2.0  #: seconds on top of the drain and the reap within which `close` is back
PATH_MOST = 4096  #: PATH_MAX of Linux
NO_ADAPTERS = "adapters are for a model that boundedgen loads; this pipeline has an engine of its own"
DEVICE_MOST = 256  #: "AUTO:GPU.1,GPU.0,CPU" and the like


@frozen(kw_only=True)
class Parts:
    """What a pipeline needs of the world."""

    host: EngineHost
    grammars: GrammarChecker | None  #: None: an engine of the caller's own, whose grammars are not checked
    configuration: Mapping[str, Any]  #: what the user asked for, for the black box; empty: an engine of their own
    kind: Chosen | None = None  #: of requests; None: plain text
    models_path: str = ""
    no_adapters: str = ""  #: why it can have none


def parts_of(
    models_path: str | os.PathLike[str] | None,
    scheduler_config: object,
    device: str,
    properties: Mapping[str, Any] | None,
    tokenizer_properties: Mapping[str, Any] | None,
    limits: Limits,
    engine: EngineHost | None,
    draft: object = None,
    prompt_lookup: object = None,
    policy: str = "reserve",
    adapters: object = None,
) -> Parts:
    """The engine's host, and the grammar checker that belongs to it."""
    if engine is not None:
        if not isinstance(engine, EngineHost):
            raise TypeError(f"engine must be a boundedgen.abc.EngineHost, not {kind_of(engine)}")
        for name, option in (("draft", draft), ("prompt_lookup", prompt_lookup)):
            if option is not None and option is not False:
                raise ValueError(f"{name} is for OpenVINO GenAI; an engine of your own (engine=) does not take it")
        if adapters is not None:
            raise ValueError(f"{NO_ADAPTERS}; leave them out beside engine=")
        return Parts(host=engine, grammars=None, configuration={}, no_adapters=NO_ADAPTERS)
    path, device = _path(models_path), _device(device)
    plan = scheduler_fields(scheduler_config)
    plain = plain_properties(properties, name="properties")
    for_tokenizer = plain_properties(tokenizer_properties, name="tokenizer_properties")
    beside = Beside(models_path=path, device=device, scheduler=plan.fields, properties=plain, policy=policy)
    kind = chosen_kind(draft, prompt_lookup, beside)
    why_not = _no_adapters(kind)
    if why_not and adapters is not None:
        raise ValueError(f"{why_not}; leave one of them out")
    chosen = adapters_of(adapters, path, limits)

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
        kind=None if kind is None else kind.spec(),
    )
    host.adapters = chosen
    asked = {"models_path": path, "device": device, "scheduler": plan.fields, "properties": without_secrets(plain)}
    asked["adapters"] = chosen.told()
    if kind is not None:
        asked[kind.kind.name] = told(kind)
    checker = GrammarChecker(path, for_tokenizer, limits)
    return Parts(host=host, grammars=checker, configuration=asked, kind=kind, models_path=path, no_adapters=why_not)


def _no_adapters(kind: Chosen | None) -> str:
    if kind is None or not kind.kind.not_adapted:
        return ""
    return f"adapters cannot be used with {kind.kind.name}: {kind.kind.not_adapted}"


def told(kind: Chosen) -> dict[str, Any]:
    """For the black box."""
    of_its_own = {name: without_secrets(v) if name == "properties" else v for name, v in kind.settings.items()}
    return {**kind.always, **of_its_own}


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


def drain_seconds(drain: float | timedelta) -> float:
    """How long `close` waits, in seconds; 0 for less. Checked in the caller's thread: the driver trusts it."""
    drain_s = seconds("drain", drain)
    if drain_s is None or math.isinf(drain_s):
        raise ValueError(f"drain is {short(drain)}; give a finite number of seconds, or a timedelta")
    return min(max(0.0, drain_s), SECONDS_MOST)
