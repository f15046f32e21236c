"""Detokenizers as openvino_tokenizers builds them, in Python: the same layers, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from attrs import define, field

from boundedgen._text import TextStream

Layer = Callable[[bytes], bytes]

WORDS = [
    "hello",
    " world",
    " the",
    "the",
    "ing",
    " don",
    "'t",
    " 's",
    "\n\n",
    "漢",
    "字",
    "é",
    "👩",
    " ~",
    "~~",
    "##ing",
]
#: Parts of characters, as byte-level BPE has them: an emoji's first bytes, a lead with a space before it, and nonsense.
PARTS = [
    b"\xf0\x9f",
    b"\x99\x82",
    b" \xf0\x9f\x98",
    b"\xe6\xbc",
    b"\xa4\xbf",
    b"a\xc3",
    b"\x80b",
    b"\xff\xfe",
    b"\xc0\xaf",
    b"\xed\xa0",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<pad>"]


@define
class Detokenizer:
    """`entries` by id. `each` sees the bytes of one token, `whole` those of the text."""

    entries: list[bytes]
    skipped: set[int] = field(factory=set)
    each: Layer = bytes
    whole: Layer = bytes
    errors: str = "replace"
    calls: int = 0
    longest: int = 0

    @property
    def vocabulary(self) -> dict[bytes, int]:
        return {entry: i for i, entry in enumerate(self.entries)}

    def decode(self, token_ids: Sequence[int]) -> str:
        self.calls, self.longest = self.calls + 1, max(self.longest, len(token_ids))
        shown = (i for i in token_ids if 0 <= i < len(self.entries) and i not in self.skipped)
        return self.whole(b"".join(self.each(self.entries[i]) for i in shown)).decode("utf-8", self.errors)

    def encode(self, text: str) -> list[int]:
        """The longest token first, as good as any."""
        known = {self.each(entry): i for i, entry in enumerate(self.entries) if i not in self.skipped}
        left, ids = text.encode(), list[int]()
        while left:
            length = next((n for n in range(len(left), 0, -1) if left[:n] in known), 0)
            ids += [known[left[:length]]] if length else []
            left = left[length or 1 :]
        return ids


def validating(replaces: bool) -> Layer:
    """UTF8Validate of openvino_tokenizers 2026.4, byte by byte as in its utf8_validate.cpp."""
    mark = "\ufffd".encode() if replaces else b""

    def validate(data: bytes) -> bytes:
        out, at, left, length, point = bytearray(), 0, 0, 0, 0
        while at < len(data):
            byte = data[at]
            if not left:
                if byte < 0x80:
                    out.append(byte)
                elif byte >> 5 == 0b110:
                    length, left, point = 2, 1, (byte & 0x1F) << 6
                elif byte >> 4 == 0b1110:
                    length, left, point = 3, 2, (byte & 0xF) << 12
                elif byte >> 3 == 0b11110:
                    length, left, point = 4, 3, (byte & 0x7) << 18
                else:
                    out += mark
                at += 1
                continue
            if byte >> 6 != 0b10:
                left = 0
                out += mark
                continue
            left -= 1
            point |= (byte & 0x3F) << 6 * left
            at += 1
            if not left:
                overlong = point < (0, 0x80, 0x800, 0x10000)[length - 1]
                out += mark * length if overlong else data[at - length : at]
        return bytes(out + (mark if left else b""))

    return validate


def stripping(data: bytes) -> bytes:
    return data.removeprefix(b" ")


def after(*layers: Layer) -> Layer:
    def all_of(data: bytes) -> bytes:
        for layer in layers:
            data = layer(data)
        return data

    return all_of


REPLACING: Layer = validating(True)
STRIPPING: Layer = after(stripping, REPLACING)


def cleaning(data: bytes) -> bytes:
    return re.sub(rb" ([.?!,])| ('[ms])| (') | ('[rv]e)| (n't)", lambda m: b"".join(g or b"" for g in m.groups()), data)


def continuing(data: bytes) -> bytes:
    """WordPiece's, as it is done there: on the whole text."""
    return data.replace(b"##", b"")


def from_piece(entry: bytes) -> bytes:
    if re.fullmatch(rb"<0x[0-9A-F]{2}>", entry):
        return bytes([int(entry[3:5], 16)])
    return entry.replace("▁".encode(), b" ")


def in_characters(data: bytes) -> bytes:
    """GPT-2's way to write bytes in a vocabulary."""
    return "".join(
        chr(byte) if byte in PRINTING else chr(256 + BYTES.index(byte) - len(PRINTING)) for byte in data
    ).encode()


