"""The bytes of each token, proved before they are used: what makes a token's text cost microseconds.

A call of the engine's detokenizer costs 130 µs and more, most of it for the call. Nearly all detokenizers do no more
than join the bytes of their tokens and read them as UTF-8. Where that is so (`_detokenizer` says it of the graph, a
trial of it here of the real thing), a stream joins the bytes itself. The vocabulary says what they should be; each id
is shown to the detokenizer once, when it is first met, in a place where all of its bytes can be seen. An id that does
not show them is doubted, and a stream that meets it goes on with the detokenizer itself.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, final

from attrs import frozen

from boundedgen._utf8 import RULES, Rules, Utf8

Decode = Callable[[Sequence[int]], str]
Encode = Callable[[str], Sequence[int]]

#: Ids that are shown to the detokenizer in one call, which holds the interpreter lock: about a millisecond.
_AT_ONCE: Final = 128
#: Ids that are met at load, beside the engine's own: byte-pair merges are numbered as they were found, the frequent
#: ones first.
_MOST_USED: Final = 4096
#: Characters that stand between ids which are shown; a token seldom holds one.
_ANCHORS: Final = b"~|^`@#&;Z"
#: What makes a character of bytes that begin, or end, inside of one.
_OPENING: Final = (b"", b"\xc3", b"\xe4", b"\xe4\xb8", b"\xf0", b"\xf4", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf4\x80")
_CLOSING: Final = (
    b"",
    *(first + more for more in (b"", b"\x80", b"\x80\x80") for first in (b"\x80", b"\x90", b"\xa0")),
)
#: Nothing makes a character of these bytes: they are put where they break one, which a skipped token would not.
_BROKEN: Final = (b"\xc3", b"\xa9")

#: Without these as tokens too little would be seen of what becomes of bytes that are no character. Others a vocabulary
#: may lack (SmolLM2's has none for C0, F1 or FF): then none of its tokens can hold them.
_NEEDED: Final = frozenset((*range(0x80, 0xC0), *b"a\xc3\xe4\xf0"))
#: What the trial has to see of bytes that are no character: unfinished, lone, overlong, surrogates, beyond U+10FFFF,
#: bytes that never occur, all of it before other things; and spaces at the beginning.
_BROKEN_BYTES: Final = """
    c3 | c3 61 | c3 c3 a9 | e4 | e4 61 | e4 b8 | e4 b8 61 | e4 c3 a9 | f0 9f 98 | f0 9f 98 61 | f0 9f 61 | f0 61
    80 | bf bf | 61 80 61 | c3 a9 80 | c0 80 | c1 bf | c0 61 | c0 | e0 80 80 | e0 80 61 | e0 80 | e0 9f bf | ed a0 80
    ed a0 61 | ed bf bf | ed a0 80 ed b0 80 | f0 80 80 80 | f0 80 61 | f0 8f bf bf | f4 90 80 80 | f4 90 61 | f4 90
    f5 80 80 80 | f5 61 | f7 bf bf bf | f8 88 80 80 80 | fe 61 | ff ff | ff 61 | f0 9f 98 80 | e4 b8 ad e6 96
    f0 9f c3 a9 | 20 | 20 20 | 20 61 | 20 20 61 | 61 20 | 20 c3 a9 | 20 ff | ff 20 61
"""
_BROKEN_ROWS: Final = tuple(bytes.fromhex(row) for row in re.split(r"[|\n]", _BROKEN_BYTES) if row.strip())
_TEXTS: Final = (
    " a , b . c ? d ! it 's don 't we 're ' x we 'll",
    "##ing ## # ##a </w> <0x41> <0xE4> ▁x ▁ ▁▁ @@ x@@ y <unk> [UNK]",
    "  two  spaces, a tab\tand\n\n lines \r\n end ",
    "x\n",
    "family 👩‍👩‍👧‍👦 flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿 e\u0301 o\u0308\u0323",
    "漢字かな交じり文、全角。 नमस्ते क्षत्रिय שלום مرحبا",
    "def f(x):\n        return {'a': [x ** 2, 'b']}  # 3.14159",
)


# --- how a vocabulary is written ---------------------------------------------------------------------------------


@frozen
class Reading:
    """From an entry of the vocabulary to bytes, and from a byte to the entries that it may be."""

    bytes_of: Callable[[bytes], bytes]
    entries: Callable[[int], Sequence[bytes]]


def _byte_characters() -> dict[str, int]:
    """GPT-2's: bytes that print are themselves, the others characters from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + n): byte for n, byte in enumerate(others)}


