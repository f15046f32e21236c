"""The constructor's arguments, checked and turned into what the pipeline is made of. Nothing is started here."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from attrs import evolve, frozen

from boundedgen import _kinds as kinds
from boundedgen._adapters import adapters_of
from boundedgen._arguments import kind_of, plain_str, reading, short
from boundedgen._bounds import SECONDS_MOST, Limits, seconds
from boundedgen._engine._devices import preflight
from boundedgen._errors import ModelLoadFailed
from boundedgen._grammar import GrammarChecker
from boundedgen._kinds import TEXT, Kind
from boundedgen._scheduler_config import SchedulerPlan, plain_properties, scheduler_fields
from boundedgen._settings import Settings
from boundedgen._text import GenAITokenizer
from boundedgen.abc import EngineHost, Tokenizer

_SECRET = re.compile("key|token|secret|password|credential|encrypt", re.IGNORECASE)
CLOSING_SLACK = 2.0  #: seconds on top of the drain and the reap within which `close` is back
PATH_MOST = 4096  #: PATH_MAX of Linux
NO_ADAPTERS = "adapters are for a model that boundedgen loads; this pipeline has an engine of its own"
WITH_DRAFT = "adapters cannot be used with draft: the engine puts them on the draft model too"
DEVICE_MOST = 256  #: "AUTO:GPU.1,GPU.0,CPU" and the like


@frozen(kw_only=True)
class Parts:
    """What a pipeline needs of the world."""

    host: EngineHost
    grammars: GrammarChecker | None  #: None: an engine of the caller's own, whose grammars are not checked
    configuration: Mapping[str, Any]  #: what the user asked for, for the black box; empty: an engine of their own
    models_path: str = ""
    no_adapters: str = ""  #: why it can have none

    def told(self, settings: Settings) -> dict[str, Any]:
        """For the black box."""
        return {**self.configuration, "bounds": settings.bounds, "admission": settings.admission}


def parts_of(
    models_path: str | os.PathLike[str] | None,
    scheduler_config: object,
    device: str,
    properties: Mapping[str, Any] | None,
    tokenizer_properties: Mapping[str, Any] | None,
    limits: Limits,
    engine: EngineHost | None,
    adapters: object = None,
    kind: Kind = TEXT,
) -> Parts:
    """The engine's host, and the grammar checker that belongs to it."""
    if engine is not None:
        if kind.name:
            raise ValueError(f"{kind.name} is for the engine of this library; with engine= leave it out")
        if not isinstance(engine, EngineHost):
            raise TypeError(f"engine must be a boundedgen.abc.EngineHost, not {kind_of(engine)}")
        if adapters is not None:
            raise ValueError(f"{NO_ADAPTERS}; leave them out beside engine=")
        return Parts(host=engine, grammars=None, configuration={}, no_adapters=NO_ADAPTERS)
    path, device = _path(models_path), _device(device)
    plan = of_kind(scheduler_fields(scheduler_config), kind)
    plain = plain_properties(properties, name="properties")
    for_tokenizer = plain_properties(tokenizer_properties, name="tokenizer_properties")
    if (why_not := "" if kind.draft is None else WITH_DRAFT) and adapters is not None:
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
        kind=kind,
    )
    host.adapters = chosen
    asked = {
        "models_path": path,
        "device": device,
        "scheduler": plan.fields,
        "properties": without_secrets(plain),
        "adapters": chosen.told(),
        **kind.told(without_secrets),
    }
    checker = GrammarChecker(path, for_tokenizer, limits)
    return Parts(host=host, grammars=checker, configuration=asked, models_path=path, no_adapters=why_not)


def kind_of_pipeline(draft: object, prompt_lookup: object) -> Kind:
    """From the constructor's arguments, of which one at most is given. Raises TypeError or ValueError."""
    if prompt_lookup is None or prompt_lookup is False:
        return TEXT if draft is None else kinds.draft(draft)
    if draft is not None:
        raise ValueError("draft and prompt_lookup are both given; the engine takes one of them")
    return kinds.prompt_lookup(prompt_lookup)


def of_kind(plan: SchedulerPlan, kind: Kind) -> SchedulerPlan:
    """With what the kind sets where nobody says otherwise. ValueError for what the engine breaks with it."""
    for name, (needed, why) in kind.scheduler_needs.items():
        if plan.fields.get(name, needed) != needed:
            raise ValueError(f"scheduler_config.{name} is {plan.fields[name]} with {kind.name}: {why}; leave it out")
    if kind.draft is not None and not plan.fields.get("num_kv_blocks"):
        raise ValueError(
            "scheduler_config.num_kv_blocks is needed with draft: the two models' caches cannot be shared out by bytes"
        )
    return evolve(plan, fields={**kind.scheduler, **plan.fields})


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
