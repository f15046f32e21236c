"""Prompts that are not text: token ids and chat messages, as plain data."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from boundedgen._errors import InvalidRequest

_SHORT: Final = 60


def short(value: object) -> str:
    """A repr that fits into a message."""
    if isinstance(value, str) and len(value) > _SHORT:
        return f"a str of {len(value)} characters"
    if isinstance(value, list | tuple | set | frozenset | Mapping) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def token_ids(prompt: object, vocab_size: int | None) -> list[int]:
    """A prompt of token ids as a list: from a list or tuple of ints, or an integer array or tensor of one row."""
    ids = _row(prompt)
    if not ids:
        raise InvalidRequest("prompt is empty; give at least one token id")
    plain = list(ids) if set(map(type, ids)) == {int} else _whole_numbers(ids)
    low, high = min(plain), max(plain)
    if low < 0:
        raise InvalidRequest(f"prompt holds the token id {low}; ids are 0 or more")
    if vocab_size is not None and high >= vocab_size:
        raise InvalidRequest(
            f"prompt holds the token id {high}; the model's vocabulary has {vocab_size} (0 to {vocab_size - 1})"
        )
    return plain


def _whole_numbers(ids: Sequence[Any]) -> list[int]:
    """One by one, which takes a microsecond each: only for what is not plainly a row of ints."""
    for at, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise InvalidRequest(f"prompt must hold whole numbers; at position {at} it holds a {type(value).__name__}")
    return [int(value) for value in ids]


def _row(prompt: object) -> Sequence[Any]:
    if isinstance(prompt, list | tuple):
        return _unnested(prompt)
    array: Any = getattr(prompt, "data", None) if type(prompt).__name__ == "Tensor" else prompt
    if not all(hasattr(array, name) for name in ("dtype", "shape", "tolist")):
        raise InvalidRequest(f"prompt must be a str, token ids or chat messages, not {type(prompt).__name__}")
    shape = tuple(array.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
        raise InvalidRequest(
            f"prompt must be one row of token ids, not an array of shape {list(shape)}; submit rows one by one"
        )
    if array.dtype.kind not in "iu":
        raise InvalidRequest(f"prompt must hold whole numbers, not {array.dtype}")
    return list(array.reshape(-1).tolist())


def _unnested(prompt: Sequence[Any]) -> Sequence[Any]:
    if prompt and isinstance(prompt[0], list | tuple):
        if len(prompt) > 1:
            raise InvalidRequest(f"prompt must be one row of token ids, not {len(prompt)}; submit rows one by one")
        return prompt[0]
    return prompt


def messages(prompt: object) -> list[dict[str, Any]]:
    """Chat messages as plain dicts, each with a str role and a str content (parts of text are joined)."""
    read = getattr(prompt, "get_messages", None)
    rows = read() if callable(read) else prompt
    if not isinstance(rows, list | tuple) or not rows:
        raise InvalidRequest("prompt must be a list of at least one chat message")
    return [_message(at, row) for at, row in enumerate(rows)]


def _message(at: int, row: object) -> dict[str, Any]:
    where = f"prompt, message {at}"
    if not isinstance(row, Mapping):
        raise InvalidRequest(f"{where}: must be a mapping with role and content, not {type(row).__name__}")
    if not isinstance(row.get("role"), str) or not row["role"]:
        raise InvalidRequest(f"{where}: role must be a str such as 'user', not {type(row.get('role')).__name__}")
    return {**row, "content": _content(where, row)}


def _content(where: str, row: Mapping[str, Any]) -> str:
    content = row.get("content")
    if isinstance(content, str):
        return content
    if content is None and row.get("tool_calls"):  # an assistant's turn that only calls tools
        return ""
    if isinstance(content, list | tuple):
        return "".join(_parts(where, content))
    raise InvalidRequest(f"{where}: content must be a str or a list of text parts, not {type(content).__name__}")


def _parts(where: str, parts: Sequence[object]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text":
            raise InvalidRequest(f"{where}: a content part of type {short(kind)} is not supported yet; send text")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}: a text part must hold a str under 'text'")
        yield part["text"]
