"""Text in pieces: what TextStream gives joined is what decoding everything at once gives."""

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boundedgen._errors import InvalidRequest
from boundedgen._text import TextStream, check_text

SPECIAL = 256  #: an id that decodes to nothing, like a skipped special token
CLEANED = re.compile(r" ([.?!,])| ('[ms])| (') | ('[rv]e)| (n't)")
UNSETTLED = re.compile(r" (?:n'?|'[rv]?)?\Z")

Decode = Callable[[Sequence[int]], str]


def replacing(ids: Sequence[int]) -> str:
    """Ids are bytes, as in an OpenVINO IR tokenizer: what is no character becomes U+FFFD."""
    return bytes(i for i in ids if i < SPECIAL).decode("utf-8", "replace")


def ignoring(ids: Sequence[int]) -> str:
    """As in the engine's GGUF tokenizers: what is no character becomes nothing."""
    return bytes(i for i in ids if i < SPECIAL).decode("utf-8", "ignore")


def one_a_byte(ids: Sequence[int]) -> str:
    """As with byte fallback elsewhere: each byte of an unfinished character is a U+FFFD of its own."""
    text = bytes(i for i in ids if i < SPECIAL).decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text)


def stripping(ids: Sequence[int]) -> str:
    """As with SentencePiece: the space before the first word goes."""
    return replacing(ids).removeprefix(" ")


def cleaning(ids: Sequence[int]) -> str:
    """As with clean_up_tokenization_spaces."""
    return CLEANED.sub(lambda m: next(g for g in m.groups() if g is not None), replacing(ids))


DECODERS = [replacing, ignoring, one_a_byte, stripping]
HARD = [
    "family 👩‍👩‍👧‍👦 and flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿 end",
    "漢字かな交じり文、全角。",
    "नमस्ते दुनिया क्षत्रिय",
    "שלום עולם مرحبا بالعالم",
    "a real \ufffd and \ufffd\ufffd\ufffd\ufffd\ufffd more",
    "   leading and   inner   spaces   ",
    "e\u0301 o\u0308\u0323 \u202eright\u202c\0nul",
]
PIECES = st.one_of(
    st.sampled_from([text.encode() for text in HARD]),
    st.text(max_size=12).map(lambda s: s.encode("utf-8", "replace")),
    st.binary(max_size=6),
    st.sampled_from([b"\xf0\x9f", b"\x9f\x99\x82", b"\xe0\x80", b"\xed\xa0\x80", b"\xff", b"\xc3" * 5, b" "]),
)
IDS = st.lists(st.one_of(PIECES.map(list), st.just([SPECIAL])), max_size=40).map(
    lambda rows: [i for row in rows for i in row]
)


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """`ids` in pieces whose lengths are `cuts`, over and over."""
    pieces, at, turn = [], 0, 0
    while at < len(ids):
        step = cuts[turn % len(cuts)]
        pieces.append(ids[at : at + step])
        at, turn = at + step, turn + 1
    return pieces


def streamed(stream: TextStream, pieces: list[list[int]], *, stopped: bool = False) -> str:
    return "".join([*(stream.feed(piece) for piece in pieces), stream.flush(stopped=stopped)])


@pytest.mark.parametrize("decode", DECODERS)
@settings(deadline=None, derandomize=True)
@given(ids=IDS, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
@example(ids=list(b"\xff" * 3000), cuts=[7])
@example(ids=[*b"x\xf0\x9f", *[SPECIAL] * 200, *b"\x99\x82y"], cuts=[1])
def test_pieces_joined_equal_the_whole_however_they_are_cut(decode: Decode, ids: list[int], cuts: list[int]) -> None:
    assert streamed(TextStream(decode), pieces_of(ids, cuts)) == decode(ids)


@settings(deadline=None, derandomize=True)
@given(
    text=st.text(alphabet=" .,?!'nstmrve\u00e9", max_size=300),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_a_decoder_that_takes_spaces_back_loses_and_doubles_nothing(text: str, cuts: list[int]) -> None:
    ids = list(text.encode())
    assert streamed(TextStream(cleaning, unsettled=UNSETTLED), pieces_of(ids, cuts)) == cleaning(ids)


@pytest.mark.parametrize("text", HARD)
def test_each_character_is_shown_as_soon_as_its_last_byte_is_there(text: str) -> None:
    stream, shown = TextStream(replacing), ""
    data = text.replace("\ufffd", "?").encode()
    for at, byte in enumerate(data, 1):
        shown += stream.feed([byte])
        assert shown == data[:at].decode("utf-8", "ignore")


def test_of_replacement_characters_at_most_three_are_held_back() -> None:
    stream, shown = TextStream(replacing), ""
    for count in range(1, 500):
        shown += stream.feed([0xFF])
        assert len(shown) >= count - 3
    assert shown + stream.flush() == "\ufffd" * 499


@pytest.mark.parametrize("data", [b"plain words ", "漢字".encode(), b"\xff", b"\xc3", b" "])
def test_the_work_for_a_token_does_not_grow_with_the_text(data: bytes) -> None:
    lengths: list[int] = []

    def counting(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return replacing(ids)

    stream = TextStream(counting)
    for at in range(20_000):
        stream.feed([data[at % len(data)]])
    assert max(lengths) <= 1100
    assert sum(lengths) / 20_000 < 1200


# --- stop strings ------------------------------------------------------------------------------------------------


def cut_by_hand(text: str, stops: list[str], include: bool) -> str:
    """Character by character: the first moment at which some stop string is complete."""
    for end in range(len(text) + 1):
        ended = [s for s in stops if text[:end].endswith(s)]
        if ended:
            return text[:end] if include else text[: end - max(map(len, ended))]
    return text


@settings(deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abc", max_size=80),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    include=st.booleans(),
)
def test_text_is_cut_exactly_at_the_stop_string_that_is_complete_first(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    stream = TextStream(replacing, stop_strings=stops, include_stop=include)
    assert streamed(stream, pieces_of(list(text.encode()), cuts)) == cut_by_hand(text, stops, include)
    assert (stream.matched is not None) == any(s in text for s in stops)


def test_nothing_of_a_stop_string_shows_while_it_is_still_growing() -> None:
    stream = TextStream(replacing, stop_strings=["</end>"])
    shown = [stream.feed([byte]) for byte in b"ok</en</end>tail"]
    assert "".join(shown[:6]) == "ok"
    assert "".join(shown) == "ok</en"
    assert stream.flush() == ""


@pytest.mark.parametrize(
    ("left_by_engine", "include", "shown"),
    [(" a young", False, " a yo"), (" a young", True, " a young "), (" a", False, " a"), (" a", True, " aung ")],
)
def test_the_rest_that_the_engine_leaves_of_a_stop_string_is_taken_off_or_completed(
    left_by_engine: str, include: bool, shown: str
) -> None:
    stream = TextStream(replacing, stop_strings=["ung "], include_stop=include)
    assert streamed(stream, [list(left_by_engine.encode())], stopped=True) == shown


def test_the_same_text_stays_whole_when_the_end_was_no_stop_string() -> None:
    stream = TextStream(replacing, stop_strings=["ung "])
    assert streamed(stream, [list(b" a young")], stopped=False) == " a young"


# --- text at the door --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff", "\ude00\ud83d"])
def test_a_lone_surrogate_is_refused_by_name_without_the_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt holds a lone surrogate \(U\+D") as caught:
        check_text("prompt", text)
    assert "fine" not in str(caught.value)