def from_characters(entry: bytes) -> bytes:
    return _FROM_CHARACTERS.get(entry, entry)


PRINTING = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
#: In the order of GPT-2's characters, as in the models of these tests.
BYTES = [*PRINTING, *(byte for byte in range(256) if byte not in PRINTING)]


def byte_level(whole: Layer = REPLACING, errors: str = "replace") -> Detokenizer:
    tokens = [*(s.encode() for s in SPECIAL), *(bytes([byte]) for byte in BYTES), *map(str.encode, WORDS), *PARTS]
    return Detokenizer(tokens, {0, 1, 2}, whole=whole, errors=errors)


def in_gpt2_characters() -> Detokenizer:
    plain = byte_level()
    plain.entries[3:] = map(in_characters, plain.entries[3:])
    plain.each = from_characters
    return plain


def sentencepiece(whole: Layer = STRIPPING) -> Detokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in BYTES), "▁", "▁▁", *"abcdefgxyz~|.,!?'"]
    pieces += [word.replace(" ", "▁") for word in WORDS]
    return Detokenizer([piece.encode() for piece in pieces], {0, 1, 2}, from_piece, whole)


def with_bytes_missing(whole: Layer = bytes, errors: str = "ignore") -> Detokenizer:
    """As SmolLM2's, which has no token with bytes that its training never met."""
    missing = b"\x04\xc0\xc1\xf1\xf2\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff"
    full = byte_level(whole, errors)
    full.entries = [entry for entry in full.entries if not set(missing) & set(entry)]
    return full


def words(whole: Layer = stripping) -> Detokenizer:
    """No bytes at all: a token is a word with the space before it, or a letter."""
    entries = [
        "[UNK]",
        *(" " + word for word in ("hello", "world", "naïve", "漢字", "~")),
        *"abcdefghijklmnopqrst~.,!?'#",
    ]
    return Detokenizer([entry.encode() for entry in entries], {0}, whole=whole)


_FROM_CHARACTERS = {in_characters(entry): entry for entry in byte_level().entries[3:]}

#: Whose text is their tokens' bytes, read as UTF-8 in one way or another.
JOINING: dict[str, Callable[[], Detokenizer]] = {
    "byte level, replacing": byte_level,
    "byte level, ignoring": lambda: byte_level(validating(False)),
    "byte level, not validated": lambda: byte_level(bytes),
    "byte level, not validated, ignoring (GGUF)": lambda: byte_level(bytes, "ignore"),
    "byte level, validated, then ignoring": lambda: byte_level(validating(True), "ignore"),
    "byte level, bytes missing, ignoring (SmolLM2)": with_bytes_missing,
    "byte level, bytes missing, replacing": lambda: with_bytes_missing(REPLACING, "replace"),
    "byte level in GPT-2's characters": in_gpt2_characters,
    "SentencePiece with byte fallback": sentencepiece,
    "SentencePiece that strips nothing": lambda: sentencepiece(validating(True)),
    "words": words,
}


def _spaced(data: bytes) -> bytes:
    return data[1:] if re.match(rb" [^ ]", data) else data


def _one_a_byte(data: bytes) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text).encode()


#: Whose text is more than that, so that nobody may join it himself.
OTHER: dict[str, Callable[[], Detokenizer]] = {
    "cleans up": lambda: byte_level(after(cleaning, validating(True))),
    "WordPiece": lambda: byte_level(after(validating(True), continuing)),
    "WordPiece of words": lambda: words(after(stripping, continuing)),
    "strips before what is no space": lambda: sentencepiece(after(_spaced, validating(True))),
    "another count of U+FFFD": lambda: byte_level(_one_a_byte),
    "strips the end": lambda: byte_level(after(validating(True), lambda data: data.removesuffix(b"\n"))),
    "lower case": lambda: byte_level(
        after(validating(True), lambda data: data.decode("utf-8", "replace").lower().encode())
    ),
}


def pieces_of(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`ids` in pieces whose lengths are `cuts`, over and over."""
    pieces, at, turn = list[Sequence[int]](), 0, 0
    while at < len(ids):
        step = cuts[turn % len(cuts)]
        pieces.append(ids[at : at + step])
        at, turn = at + step, turn + 1
    return pieces


def streamed(stream: TextStream, pieces: Iterable[Sequence[int]], *, stopped: bool = False) -> str:
    return "".join([*(stream.feed(piece) for piece in pieces), stream.flush(stopped=stopped)])
