"""Strange prompts, tools and template contexts before the real tokenizer; the engine is under the test's hand."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from core.hand_engine import HandEngine, lane, until
from core.hostile import STRANGE, timed, touchy
from genai.lanes import PLAIN

import boundedgen as b
from boundedgen._text import GenAITokenizer
from boundedgen.abc import Tokenizer

QUICK_S = 0.2  #: what the real template and the real tokenizer may take of up to 16 KiB
LIMITS = b.Limits(progress=1e6, ack=1e6, reclaim=1e6, prompt_bytes=1 << 14)


class ReadingHand(HandEngine):
    def tokenizer(self) -> Tokenizer:
        return GenAITokenizer(PLAIN)


@pytest.fixture(scope="module")
def pipeline() -> Iterator[b.BoundedPipeline]:
    with lane(ReadingHand(blocks=10_000), limits=LIMITS) as (opened, _):
        yield opened
        until(lambda: not (opened.stats().waiting or opened.stats().running))


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi", **fields}]


CALLS: dict[str, Any] = {
    "prompt": lambda value: {"prompt": value},
    "wrapped": lambda value: {"prompt": value, "apply_chat_template": True},
    "role": lambda value: {"prompt": message(role=value)},
    "content": lambda value: {"prompt": message(content=value)},
    "part": lambda value: {"prompt": message(content=[{"type": "text", "text": value}])},
    "extra": lambda value: {"prompt": message(tool_calls=value)},
    "tools": lambda value: {"prompt": message(), "tools": value},
    "tool": lambda value: {"prompt": message(), "tools": [{"type": "function", "function": value}]},
    "template_context": lambda value: {"prompt": message(), "template_context": value},
    "variable": lambda value: {"prompt": message(), "template_context": {"mood": value}},
}


@pytest.mark.parametrize("kind", CALLS)
def test_any_text_is_taken_or_refused_by_name_before_the_engine_hears_of_it(
    pipeline: b.BoundedPipeline, kind: str
) -> None:
    name = {"tools": "tools", "tool": "tools", "template_context": "template_context", "variable": "template_context"}
    for what, value in {**STRANGE, "touchy in a list": [touchy(str)("x"), touchy(float)(1.0)]}.items():
        result, error, took = timed(partial(pipeline.submit, max_new_tokens=4, **CALLS[kind](value)))
        assert took < QUICK_S, f"{what}: {took:.3f} s"
        if isinstance(result, b.Generation):
            result.cancel()
        elif isinstance(error, b.NeverFits):
            assert kind in ("prompt", "wrapped"), what
        else:
            assert type(error) is b.InvalidRequest, f"{what}: {error!r:.300}"
            assert name.get(kind, "prompt") in str(error), f"{what}: {error}"
            assert len(str(error).encode()) < 400, what


def test_a_prompt_of_100_megabytes_is_refused_before_it_is_encoded(pipeline: b.BoundedPipeline) -> None:
    _, error, took = timed(lambda: pipeline.submit(STRANGE["100 megabytes"]))
    assert isinstance(error, b.InvalidRequest)
    assert took < 0.05
