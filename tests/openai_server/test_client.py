"""The OpenAI client as it is: chats and completions, whole and streamed, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai_server.served import FULL, HELLO, Served

pytestmark = pytest.mark.timeout(60)

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the weather is like",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_a_chat_has_an_answer_and_its_usage(server: Served) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(
            model="plain", messages=HELLO, max_completion_tokens=7, temperature=0, extra_body=FULL
        )
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.role, answer.model) == ("length", "assistant", "plain")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer._request_id == answer.id


def test_a_streamed_chat_is_the_same_as_a_whole_one(server: Served) -> None:
    arguments: dict[str, Any] = {"model": "plain", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    with server.client() as client:
        whole = client.chat.completions.create(**arguments, extra_body=FULL)
        stream = client.chat.completions.create(
            **arguments, extra_body=FULL, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage
    assert not chunks[-1].choices
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_many_async_streams_run_at_once(server: Served) -> None:
    async def one(client: Any, number: int) -> int:
        stream = await client.chat.completions.create(
            model="plain", messages=HELLO, max_tokens=10 + number, stream=True, extra_body=FULL,
            stream_options={"include_usage": True},
        )  # fmt: skip
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
        assert usage is not None
        return int(usage.completion_tokens)

    async def all_of_them() -> list[int]:
        async with server.async_client() as client:
            return list(await asyncio.gather(*(one(client, number) for number in range(20))))

    assert asyncio.run(all_of_them()) == [10 + number for number in range(20)]


@pytest.mark.parametrize(
    "prompt", ["The sea is", ["The sea is", "The sky is"], [10, 20, 30], [[10, 20], [30, 40]]], ids=str
)
def test_a_completion_takes_text_and_token_ids_one_or_several(server: Served, prompt: Any) -> None:
    several = 2 if isinstance(prompt[0], list) or (isinstance(prompt, list) and isinstance(prompt[0], str)) else 1
    with server.client() as client:
        answer = client.completions.create(model="plain", prompt=prompt, max_tokens=4, extra_body=FULL)
    assert [choice.index for choice in answer.choices] == list(range(several))
    assert all(choice.finish_reason == "length" and choice.text for choice in answer.choices)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * several


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_have_indices_and_differ(server: Served, stream: bool) -> None:
    arguments: dict[str, Any] = {"model": "plain", "messages": HELLO, "max_tokens": 30, "n": 3, "seed": 7}
    texts = ["", "", ""]
    with server.client() as client:
        if stream:
            for chunk in client.chat.completions.create(**arguments, temperature=1, stream=True, extra_body=FULL):
                for piece in chunk.choices:
                    texts[piece.index] += piece.delta.content or ""
        else:
            whole = client.chat.completions.create(**arguments, temperature=1, extra_body=FULL)
            texts = [choice.message.content or "" for choice in whole.choices]
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 90
            assert whole.usage.prompt_tokens < 60, "the prompt counts once"
    assert len(set(texts)) == 3
    assert all(texts)


def test_a_stop_string_ends_the_answer_and_is_not_in_it(server: Served) -> None:
    arguments: dict[str, Any] = {"model": "plain", "prompt": "The sea is", "max_tokens": 60, "temperature": 0}
    with server.client() as client:
        text = client.completions.create(**arguments, extra_body=FULL).choices[0].text
        stop = text[20:22]
        cut = client.completions.create(**arguments, stop=[stop, "never"], extra_body=FULL).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == text[: text.index(stop)]


def test_logprobs_are_one_a_token(server: Served) -> None:
    arguments: dict[str, Any] = {"model": "plain", "max_tokens": 6, "temperature": 0, "extra_body": FULL}
    with server.client() as client:
        chat = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=1, **arguments)
        stream = list(client.chat.completions.create(messages=HELLO, logprobs=True, stream=True, **arguments))
        plain = client.completions.create(prompt="The sea is", logprobs=1, **arguments)
    told = chat.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert len(told.content) == 6
    assert all(one.logprob <= 0 and one.top_logprobs[0].logprob == one.logprob for one in told.content)
    pieces = [choice.logprobs.content or [] for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [one.logprob for piece in pieces for one in piece] == pytest.approx([one.logprob for one in told.content])
    legacy = plain.choices[0].logprobs
    assert legacy is not None
    assert len(legacy.tokens or []) == len(legacy.token_logprobs or []) == len(legacy.text_offset or []) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_keeps_to_its_schema(server: Served, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    asked: Any = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
    arguments: dict[str, Any] = {"model": "plain", "messages": HELLO, "max_tokens": 400, "response_format": asked}
    with server.client() as client:
        if stream:
            chunks = list(client.chat.completions.create(**arguments, temperature=0, stream=True))
            text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        else:
            text = client.chat.completions.create(**arguments, temperature=0).choices[0].message.content or ""
    assert json.loads(text)["ok"] in (True, False)


def test_tools_and_what_came_of_them_go_through_the_chat_template(server: Served) -> None:
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    with server.client() as client:
        answer = client.chat.completions.create(
            model="plain", messages=messages, tools=[TOOL], max_tokens=3, extra_body=FULL
        )
        again: Any = [*messages, answer.choices[0].message.model_dump()]
        client.chat.completions.create(model="plain", messages=again, max_tokens=3, extra_body=FULL)
    assert answer.choices[0].message.tool_calls is None


def test_the_models_are_listed(server: Served) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list()] == ["plain"]
        assert client.models.retrieve("plain").owned_by == "boundedgen"
