"""How much work a step is: as sums, for any number of requests; held against adding up each of them anew."""

from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._engine._load import Workload
from boundedgen.abc import Request

ROOM = 16


@define
class Each:
    """One request, by itself."""

    prompt: int
    sequences: int
    computed: int = 0
    produced: int = 0
    over: bool = False

    each: int = 1

    def decodes(self, room: int) -> tuple[int, int]:
        self.produced += 1
        tokens = self.each * self.sequences
        return tokens, tokens * (self.prompt + self.produced)

    def prefills(self, room: int) -> tuple[int, int]:
        tokens = min(self.prompt - self.computed, max(0, room))
        self.computed += tokens
        return tokens, tokens * self.computed


def added_up(inside: dict[int, Each]) -> tuple[int, int]:
    """One step: first those that decode, then prompts in the order of their arrival."""
    room, tokens, attention = ROOM, 0, 0
    decoding = [one for one in inside.values() if one.computed >= one.prompt]
    prompts = [one for one in inside.values() if one.computed < one.prompt]
    for one in decoding + prompts:
        taken, area = one.decodes(room) if one in decoding else one.prefills(room)
        room -= 0 if one.over else taken
        tokens, attention = tokens + taken, attention + area
    return tokens, attention


def request(stay: int, prompt: int, sequences: int) -> Request:
    return Request(stay, [1] * prompt, {"max_new_tokens": 9, "num_return_sequences": sequences}, 1e12)


events = st.one_of(
    st.tuples(st.just("enter"), st.integers(1, 40), st.integers(1, 3)),
    st.tuples(st.sampled_from(["over", "gone"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("shown"), st.integers(0, 9), st.integers(2, 4)),
)


@given(st.lists(events, max_size=60), st.sampled_from([1, 4]))
def test_the_sums_are_those_of_all_that_are_inside(script: list[tuple[str, int, int]], each: int) -> None:
    """`each`: tokens of a step that a sequence takes, its candidates included; several can be shown at once."""
    load, inside = Workload(ROOM, each), dict[int, Each]()
    for stay, (what, first, second) in enumerate(script):
        some = list(inside)[first % len(inside)] if inside else None
        if what == "enter":
            load.enter(stay, request(stay, first, second))
            inside[stay] = Each(first, second, each=each)
        elif what == "step":
            assert load.schedule() == added_up(inside)
        elif some is not None and what == "shown":
            load.shown(some, second)
            inside[some].produced += second - 1 if inside[some].computed >= inside[some].prompt else 0
        elif some is not None and what == "over":
            load.over(some)
            inside[some].over = True
        elif some is not None:
            load.gone(some)
            del inside[some]
    assert load.schedule() == added_up(inside)


def test_with_nothing_inside_a_step_is_no_work_whatever_was_inside() -> None:
    load = Workload(ROOM)
    load.enter(1, request(1, 20, 2))
    for _ in range(5):
        load.schedule()
    load.over(1)
    load.gone(1)
    load.gone(1)
    assert load.schedule() == (0, 0)


def test_what_showed_several_tokens_a_step_leaves_nothing_behind_in_the_sums() -> None:
    load = Workload(ROOM, 4)
    load.enter(1, request(1, 5, 1))
    load.enter(2, request(2, 3, 1))
    load.schedule()
    load.shown(1, 4)
    assert load.schedule() == (8, 4 * (5 + 3 + 1) + 4 * (3 + 1))
    load.gone(1)
    assert load.schedule() == (4, 4 * (3 + 2))
    load.gone(2)
    assert load.schedule() == (0, 0)
