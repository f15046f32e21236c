"""What this library does not take from a configuration of the engine's: why, and what to do instead. Data.

What the engine makes of each of them is watched by tests/genai/test_every_field.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen


@frozen
class Refused:
    """A field of the engine's, unless it is switched off."""

    why: str
    instead: str

    def words(self) -> str:
        return f"is refused: {self.why}; {self.instead}"


_NEVER_ENDS: Final = "the engine never ends such a request without a draft model; with one it was not measured"
_TREE: Final = "the engine never ends such a request without a draft model; with one it was not measured"
_NO_DRAFT: Final = "without a draft model or prompt lookup the engine ignores it"
_IMAGES: Final = "it thins out the tokens of images, whose number a reservation has to know"
_LEAVE: Final = "leave it out"

#: Of GenerationConfig.
REFUSED: Final[Mapping[str, Refused]] = {
    "adapters": Refused(
        "the engine ignores the adapters of a request and answers with the pipeline's own weights",
        "give each set a pipeline of its own, BoundedPipeline(..., adapters=...), or use pipeline.switch_adapters(...)",
    ),
    "parsers": Refused(
        "the engine ignores parsers in a batch",
        "parse the text when it is there: parser.parse({'content': completion.text})",
    ),
    "echo": Refused(
        "the engine shows the prompt's tokens together with the first new one, as if it had made them",
        "put the prompt in front of the text yourself",
    ),
    "num_assistant_tokens": Refused(_NO_DRAFT, "see the pipeline's draft= and prompt_lookup="),
    "assistant_confidence_threshold": Refused(_NEVER_ENDS, _LEAVE),
    "max_ngram_size": Refused(
        "without prompt lookup the engine takes no such request", "see the pipeline's prompt_lookup="
    ),
    "branching_factor": Refused(_TREE, _LEAVE),
    "tree_depth": Refused(_TREE, _LEAVE),
    "pruning_ratio": Refused(_IMAGES, "send smaller images"),
    "relevance_weight": Refused(_IMAGES, "send smaller images"),
    "return_omni_outputs": Refused("a batch gives text only: the engine ignores it", _LEAVE),
}

#: What the engine makes of a request with it, without a draft model, prompt lookup or images (2026.4.1).
OF_ENGINE: Final[Mapping[str, str]] = {
    "adapters": "ignored",
    "parsers": "ignored",
    "echo": "the prompt first",
    "num_assistant_tokens": "ignored",
    "assistant_confidence_threshold": "never ends",
    "max_ngram_size": "refused",
    "branching_factor": "never ends",
    "tree_depth": "never ends",
    "pruning_ratio": "ignored",
    "relevance_weight": "ignored",
    "return_omni_outputs": "ignored",
}

_OCCUPIES: Final = "the engine drops blocks of a sequence while it runs, and answers otherwise"
_SKIPS: Final = "the engine skips parts of the prompt, and answers otherwise"
_BOUND: Final = "bound the cache by num_kv_blocks or cache_size, and a request by max_new_tokens"

#: Of SchedulerConfig.
REFUSED_OF_SCHEDULER: Final[Mapping[str, Refused]] = {
    "use_cache_eviction": Refused(_OCCUPIES, _BOUND),
    "cache_eviction_config": Refused(_OCCUPIES, _BOUND),
    "use_sparse_attention": Refused(_SKIPS, _LEAVE),
    "sparse_attention_config": Refused(_SKIPS, _LEAVE),
}
