"""Whether a GGUF file is whole. The engine does not check: a file cut short (by a broken download) is a SIGSEGV there.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from pathlib import Path

_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  #: bytes of a metadata value, by type
_STRING, _ARRAY, _UINT32 = 8, 9, 4
#: elements and bytes of a block, by tensor type; of others only the beginning is checked
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
}  # fmt: skip


def defect(path: Path) -> str | None:
    """What is wrong with the file, in words; None if all its tensors are there. Reads the head only. Raises OSError."""
    size = path.stat().st_size
    if size < 24:
        return f"it is {size} bytes long, no GGUF file"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            return "it does not begin with GGUF"
        try:
            needed = _Head(data).needed()
        except (struct.error, OverflowError):
            return f"it ends within its head, at byte {size}; it was not copied or downloaded completely"
        except _Unknown as error:
            return f"its head cannot be read: {error}"
    if size < needed:
        return f"it has {size} of at least {needed} bytes; it was not copied or downloaded completely"
    return None


class _Unknown(Exception):
    """Something that no version of the format has."""


class _Head:
    """A cursor over the head. Reading beyond the end raises struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def needed(self) -> int:
        """Bytes that the file must have."""
        if (version := self._number("<I")) not in (2, 3):
            raise _Unknown(f"version {version}")
        tensors, values = self._number("<Q"), self._number("<Q")
        alignment = 32
        for _ in range(values):
            alignment = self._value() or alignment
        ends = [self._tensor() for _ in range(tensors)]
        return -(-self._at // alignment) * alignment + max(ends, default=0)

    def _number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise struct.error("beyond the end")

    def _string(self) -> bytes:
        length = self._number("<Q")
        begin = self._at
        self._skip(length)
        return self._data[begin : self._at]

    def _value(self) -> int | None:
        """Skip a key and its value; the value of the alignment."""
        key, kind = self._string(), self._number("<I")
        if key == b"general.alignment" and kind == _UINT32:
            return self._number("<I") or None
        self._skip_value(kind)
        return None

    def _skip_value(self, kind: int) -> None:
        if kind in _FIXED:
            self._skip(_FIXED[kind])
        elif kind == _STRING:
            self._skip(self._number("<Q"))
        elif kind == _ARRAY:
            self._skip_array()
        else:
            raise _Unknown(f"metadata of type {kind}")

    def _skip_array(self) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind in _FIXED:
            self._skip(_FIXED[kind] * count)
            return
        for _ in range(count):
            self._skip_value(kind)

    def _tensor(self) -> int:
        """Where a tensor ends, counted from the beginning of all tensors."""
        self._string()
        dimensions = self._number("<I")
        if dimensions > 8:
            raise _Unknown(f"a tensor of {dimensions} dimensions")
        elements = math.prod(self._number("<Q") for _ in range(dimensions))
        kind, offset = self._number("<I"), self._number("<Q")
        block, length = _BLOCKS.get(kind, (1, 0))
        return offset + elements // block * length
