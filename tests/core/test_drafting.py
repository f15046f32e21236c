"""Which of the tokens that come with a step of an engine that drafts are output."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._engine._drafting import Drafted, Drafts, StopStrings

ENDS = (0, 1)
TEXT = "ab c"


def drafted(left: int = 100, most: int = 5, strings: Sequence[str] = (), shown: Sequence[int] = ()) -> Drafted:
    stops = StopStrings(text_of, strings, shown) if strings else None
    return Drafted(Drafts(), most, left, ENDS, stops)


def text_of(ids: Sequence[int]) -> str:
    return "".join(TEXT[token % len(TEXT)] for token in ids)


batches = st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=6), max_size=12)


def in_turn(one: Drafted, steps: list[list[int]]) -> tuple[list[int], str]:
    shown: list[int] = []
    for ids in steps:
        kept, why = one.cut(ids, lost=False)
        shown += ids[:kept]
        if why or shown[-1:] in ([0], [1]):  # after an end the engine shows nothing
            return shown, why
    return shown, ""


@given(batches, st.integers(1, 30))
def test_no_more_is_shown_than_was_asked_for(steps: list[list[int]], left: int) -> None:
    shown, why = in_turn(drafted(left), steps)
    whole = [token for ids in steps for token in ids]
    assert shown == whole[:left]
    assert (why == "length") == (len(whole) > left and len(shown) == left and why != "")


@given(batches, st.integers(0, 20), st.integers(0, 5), st.sampled_from([*ENDS, -1]))
def test_nothing_is_shown_beyond_an_end_or_where_there_was_no_candidate(
    steps: list[list[int]], step: int, at: int, token: int
) -> None:
    if not steps:
        return
    ids = steps[step % len(steps)]
    ids.insert(at % (len(ids) + 1), token)
    whole = [token for ids in steps for token in ids]
    shown, why = in_turn(drafted(), steps)
    first = whole.index(token)
    assert shown == whole[: first + (token in ENDS)]
    assert why == ("ignored" if token < 0 else why)


def test_what_came_with_an_ignored_request_is_no_output() -> None:
    one = drafted(left=9)
    assert one.cut([5, 6], lost=False) == (2, "")
    assert one.cut([7, 8, -1, 9], lost=True) == (0, "")
    assert (one.left, one.drafts.accepted) == (7, 0)


@pytest.mark.parametrize("sizes", [[1, 6, 6, 3], [3, 1, 1], [1]])
def test_what_was_drafted_is_counted_but_for_the_step_of_the_prompt(sizes: list[int]) -> None:
    one = drafted(left=sum(sizes))
    left = sum(sizes)
    proposed = 0
    for number, size in enumerate(sizes):
        proposed += min(5, left - 1) if number else 0
        one.cut([7] * size, lost=False)
        left -= size
    assert one.drafts.take() == (sum(size - 1 for size in sizes[1:]), proposed)
    assert one.drafts.take() == (0, 0)


# --- stop strings ----------------------------------------------------------------------------------------------------


@given(batches, st.text(TEXT, min_size=1, max_size=4), st.lists(st.integers(2, 40), max_size=8))
def test_a_stop_string_ends_it_with_the_token_that_completes_it(
    steps: list[list[int]], string: str, before: list[int]
) -> None:
    """However the tokens come, also where it begins in what was shown before."""
    if string in text_of(before):
        return
    one = drafted(strings=[string], shown=before)
    shown, why = in_turn(one, steps)
    whole = [token for ids in steps for token in ids]
    found = next((n for n in range(1, len(whole) + 1) if string in text_of([*before, *whole[:n]])), None)
    assert (why == "stop") == (found is not None)
    assert len(shown) == (len(whole) if found is None else found)


def test_a_stop_string_that_spans_steps_ends_it_in_the_last_of_them() -> None:
    one = drafted(strings=["ab c"])
    assert one.cut([7, 4, 5], lost=False) == (3, "")
    assert one.cut([6], lost=False) == (1, "")
    assert one.cut([7, 7, 7], lost=False) == (1, "stop")


def test_of_a_stop_string_and_an_end_the_first_counts() -> None:
    assert drafted(strings=["b"]).cut([0, 5, 5], lost=False) == (1, "stop"), "an end before it"
    one = drafted(strings=["b"])
    assert one.cut([4, 5, 0], lost=False) == (2, "stop"), "a string before the end"


def test_looking_for_stop_strings_does_not_cost_more_the_longer_the_text_is() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return "x" * len(ids)

    stops = StopStrings(decode, ["stop"], ())
    for _ in range(500):
        assert stops.end_in([7, 7]) is None
    assert max(lengths) < 40
