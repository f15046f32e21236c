"""What cannot be served is a 400 that names the field, and nothing has been submitted for it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai_server.served import FULL, HELLO, Served

pytestmark = pytest.mark.timeout(60)

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
PICTURE = [{"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}]
#: Changes to a good chat, the field that is named, the code.
CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"temperature": 2.5}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": "many"}, "max_completion_tokens", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 9}, "n", "invalid_value"),
    ({"seed": 1.5}, "seed", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"stop": "x" * 300}, "stop", "invalid_value"),
    ({"presence_penalty": -3}, "presence_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
    ({"stream": 1}, "stream", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"more": True}}, "stream_options.more", "unknown_parameter"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "unsupported_parameter"),
    ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "Hello!"}, "messages", "invalid_value"),
    ({"messages": ["Hello!"]}, "messages[0]", "invalid_value"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": PICTURE}]}, "messages[0].content[0].image_url.url", "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function", "invalid_value"),
    ({"tools": [{"type": "search"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
    ({"bounds": {"totl": 1}}, "bounds.totl", "invalid_value"),
    ({"bounds": {"total": "soon"}}, "bounds.total", "invalid_value"),
    ({"model": None}, "model", "missing_required_parameter"),
    ({"max_tokens": 5000, "min_tokens": 6000}, "min_tokens", "invalid_value"),
]  # fmt: skip
TEXT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": [1, "x"]}, "prompt[0]", "invalid_value"),
    ({"prompt": [100_000]}, "prompt", "invalid_value"),
    ({"prompt": ["x"] * 9}, "prompt", "invalid_value"),
    ({"logprobs": 2}, "logprobs", "invalid_value"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"messages": HELLO}, "messages", "unknown_parameter"),
]


def named(change: Any) -> str:
    return "-".join(change[0])


@pytest.mark.parametrize("change", CHAT, ids=named)
def test_a_chat_that_is_wrong_names_the_field_and_submits_nothing(server: Served, change: Any) -> None:
    refused(server, "/v1/chat/completions", server.chat(**change[0]), *change[1:])


@pytest.mark.parametrize("change", TEXT, ids=named)
def test_a_completion_that_is_wrong_names_the_field_and_submits_nothing(server: Served, change: Any) -> None:
    body = {"model": "plain", "prompt": "x", "max_tokens": 5, **change[0]}
    refused(server, "/v1/completions", body, *change[1:])


def refused(server: Served, path: str, body: dict[str, Any], param: str | None, code: str) -> None:
    before = server.stats()["submitted_total"]
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert error["type"] == "invalid_request_error"
    assert param is not None
    assert param.split(".")[0].split("[")[0] in error["message"]
    assert server.stats()["submitted_total"] == before


def test_a_grammar_that_does_not_compile_is_a_400_too_though_it_is_found_out_later(server: Served) -> None:
    for stream in (False, True):
        answer = server.post(
            "/v1/chat/completions", server.chat(response_format=SCHEMA, ignore_eos=False, stream=stream)
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format"), answer.text


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"n": NaN}', b"\xff", b'{"a":' * 100_000], ids=range(6))
def test_what_is_no_json_object_is_a_400(server: Served, body: bytes) -> None:
    answer = server.http.post("/v1/chat/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_that_is_too_large_is_not_read(server: Served) -> None:
    answer = server.http.post("/v1/chat/completions", content=b" " * (5 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_prompt_that_can_never_fit_has_the_code_that_clients_look_for(server: Served) -> None:
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="plain", prompt=[5] * 33_000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"


def test_another_model_another_path_and_another_method_are_errors_of_the_same_shape(server: Served) -> None:
    with server.client() as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    for status, answer in ((404, server.http.get("/v1/engines")), (405, server.http.get("/v1/completions"))):
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    assert server.http.get("/v1/models/gpt-5").status_code == 404


def test_fields_of_openai_that_change_nothing_here_are_taken(server: Served) -> None:
    ignored: dict[str, Any] = {"user": "ann", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    neutral: dict[str, Any] = {"logit_bias": {}, "modalities": ["text"], "tool_choice": "auto", "audio": None}
    with server.client() as client:
        answer = client.chat.completions.create(
            model="plain", messages=HELLO, max_tokens=2, extra_body=FULL, **ignored, **neutral
        )
    assert answer.choices[0].finish_reason == "length"
