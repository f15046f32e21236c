"""Messages of a chat, as the chat template is to see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from examples.openai_server.fields import mapping, objects, short, text, wrong
from examples.openai_server.problems import invalid

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def messages_of(name: str, value: Any) -> list[dict[str, Any]]:
    """Raises Problem, which names the message."""
    return [_message(f"{name}[{at}]", row) for at, row in enumerate(objects(name, value))]


def _message(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """What is null is left out: clients send back what they got, with every field that it could have had."""
    given = {key: value for key, value in row.items() if value is not None}
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{where}.role", f"{where}.role must be one of {', '.join(_ROLES)}, not {short(role)}")
    message = {**given, "role": _ROLES[role]}
    if "tool_calls" in given:
        message["tool_calls"] = _tool_calls(f"{where}.tool_calls", given["tool_calls"])
    if "content" in given or not message.get("tool_calls"):
        message["content"] = "".join(_texts(f"{where}.content", given.get("content")))
    return message


def _texts(where: str, content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    if not isinstance(content, list):
        raise wrong(where, "a string or a list of text parts", content)
    for at, part in enumerate(content):
        kind = mapping(f"{where}[{at}]", part).get("type")
        if kind != "text":
            raise invalid(f"{where}[{at}].type", f"{where}[{at}]: a part of type {short(kind)}; this server reads text")
        yield text(f"{where}[{at}].text", part.get("text"))


def _tool_calls(where: str, value: Any) -> list[dict[str, Any]]:
    """Arguments are a string of JSON in OpenAI's protocol; chat templates write an object."""
    calls = [] if value == [] else objects(where, value)
    return [_call(f"{where}[{at}].function", call) for at, call in enumerate(calls)]


def _call(where: str, call: dict[str, Any]) -> dict[str, Any]:
    function = mapping(where, call.get("function"))
    name = text(f"{where}.name", function.get("name"))
    try:
        arguments = json.loads(text(f"{where}.arguments", function.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        raise invalid(f"{where}.arguments", f"{where}.arguments must be a string of JSON") from None
    return {**call, "function": {**function, "name": name, "arguments": arguments}}
