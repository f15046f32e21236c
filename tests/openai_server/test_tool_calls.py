"""Calls of tools are found in a model's text, however it is cut into pieces, and what is none stays text."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import boundedgen as b
from examples.openai_server.choices import Choice
from examples.openai_server.requests import asked_of
from examples.openai_server.settings import Settings
from examples.openai_server.shapes import Shape
from examples.openai_server.token_texts import TokenTexts
from examples.openai_server.tool_calls import BEGIN, END, ToolCalls

CALL = BEGIN + '\n{"name": "weather", "arguments": {"city": "Graz"}}\n' + END
PIECES = st.lists(
    st.sampled_from(["Hello ", "<", "<tool", CALL, BEGIN, END, "{}", BEGIN + "{}" + END, BEGIN + "[1]" + END, "\n"])
)


def read(text: str, cuts: list[int]) -> tuple[str, list[dict[str, Any]]]:
    calls, out, at = ToolCalls(), "", 0
    for cut in [*sorted(cuts), len(text)]:
        out += calls.feed(text[at:cut])
        at = max(at, cut)
    return out + calls.flush(), calls.calls


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call["function"] for call in calls]


@given(PIECES, st.lists(st.integers(0, 200)))
def test_how_the_text_is_cut_changes_nothing(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    whole, parts = read(text, []), read(text, [min(cut, len(text)) for cut in cuts])
    assert (parts[0], without_ids(parts[1])) == (whole[0], without_ids(whole[1]))


@given(PIECES)
def test_nothing_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    out, calls = read(text, [])
    left = Counter(text) - Counter(CALL * len(calls))
    assert left - Counter(out) == Counter({"\n": left["\n"] - out.count("\n")}) - Counter()
    assert not Counter(out) - left


def test_a_call_is_what_clients_expect() -> None:
    out, (call,) = read(f"Let me see. {CALL}", [])
    assert out == "Let me see. "
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Graz"}


@pytest.mark.parametrize("inside", ["", "{", "[]", "5", '{"name": 5}', '{"arguments": {}}', "[" * 100_000])
def test_what_cannot_be_read_stays_text(inside: str) -> None:
    text = BEGIN + inside + END
    assert read(text, []) == (text, [])


def test_a_call_that_is_cut_off_is_text_of_an_answer_that_ended_for_its_length() -> None:
    assert read(CALL[:30], [10, 20]) == (CALL[:30], [])


def stream_of(text: str, step: int, reason: b.FinishReason) -> list[dict[str, Any]]:
    """The events of a chat in which the model writes this, `step` characters at a time."""
    tool = {"type": "function", "function": {"name": "weather"}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "tools": [tool]}
    asked = asked_of("chat", body, {}, Settings(model="m"))

    async def made() -> list[dict[str, Any]]:
        choice = Choice(Shape.of(asked, "m", TokenTexts("")), 0, calls_tools=asked.calls_tools)
        chunks = [b.Chunk(text=text[at : at + step], token_ids=()) for at in range(0, len(text), step)]
        return [event for chunk in chunks for event in choice.events(chunk)] + choice.end(reason)

    return asyncio.run(made())


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_stream_with_calls_has_them_apart_from_the_text_and_ends_so(step: int) -> None:
    told = [event["choices"][0] for event in stream_of(f"Well. {CALL}\n{CALL}", step, b.FinishReason.STOP)]
    calls = [call for choice in told for call in choice["delta"].get("tool_calls", [])]
    assert "".join(choice["delta"].get("content") or "" for choice in told) == "Well. "
    assert [call["index"] for call in calls] == [0, 1]
    assert told[0]["delta"] == {"role": "assistant", "content": ""}
    assert told[-1]["finish_reason"] == "tool_calls"
    assert told[-1]["delta"] == {}


def test_an_end_that_is_not_normal_keeps_its_name_whatever_was_called() -> None:
    assert stream_of(CALL, 5, b.FinishReason.DEADLINE)[-1]["choices"][0]["finish_reason"] == "deadline"
    assert stream_of(CALL, 5, b.FinishReason.LENGTH)[-1]["choices"][0]["finish_reason"] == "length"
