"""Text from the bytes of tokens is what the detokenizer gives, or is not made: for every family, id and cut."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
from core.detokenizers import (
    JOINING,
    OTHER,
    Detokenizer,
    byte_level,
    in_characters,
    pieces_of,
    sentencepiece,
    streamed,
    validating,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boundedgen._lexicon import Lexicon, Vocabulary, lexicon_of
from boundedgen._text import TextStream
from boundedgen._utf8 import RULES, Rules, Utf8

HARD = [
    "family 👩‍👩‍👧‍👦 and flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿 end",
    "漢字かな交じり文、全角。",
    "नमस्ते दुनिया क्षत्रिय",
    "שלום עולם مرحبا بالعالم",
    "a real \ufffd and \ufffd\ufffd\ufffd\ufffd\ufffd more",
    "   leading and   inner   spaces   ",
    "e\u0301 o\u0308\u0323 \u202eright\u202c\0nul",
    "hello~~ the ~ world's ##ing <|im_start|>",
]
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@cache
def made(name: str) -> tuple[Detokenizer, Lexicon]:
    detokenizer = JOINING[name]()
    lexicon = lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary)
    assert lexicon is not None
    return detokenizer, lexicon


def rows_of(detokenizer: Detokenizer) -> st.SearchStrategy[list[int]]:
    """Texts, runs of any ids, special ones, single bytes that are no character."""
    size = len(detokenizer.entries)
    texts = st.one_of(st.sampled_from(HARD), st.text(max_size=8)).map(
        lambda text: detokenizer.encode(text.encode("utf-8", "replace").decode())
    )
    single = {detokenizer.each(entry): i for i, entry in enumerate(detokenizer.entries) if i not in detokenizer.skipped}
    torn = st.binary(max_size=6).map(lambda data: [single[bytes([b])] for b in data if bytes([b]) in single])
    anything = st.lists(st.integers(0, size - 1), max_size=12)
    return st.lists(st.one_of(texts, anything, torn, st.just([0, 1])), max_size=12).map(
        lambda rows: [i for row in rows for i in row]
    )


@pytest.mark.parametrize("name", JOINING)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data(), cuts=CUTS)
def test_joined_bytes_give_what_the_window_and_the_detokenizer_give(
    name: str, data: st.DataObject, cuts: list[int]
) -> None:
    detokenizer, lexicon = made(name)
    ids = data.draw(rows_of(detokenizer))
    whole = detokenizer.decode(ids)
    assert streamed(TextStream(detokenizer.decode, lexicon=lexicon), pieces_of(ids, cuts)) == whole
    assert streamed(TextStream(detokenizer.decode), pieces_of(ids, cuts)) == whole


@pytest.mark.parametrize("name", JOINING)
def test_every_id_alone_between_others_and_after_an_unfinished_character_reads_as_decoded(name: str) -> None:
    detokenizer, lexicon = made(name)
    lead = [
        i for i, entry in enumerate(detokenizer.entries) if detokenizer.each(entry) in (b"\xf0\x9f", b"\xe4", b"\xc3")
    ]
    for i in range(len(detokenizer.entries)):
        for ids in ([i], [5, i, 5], [i, i], *([first, i, 5] for first in lead)):
            stream = TextStream(detokenizer.decode, lexicon=lexicon)
            assert streamed(stream, pieces_of(ids, [1])) == detokenizer.decode(ids), ids


@pytest.mark.parametrize("name", JOINING)
def test_ids_out_of_the_vocabulary_read_as_decoded(name: str) -> None:
    detokenizer, lexicon = made(name)
    for ids in ([10**7], [-1, 4], [5, len(detokenizer.entries), 6], [2**40]):
        assert streamed(TextStream(detokenizer.decode, lexicon=lexicon), pieces_of(ids, [1])) == detokenizer.decode(ids)


@pytest.mark.parametrize("name", OTHER)
def test_a_detokenizer_that_does_more_than_join_is_found_out_by_trial(name: str) -> None:
    detokenizer = OTHER[name]()
    assert lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary) is None


def test_a_vocabulary_that_does_not_say_what_its_tokens_are_gives_no_lexicon() -> None:
    detokenizer = byte_level()
    scrambled = {entry[::-1] + b"!": i for entry, i in detokenizer.vocabulary.items()}
    assert lexicon_of(detokenizer.decode, detokenizer.encode, {}) is None
    assert lexicon_of(detokenizer.decode, detokenizer.encode, scrambled) is None


# --- doubt -------------------------------------------------------------------------------------------------------


class Moody:
    """A detokenizer in which one token reads in a way of its own beside others."""

    def __init__(self, inner: Detokenizer, odd: int) -> None:
        self.inner, self.odd = inner, odd
        self.broken = next(i for i, entry in enumerate(inner.entries) if inner.each(entry) == b"\xff")

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode([self.broken if i == self.odd else i for i in ids])


@pytest.mark.parametrize("family", [byte_level, sentencepiece])
@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data(), cuts=CUTS)
@example(data=None, cuts=[1])
def test_a_stream_that_meets_a_doubted_id_goes_on_without_losing_or_doubling_anything(
    family: Callable[[], Detokenizer], data: st.DataObject | None, cuts: list[int]
) -> None:
    inner = family()
    (odd,) = inner.encode("ing")
    moody = Moody(inner, odd)
    lexicon = lexicon_of(moody.decode, inner.encode, inner.vocabulary)
    assert lexicon is not None
    assert lexicon.bytes_of([odd]) is None
    if data is None:
        ids = [*inner.encode(" ab"), *inner.encode("漢字") * 100, *inner.encode("🙂")[:1], odd, *[0] * 40, odd]
    else:
        ids = [i for row in data.draw(st.lists(rows_of(inner), max_size=4)) for i in (*row, odd)]
    assert streamed(TextStream(moody.decode, lexicon=lexicon), pieces_of(ids, cuts)) == moody.decode(ids)


def test_where_bytes_vanish_a_token_that_shows_nothing_of_what_it_should_is_doubted() -> None:
    """It may be skipped, or hold other bytes that are no character alone."""
    detokenizer = byte_level(bytes, "ignore")
    vocabulary = detokenizer.vocabulary
    part = vocabulary[b"\xf0\x9f"]
    detokenizer.skipped.add(part)
    lexicon = lexicon_of(detokenizer.decode, detokenizer.encode, vocabulary)
    assert lexicon is not None
    assert lexicon.bytes_of([part]) is None
    assert lexicon.bytes_of([0, vocabulary[b"\xe6\xbc"], 1]) == b"\xe6\xbc"


def test_of_two_ids_with_the_same_entry_both_read_as_decoded() -> None:
    detokenizer = byte_level()
    detokenizer.entries += [b" world", b"\xe6\xbc", b"hello"]
    lexicon = lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary)
    assert lexicon is not None
    for i in range(len(detokenizer.entries)):
        ids = [i, *detokenizer.encode("漢")[1:], i]
        assert streamed(TextStream(detokenizer.decode, lexicon=lexicon), pieces_of(ids, [1])) == detokenizer.decode(ids)


def test_the_entries_of_special_tokens_do_not_show() -> None:
    _, lexicon = made("byte level, replacing")
    assert lexicon.bytes_of([0, 1, 2]) == b""


# --- what it costs -----------------------------------------------------------------------------------------------


def test_an_id_is_shown_to_the_detokenizer_once_and_many_in_one_call() -> None:
    detokenizer = byte_level()
    lexicon = lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary)
    assert lexicon is not None
    ids = [i for i in range(len(detokenizer.entries)) if b"~" not in detokenizer.entries[i]]
    before = detokenizer.calls
    stream = TextStream(detokenizer.decode, lexicon=lexicon)
    stream.feed(ids)
    assert detokenizer.calls - before < 40
    before = detokenizer.calls
    for i in ids * 20:
        stream.feed([i])
    assert detokenizer.calls == before


def test_what_is_shown_in_one_call_is_bounded() -> None:
    detokenizer = byte_level()
    detokenizer.entries += [b"word%d" % n for n in range(3000)]
    lexicon = lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary)
    assert lexicon is not None
    detokenizer.longest = 0
    assert lexicon.bytes_of(range(len(detokenizer.entries))) is not None
    assert detokenizer.longest < 1024


def test_a_trial_takes_few_calls() -> None:
    detokenizer = sentencepiece()
    assert lexicon_of(detokenizer.decode, detokenizer.encode, detokenizer.vocabulary) is not None
    assert detokenizer.calls < 300


def test_a_vocabulary_of_a_quarter_of_a_million_entries_takes_a_few_megabytes() -> None:
    entries = {b"token%d" % n: n for n in range(250_000)}
    vocabulary = Vocabulary(entries)
    assert len(vocabulary) == 250_000
    assert all(vocabulary[i] == b"token%d" % i for i in (0, 1, 249_999))
    assert len(vocabulary._all) + vocabulary._ends.itemsize * len(vocabulary._ends) < 5e6


# --- UTF-8 -------------------------------------------------------------------------------------------------------

BYTES = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.sampled_from(b"a \x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc3\xe0\xe4\xed\xef\xf0\xf1\xf4\xf5\xf7\xf8\xff"),
        max_size=40,
    ).map(bytes),
    st.sampled_from(HARD).map(str.encode),
)


@pytest.mark.parametrize("errors", ["replace", "ignore"])
@pytest.mark.parametrize("validates", ["", "replace", "ignore"])
@settings(deadline=None, derandomize=True, max_examples=200)
@given(data=BYTES, cuts=CUTS)
def test_bytes_read_as_validated_and_decoded_however_they_are_cut(
    validates: str, errors: str, data: bytes, cuts: list[int]
) -> None:
    layer = validating(validates == "replace") if validates else bytes
    expected = layer(data).decode("utf-8", errors)
    reader = Utf8(Rules(validates, errors))
    assert "".join([*(reader.feed(bytes(piece)) for piece in pieces_of(data, cuts)), reader.flush()]) == expected


@settings(deadline=None, derandomize=True)
@given(data=BYTES, cuts=CUTS)
def test_one_space_at_the_very_beginning_goes_where_it_is_stripped(data: bytes, cuts: list[int]) -> None:
    reader = Utf8(Rules(strips=True))
    text = "".join([*(reader.feed(bytes(piece)) for piece in pieces_of(data, cuts)), reader.flush()])
    assert text == data.removeprefix(b" ").decode("utf-8", "replace")


@pytest.mark.parametrize("rules", RULES)
def test_a_character_shows_with_its_last_byte_and_at_most_three_bytes_are_held_back(rules: Rules) -> None:
    data = "é漢🙂x".encode()
    reader, shown = Utf8(rules), ""
    for at, byte in enumerate(data, 1):
        shown += reader.feed(bytes([byte]))
        assert shown == data[:at].decode("utf-8", "ignore")
    reader, shown = Utf8(rules), ""
    for byte in b"\xff" * 100:
        shown += reader.feed(bytes([byte]))
    assert shown == rules.text(b"\xff" * 100)


def test_gpt2_characters_are_read_as_the_bytes_that_they_stand_for() -> None:
    assert in_characters(b" \n\xe6\xbc") == "ĠĊæ¼".encode()
