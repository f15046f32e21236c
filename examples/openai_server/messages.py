"""Messages of a chat, as the chat template is to see them."""

from __future__ import annotations

import json
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
        message["content"] = _content(f"{where}.content", given.get("content"))
    return message


def _content(where: str, content: Any) -> str | list[dict[str, Any]]:
    """Text; where there are images, the parts as the pipeline takes them, which refuses what its model does not see."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, "a string or a list of parts", content)
    parts = [_part(f"{where}[{at}]", part) for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(where: str, given: Any) -> dict[str, Any]:
    part = mapping(where, given)
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": text(f"{where}.text", part.get("text"))}
    if kind != "image_url":
        raise invalid(f"{where}.type", f"{where}: a part of type {short(kind)}; this server reads text and image_url")
    url = text(f"{where}.image_url.url", mapping(f"{where}.image_url", part.get("image_url")).get("url"))
    if url[:5].lower() != "data:":
        raise invalid(f"{where}.image_url.url", f"{where}.image_url.url must be a data: URL; nothing is fetched")
    return {"type": "image_url", "image_url": {"url": url}}


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
