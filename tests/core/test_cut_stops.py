"""Stop strings of a generation that is continued: it ends where the same tokens would have ended without the cut."""

from collections.abc import Sequence

from attrs import frozen
from hypothesis import assume, example, given, target
from hypothesis import strategies as st

from boundedgen._engine._cut_stops import CutStops

PIECES = [b"a", b"b", b"ab", b"\n", "é".encode()[:1], "é".encode()[1:], "漢".encode()[:2], "漢".encode()[2:], b"ba\n"]
CHARACTERS = "ab\né漢"


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


@frozen
class Rule:
    """How the engine ends at stop strings, as tests/genai/test_engine_facts.py measures it."""

    window: int
    strings: tuple[str, ...]

    def end(self, ids: Sequence[int]) -> int:
        """Tokens of `ids` that it generates; all of them, if nothing ends it before."""
        lengths = range(self.window, len(ids) + 1)
        ends = (n for n in lengths if any(s in decode(ids[n - self.window : n]) for s in self.strings))
        return next(ends, len(ids))

    def reports(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """What it shows, step by step: all but the last `window`, and these with the end."""
        end = self.end(ids)
        return [ids[n : n + 1] for n in range(end - self.window)] + [ids[max(0, end - self.window) : end]]


def continued(rule: Rule, shown: Sequence[int], rest: Sequence[int]) -> list[int]:
    """What is shown in the end, when an engine was lost after `shown` and the next one generates `rest`."""
    cut_stops, ids = CutStops(decode, shown, rule.strings, rule.window), list(shown)
    for report in rule.reports(rest):
        end = cut_stops.end_in(report)
        if end is not None:
            return [*ids, *report[:end]]
        ids += report
    return ids


tokens = st.lists(st.integers(0, len(PIECES) - 1), min_size=2, max_size=30)
rules = st.builds(Rule, st.integers(1, 5), st.lists(st.text(CHARACTERS, min_size=1, max_size=4), min_size=1).map(tuple))


@given(rules, tokens)
def test_whatever_the_cut_what_comes_again_as_it_was_ends_where_it_would_have(rule: Rule, ids: list[int]) -> None:
    """The engine alone sees to that: we find nothing that it has not looked at before it showed the last token."""
    end = rule.end(ids)
    for cut in range(1, end - rule.window + 1):
        assert continued(rule, ids[:cut], ids[cut:]) == ids[:end]
        found = CutStops(decode, ids[:cut], rule.strings, rule.window).end_in(ids[cut : end - 1])
        assert found is None


@example(Rule(2, ("b\n",)), [0, 1, 4, 4], [3, 4, 4])
@example(Rule(3, ("é",)), [0, 4, 0, 0, 0], [5, 0, 0])
@given(rules, tokens, tokens)
def test_what_comes_otherwise_than_it_was_ends_where_an_engine_that_saw_all_of_it_would_have_ended_it(
    rule: Rule, ids: list[int], rest: list[int]
) -> None:
    shown = ids[: len(ids) - rule.window]
    assume(shown and rule.end(ids) == len(ids) and len(rest) >= rule.window)
    whole = [*shown, *rest]
    end = rule.end(whole)
    target(float(len(shown) < end < len(shown) + rule.window))
    assert continued(rule, shown, rest) == whole[:end]


def test_it_costs_as_many_looks_as_there_are_windows_across_the_cut() -> None:
    looks: list[Sequence[int]] = []

    def look(ids: Sequence[int]) -> str:
        looks.append(ids)
        return ""

    cut_stops = CutStops(look, [1, 2, 3, 4], ["never"], 4)
    for token in range(10, 30):
        cut_stops.end_in([token])
    assert looks == [[2, 3, 4, 10], [3, 4, 10, 11], [4, 10, 11, 12]]
