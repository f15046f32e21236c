"""Prompts that are not text: token ids and chat messages, as plain data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from boundedgen._arguments import kind_of, plain_str, reading, short, too_large, whole_number
from boundedgen._errors import InvalidRequest


@final
class Row:
    """A prompt of token ids: its length is known at once, the ids themselves are looked at when they are asked for.

    From a list or tuple of ints, or an integer array or tensor of one row. Raises InvalidRequest.
    """

    def __init__(self, prompt: object) -> None:
        with reading("prompt"):
            self._length, self._read = _row(prompt)
        if not self._length:
            raise InvalidRequest("prompt is empty; give at least one token id")

    def __len__(self) -> int:
        return self._length

    def ids(self, vocab_size: int | None) -> list[int]:
        """A copy, checked."""
        with reading("prompt"):
            given = list(self._read())
            if len(given) != self._length:
                raise InvalidRequest(f"prompt had {self._length} token ids and then {len(given)}; do not change it")
            ids = given if set(map(type, given)) == {int} else _whole_numbers(given)
        low, high = min(ids), max(ids)
        if low < 0:
            raise InvalidRequest(f"prompt holds the token id {short(low)}; ids are 0 or more")
        if vocab_size is not None and high >= vocab_size:
            raise InvalidRequest(
                f"prompt holds the token id {short(high)}; the model's vocabulary has {vocab_size} (0 to "
                f"{vocab_size - 1})"
            )
        return ids


def token_ids(prompt: object, vocab_size: int | None) -> list[int]:
    """A prompt of token ids as a list."""
    return Row(prompt).ids(vocab_size)


def _whole_numbers(given: Sequence[Any]) -> list[int]:
    """One by one, which takes a microsecond each: only for what is not plainly a row of ints."""
    ids: list[int] = []
    for at, value in enumerate(given):
        number = whole_number(value)
        if number is None:
            several = "; for several prompts use generate_many" if isinstance(value, str) else ""
            raise InvalidRequest(
                f"prompt must hold whole numbers; at position {at} it holds a {kind_of(value)}{several}"
            )
        ids.append(number)
    return ids


def _row(prompt: object) -> tuple[int, Callable[[], Iterable[Any]]]:
    """How many ids, and what reads them."""
    if isinstance(prompt, list | tuple):
        row = _unnested(prompt)
        return len(row), row.__iter__
    array: Any = getattr(prompt, "data", None) if type(prompt).__name__ == "Tensor" else prompt
    if not all(hasattr(array, name) for name in ("dtype", "shape", "tolist")):
        single = "; put a single message into a list" if isinstance(prompt, Mapping) else ""
        raise InvalidRequest(f"prompt must be a str, token ids or chat messages, not {kind_of(prompt)}{single}")
    shape = tuple(array.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
        raise InvalidRequest(
            f"prompt must be one row of token ids, not an array of shape {list(shape[:4])}; use generate_many for "
            "several"
        )
    if array.dtype.kind not in "iu":
        raise InvalidRequest(f"prompt must hold whole numbers, not {array.dtype}")
    return int(shape[-1]), lambda: array.reshape(-1).tolist()


def _unnested(prompt: Sequence[Any]) -> Sequence[Any]:
    if prompt and isinstance(prompt[0], list | tuple):
        if len(prompt) > 1:
            raise InvalidRequest(
                f"prompt must be one row of token ids, not {len(prompt)}; use generate_many for several"
            )
        return prompt[0]
    return prompt


def is_chat(prompt: object) -> bool:
    """Chat messages, by their looks."""
    with reading("prompt"):
        return type(prompt).__name__ == "ChatHistory" or (
            isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)
        )


def messages(prompt: object, most: int = sys.maxsize) -> list[dict[str, Any]]:
    """Chat messages as plain dicts, each with a str role and a str content (parts of text are joined).

    InvalidRequest where something is wrong with them, or if they are more than `most` characters as JSON.
    """
    with reading("prompt"):
        read = getattr(prompt, "get_messages", None)
        rows = read() if callable(read) else prompt
        if not isinstance(rows, list | tuple) or not rows:
            raise InvalidRequest("prompt must be a list of at least one chat message")
        if too_large(most, rows):
            raise InvalidRequest(
                f"prompt has messages of more than {most} bytes (Limits.prompt_bytes), or too deep ones"
            )
        return [_message(at, row) for at, row in enumerate(rows)]


def _message(at: int, row: object) -> dict[str, Any]:
    where = f"prompt, message {at}"
    if not isinstance(row, Mapping):
        raise InvalidRequest(f"{where}: must be a mapping with role and content, not {kind_of(row)}")
    role = row.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}: role must be a str such as 'user', not {kind_of(role)}")
    return {**row, "role": plain_str(role), "content": _content(where, row)}


def _content(where: str, row: Mapping[str, Any]) -> str:
    content = row.get("content")
    if isinstance(content, str):
        return plain_str(content)
    if content is None and row.get("tool_calls"):  # an assistant's turn that only calls tools
        return ""
    if isinstance(content, list | tuple):
        return "".join(_parts(where, content))
    raise InvalidRequest(f"{where}: content must be a str or a list of text parts, not {kind_of(content)}")


def _parts(where: str, parts: Sequence[object]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield plain_str(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text":
            raise InvalidRequest(f"{where}: a content part of type {short(kind)} is not for this model; send text")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}: a text part must hold a str under 'text'")
        yield plain_str(part["text"])
