"""The head of a safetensors file, read by ourselves: which tensors there are, and that the file is just as long.

Nothing of the tensors is read here, nothing is mapped and nothing is unpickled. The engine's own reader takes a file
that was cut off or has something behind its end, and ends the process with one that is empty.

Format: 8 bytes with the length of the head (little-endian), the head (JSON: name -> dtype, shape, data_offsets), data.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final, TypeGuard, final

from attrs import frozen

from boundedgen._arguments import short

HEAD_MOST: Final = 4 << 20  #: bytes; of a model with a thousand adapted layers it is a twentieth
NAME_MOST: Final = 512  #: characters
_DIMENSIONS_MOST: Final = 8
_LENGTH: Final = 8
_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


class SafetensorsError(ValueError):
    """Why it is no whole safetensors file: a clause that follows its name."""


@final
@frozen
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  #: of its bytes in the file
    end: int


def head_length(first: bytes, size: int) -> int:
    """From the first eight bytes of a file of `size` bytes: how long its head is. Raises SafetensorsError."""
    if size < _LENGTH + 2 or len(first) < _LENGTH:
        raise SafetensorsError(f"is {size} bytes long, no safetensors file")
    length: int = struct.unpack("<Q", first[:_LENGTH])[0]
    if length > HEAD_MOST:
        raise SafetensorsError(f"has a head of {length} bytes, more than {HEAD_MOST}; it may be no safetensors file")
    if _LENGTH + length > size:
        raise SafetensorsError(f"ends within its head; it has {size} of at least {_LENGTH + length} bytes")
    return length


def tensors_of(head: bytes, size: int) -> dict[str, Tensor]:
    """By name; `head` without the eight bytes before it, of a file of `size` bytes. Raises SafetensorsError."""
    data = _LENGTH + len(head)
    tensors = {name: _tensor(name, entry, data) for name, entry in _entries(head).items() if name != "__metadata__"}
    at = data
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            raise SafetensorsError(f"has a gap or an overlap before tensor {short(name)} (data_offsets)")
        at = tensor.end
    if at > size:
        raise SafetensorsError(f"has {size} of {at} bytes; it was not copied or downloaded completely")
    if at < size:
        raise SafetensorsError(f"has {size - at} bytes behind its last tensor, which belong to nothing")
    return tensors


def _entries(head: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(head.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, SafetensorsError):
            raise
        raise SafetensorsError("has a head that is no JSON; it may be no safetensors file") from None
    if not isinstance(entries, dict):
        raise SafetensorsError("has a head that is no JSON object")
    return entries


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise SafetensorsError("names something twice in its head")
    return found


def _tensor(name: str, entry: Any, data: int) -> Tensor:
    if len(name) > NAME_MOST:
        raise SafetensorsError(f"has a tensor whose name is {len(name)} characters long, more than {NAME_MOST}")
    if not isinstance(entry, dict):
        raise SafetensorsError(f"has no dtype, shape and data_offsets for tensor {short(name)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise SafetensorsError(f"has tensor {short(name)} of an unknown dtype, {short(dtype)}")
    if not _sizes(shape) or len(shape) > _DIMENSIONS_MOST:
        raise SafetensorsError(f"has tensor {short(name)} without a shape of whole numbers")
    if not _sizes(offsets) or len(offsets) != 2:
        raise SafetensorsError(f"has tensor {short(name)} without two data_offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * _BITS[dtype] // 8:
        raise SafetensorsError(f"has tensor {short(name)} with data_offsets that are not as long as its shape says")
    return Tensor(dtype, tuple(shape), data + begin, data + end)


def _sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 48 for one in value)
