"""What the raw engine makes of the fields that boundedgen refuses, for the tests to watch. See raw.py."""

import importlib
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
from genai import raw
from genai.raw import add, unread

PATIENCE = 60  #: steps; the request asks for 8 tokens

#: Of each refused field: what switches it on, and whatever else the engine wants with it.
ON: dict[str, dict[str, Any]] = {
    "adapters": {"adapters": "AdapterConfig"},
    "parsers": {"parsers": "Llama3JsonToolParser"},
    "echo": {"echo": True},
    "num_assistant_tokens": {"num_assistant_tokens": 4},
    "assistant_confidence_threshold": {"assistant_confidence_threshold": 0.5},
    "max_ngram_size": {"max_ngram_size": 3},
    "branching_factor": {"branching_factor": 2, "tree_depth": 2, "num_assistant_tokens": 5},
    "tree_depth": {"tree_depth": 2, "num_assistant_tokens": 5},
    "pruning_ratio": {"pruning_ratio": 50},
    "relevance_weight": {"relevance_weight": 0.9},
    "return_omni_outputs": {"return_omni_outputs": True},
}


def _value(name: str, value: Any) -> Any:
    if name == "adapters":
        return genai.AdapterConfig()
    return [genai.Llama3JsonToolParser()] if name == "parsers" else value


def made_of(field: str) -> str:
    """What a greedy request becomes with it: ignored, refused, never ends, or the prompt shown as well."""
    given = {name: _value(name, value) for name, value in ON[field].items()}
    plain = raw.shared(num_kv_blocks=64)
    (expected,) = raw.finish(plain, add(plain, 1, 10, 8))
    pipe = raw.pipeline(num_kv_blocks=64)
    try:
        handle = add(pipe, 1, 10, 8, **given)
    except RuntimeError:
        return "refused"
    shown: list[int] = []
    for _ in range(PATIENCE):
        if not pipe.has_non_finished_requests():
            break
        pipe.step()
        shown += unread(handle)
    else:
        return "never ends"
    if shown == raw.ids(10, seed=1) + expected:
        return "the prompt first"
    return "ignored" if shown == expected else f"shows {shown} instead of {expected}"


def constrained(composed: str, plain: str) -> list[list[int]]:
    """Greedy tokens under a grammar of the engine's classes (a Python expression), and under its text as JSON."""
    tools = importlib.import_module("openvino_genai").StructuredOutputConfig
    pipe = raw.pipeline(num_kv_blocks=64)
    form = eval(composed, {"S": tools, "genai": genai})
    kind = "structural_tags_config" if type(form).__name__ == "StructuralTagsConfig" else "compound_grammar"
    both = (tools(**{kind: form}), tools(structural_tags_config=plain))
    handles = [
        add(pipe, number, raw.ids(10), 24, ignore_eos=False, eos_token_id=2, structured_output_config=grammar)
        for number, grammar in enumerate(both)
    ]
    return raw.finish(pipe, *handles)
