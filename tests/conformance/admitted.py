"""Where the simulated engine is known to differ from the real one: all of it, as data, each with its reason."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from conformance.scripts import Script, Settings


@frozen
class Admitted:
    """In scripts to which it `applies`, these keys of the records are not compared; None: only the ends are."""

    name: str
    reason: str
    keys: frozenset[str] | None
    applies: Callable[[Settings, Script], bool]


def _beams(settings: Settings, script: Script) -> bool:
    return any(one.config.get("num_beams", 1) > 1 for one in script.admissions())


def _repeated(settings: Settings, script: Script) -> bool:
    texts = [one.words for one in script.admissions()]
    return bool(settings.scheduler.get("enable_prefix_caching")) and len(set(texts)) < len(texts)


ADMITTED = (
    Admitted(
        "beams",
        "beams share blocks as far as their texts are the same, and drop each other; the simulated engine counts them "
        "as samples, which share the prompt only",
        frozenset({"usage"}),
        _beams,
    ),
    Admitted(
        "prefix hits",
        "the simulated engine has no prefix cache: of a prompt that was seen before it computes every token, so that "
        "all comes some steps later, and it shares no block",
        None,
        _repeated,
    ),
)

#: What is run on neither, and why.
NOT_RUN = {
    "requests of several sequences in a cache that overflows": "the engine's preemption of them goes by block tables "
    "that it has broken itself: it crashes, raises, or goes on with other blocks, not twice the same",
    "a hybrid model whose KV pool overflows": "the same code crashes with plain greedy requests there",
    "a repeated prompt on a hybrid model with prefix caching": "a finding: it poisons the engine or gives other tokens",
}


def of(settings: Settings, script: Script) -> list[Admitted]:
    return [one for one in ADMITTED if one.applies(settings, script)]
