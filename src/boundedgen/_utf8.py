"""Bytes in, text out, as a detokenizer reads them: what it makes of bytes that are no character is its own."""

from __future__ import annotations

import re
from typing import Final, final

from attrs import frozen

_REPLACEMENT: Final = "\ufffd"
#: A run of ASCII; a lead byte with what continues it, up to its length; or a byte that can begin nothing.
_UNIT: Final = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]?|[\xe0-\xef][\x80-\xbf]{0,2}|[\xf0-\xf7][\x80-\xbf]{0,3}|[\x80-\xbf\xf8-\xff]"
)


@frozen
class Rules:
    """What becomes of bytes that are no character, and of a space at the very beginning."""

    #: UTF8Validate of openvino_tokenizers: "replace" or "ignore"; "": the detokenizer has none. It counts in its own
    #: way (one U+FFFD for an unfinished character, one a byte for an overlong one), and lets surrogates pass.
    validates: str = ""
    #: "replace" or "ignore": what turning the rest into a str does.
    errors: str = "replace"
    #: One space at the beginning of the whole text goes.
    strips: bool = False

    def read(self, unit: bytes) -> str:
        try:
            return unit.decode()
        except UnicodeDecodeError:
            return self._read_invalid(unit)

    def _read_invalid(self, unit: bytes) -> str:
        length = _length(unit[0])
        complete = len(unit) == length > 1
        if not self.validates or (complete and (unit[0] == 0xED or unit[0] >= 0xF4)):
            return unit.decode(
                "utf-8", self.errors
            )  # also a surrogate, or beyond U+10FFFF: a character to UTF8Validate
        if self.validates == "ignore":
            return ""
        return _REPLACEMENT * (length if complete else 1)

    def text(self, data: bytes) -> str:
        """All at once."""
        reader = Utf8(self)
        return reader.feed(data) + reader.flush()


RULES: Final = tuple(
    Rules(validates, errors, strips)
    for strips in (False, True)
    for validates in ("replace", "", "ignore")
    for errors in ("replace", "ignore")
)


@final
class Utf8:
    """Bytes in pieces, text out: joined it is `rules.text` of all bytes. At most three bytes are held back."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._strips = rules.strips
        self._rest = b""  # an unfinished character

    def feed(self, data: bytes) -> str:
        if self._strips and data:
            self._strips, data = False, data.removeprefix(b" ")
        data = self._rest + data
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._read(data)
        self._rest = b""
        return text

    def flush(self) -> str:
        rest, self._rest = self._rest, b""
        return self._rules.read(rest) if rest else ""

    def _read(self, data: bytes) -> str:
        units = _UNIT.findall(data)
        self._rest = units.pop() if len(units[-1]) < _length(units[-1][0]) else b""
        return "".join(map(self._rules.read, units))


def _length(lead: int) -> int:
    """Of a character that begins with this byte; 1 if none does."""
    if lead < 0xC0 or lead >= 0xF8:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