_OF_CHARACTER: Final = _byte_characters()
_TO_CHARACTER: Final = {byte: character.encode() for character, byte in _OF_CHARACTER.items()}
_BYTE_TOKEN: Final = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


def _from_characters(entry: bytes) -> bytes:
    try:
        return bytes(_OF_CHARACTER[character] for character in entry.decode())
    except (UnicodeDecodeError, KeyError):
        return entry


def _from_pieces(entry: bytes) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(entry)
    return bytes.fromhex(byte[1].decode()) if byte else entry.replace("▁".encode(), b" ")


#: SentencePiece's; also of tokens that are words.
_PIECES: Final = Reading(_from_pieces, lambda byte: [b"<0x%02X>" % byte, bytes([byte]).replace(b" ", "▁".encode())])
READINGS: Final = (
    Reading(lambda entry: entry, lambda byte: [bytes([byte])]),
    _PIECES,
    Reading(_from_characters, lambda byte: [_TO_CHARACTER[byte]]),
)


@final
class Vocabulary:
    """Entries by id, in a fraction of the memory that as many objects would take: 3 MB for 250,000."""

    def __init__(self, ids: Mapping[bytes, int]) -> None:
        entries = [b""] * (max(ids.values(), default=-1) + 1)
        for entry, i in ids.items():
            entries[i] = entry
        self._all = b"".join(entries)
        self._ends = array("I", accumulate(map(len, entries), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> bytes:
        return self._all[self._ends[i] : self._ends[i + 1]]


# --- the lexicon -------------------------------------------------------------------------------------------------


@final
class Lexicon:
    """What ids are in bytes. Safe to use from many threads: what two learn at once is the same."""

    def __init__(
        self, decode: Decode, vocabulary: Vocabulary, reading: Reading, rules: Rules, single: Mapping[int, int]
    ) -> None:
        self._decode = decode
        self._vocabulary = vocabulary
        self._reading = reading
        self._rules = rules
        self._single = single
        #: What the detokenizer makes of any sequence of bytes was seen.
        self.complete = _complete(single)
        self._anchor = next((byte for byte in _ANCHORS if byte in single), None)
        self._known: dict[int, bytes] = {}
        self._doubted: set[int] = set()

    def reader(self) -> Utf8:
        return Utf8(self._rules)

    def bytes_of(self, token_ids: Sequence[int]) -> bytes | None:
        """Joined; their text is what a `reader` makes of it. None: one of them is doubted."""
        known = self._known
        try:
            return b"".join([known[i] for i in token_ids])
        except KeyError:
            return self._learn(token_ids)

    def _learn(self, token_ids: Sequence[int]) -> bytes | None:
        new = list({i for i in token_ids if i not in self._known})
        if self._anchor is None or not all(0 <= i < len(self._vocabulary) for i in new):
            return None
        for at in range(0, len(new), _AT_ONCE):
            self._show(new[at : at + _AT_ONCE])
        return None if self._doubted.intersection(new) else b"".join([self._known[i] for i in token_ids])

    def _show(self, ids: Sequence[int]) -> None:
        """All in one row: mostly it reads as it should. If not, the half of it does that has no special token."""
        anchor = bytes([self._anchor or 0])
        row, data = [self._single[anchor[0]]], anchor
        for i in ids:
            place = self._place(self._entry(i))
            if place is None or anchor in self._entry(i) or not self._entry(i):
                break
            row += [*place[0], i, *place[1], row[0]]
            data += self._bytes(place[0]) + self._entry(i) + self._bytes(place[1]) + anchor
        else:
            if self._decode(row) == self._rules.text(data):
                self._known.update((i, self._entry(i)) for i in ids)
                return
        if len(ids) == 1:
            self._settle(ids[0])
            return
        self._show(ids[: len(ids) // 2])
        self._show(ids[len(ids) // 2 :])

    def _settle(self, i: int) -> None:
        """Alone. It is what the vocabulary says, or nothing (a skipped token), or what can be seen of it whole."""
        entry, anchor = self._entry(i), self._single[self._anchor or 0]
        found = None
        if (place := self._place(entry)) is not None:
            before, after = ([anchor, *place[0]], [*place[1], anchor])
            seen = self._decode([*before, i, *after])
            around = self._bytes(before), self._bytes(after)
            if entry and seen == self._rules.text(around[0] + entry + around[1]):
                found = entry
            elif self._would_show(entry) and seen == self._rules.text(around[0] + around[1]):
                found = b""
            elif self.complete and self._rules.validates != "ignore" and self._rules.errors != "ignore":
                found = self._seen_whole(i)
        if found is None:
            self._doubted.add(i)
        else:
            self._known[i] = found

    def _would_show(self, entry: bytes) -> bool:
        """If it were not skipped: it is characters, and surely no other way to write bytes that are none."""
        written = _BYTE_TOKEN.fullmatch(entry) is not None or not entry.isascii()
        return bool(entry) and _valid(entry) and (self.complete or not written)

    def _seen_whole(self, i: int) -> bytes | None:
        """Where nothing vanishes, text without U+FFFD between two characters holds all bytes of a token."""
        assert self._anchor is not None
        anchor, character = self._single[self._anchor], chr(self._anchor)
        seen = self._decode([anchor, i, anchor])
        whole = len(seen) > 1 and seen[0] == seen[-1] == character and "\ufffd" not in seen
        return seen[1:-1].encode() if whole else None

    def _entry(self, i: int) -> bytes:
        return self._reading.bytes_of(self._vocabulary[i])

    def _place(self, entry: bytes) -> tuple[list[int], list[int]] | None:
        """Ids before and after which all of its bytes show. None: there are none, or nobody knows what would show."""
        if _valid(entry):
            return [], []
        single = self._single
        if not self.complete or not all(byte in single for byte in entry):
            return None
        around = ((opening, closing) for opening in _OPENING for closing in _CLOSING)
        showing = (pair for pair in around if _valid(pair[0] + entry + pair[1]) and single.keys() >= {*b"".join(pair)})
        opening, closing = next(showing, _BROKEN)
        return [single[byte] for byte in opening], [single[byte] for byte in closing]

    def _bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self._entry, ids))


def _valid(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- the trial ---------------------------------------------------------------------------------------------------


def lexicon_of(decode: Decode, encode: Encode, vocabulary: Mapping[bytes, int]) -> Lexicon | None:
    """One whose way of reading the vocabulary, and rules, give what the detokenizer gives in every trial. None: no way
    does. Some 150 calls of the detokenizer, together some 0.1 s.
    """
    entries = Vocabulary(vocabulary)
    texts = [list(encode(text)) for text in _TEXTS]
    expected = [(row, decode(row)) for row in (*texts, *_random_rows(len(entries))) if row]
    for reading, single, rules in _ways(decode, vocabulary):
        lexicon = Lexicon(decode, entries, reading, rules, single)
        if _stands(lexicon, rules, expected):
            lexicon.bytes_of(range(min(len(entries), _MOST_USED)))
            return lexicon
    return None


def _ways(decode: Decode, vocabulary: Mapping[bytes, int]) -> Iterator[tuple[Reading, dict[int, int], Rules]]:
    """That would explain what becomes of single bytes. Without tokens for them nothing but whole characters is ever
    joined, which all rules read alike, but for the beginning.
    """
    read = [(reading, _single_bytes(reading, vocabulary)) for reading in READINGS]
    complete = [(reading, single) for reading, single in read if _complete(single)]
    for reading, single in complete:
        yield from ((reading, single, rules) for rules in _matching(decode, single))
    if not complete:
        yield from ((_PIECES, _single_bytes(_PIECES, vocabulary), Rules(strips=strips)) for strips in (False, True))


def _complete(single: Mapping[int, int]) -> bool:
    return single.keys() >= _NEEDED


def _single_bytes(reading: Reading, vocabulary: Mapping[bytes, int]) -> dict[int, int]:
    """From a byte to the id of a token that is nothing but it."""
    spelled = ((byte, entry) for byte in range(256) for entry in reversed(reading.entries(byte)))
    return {byte: vocabulary[entry] for byte, entry in spelled if entry in vocabulary}


def _matching(decode: Decode, single: Mapping[int, int]) -> Iterator[Rules]:
    rng = random.Random(0)
    wild = (
        bytes(rng.choice(b"a \x80\x90\xa0\xbf\xc0\xc3\xe0\xe4\xed\xf0\xf4\xf5\xff") for _ in range(40))
        for _ in range(8)
    )
    rows = [row for row in (*_BROKEN_ROWS, *wild) if all(byte in single for byte in row)]
    expected = [(row, decode([single[byte] for byte in row])) for row in rows]
    return (rules for rules in RULES if all(rules.text(row) == text for row, text in expected))


def _random_rows(size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(size) for _ in range(16)] for _ in range(8)] if size else []


def _stands(lexicon: Lexicon, rules: Rules, expected: Sequence[tuple[Sequence[int], str]]) -> bool:
    """All that is not doubted reads right, and that is most of it."""
    doubted = 0
    for row, text in expected:
        data = lexicon.bytes_of(row)
        doubted += data is None
        if 2 * doubted > len(expected) or (data is not None and rules.text(data) != text):
            return False
    return True
