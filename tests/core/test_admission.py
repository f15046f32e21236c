"""What is reserved: exact, all or nothing, never more than there is."""

import pytest
from attrs import evolve
from core.governed import facts
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._core._admission import Capacity, Ledger, blocks_needed
from boundedgen._core._events import PoolFacts

LA = PoolFacts("linear_attention", 4, None)
CACHED = PoolFacts("linear_attention", 6, 8)


@pytest.mark.parametrize(
    ("per_block", "tokens", "sequences", "blocks"),
    [
        (32, 1, 1, 1),
        (32, 32, 1, 1),
        (32, 33, 1, 2),
        (32, 33, 3, 6),
        (1, 7, 2, 14),
        (None, 10_000, 1, 1),
        (None, 5, 4, 4),
    ],
)
def test_blocks_are_counted_for_each_sequence_and_rounded_up(
    per_block: int | None, tokens: int, sequences: int, blocks: int
) -> None:
    assert blocks_needed(per_block, tokens, sequences) == blocks


def test_the_last_token_needs_no_room_of_its_own() -> None:
    capacity = Capacity.of(facts(PoolFacts("kv", 3, 4)), None)  # two blocks of four beside the probe's
    assert capacity.needs(5, 4, 1) == (2,)
    assert not capacity.lacking(capacity.needs(5, 4, 1))
    assert capacity.lacking(capacity.needs(5, 5, 1)) == {"kv": (3, 2)}


def test_what_a_kind_needs_ahead_is_in_every_reservation() -> None:
    """Tokens in a pool that is counted by them, blocks in one that is counted by sequences."""
    capacity = Capacity.of(facts(PoolFacts("kv", 5, 4, 3), PoolFacts("linear_attention", 15, None, 6)), None)
    assert capacity.needs(5, 5, 1) == (3, 7)  # 9 + 3 tokens in blocks of four; one block and six more
    assert capacity.needs(5, 6, 1) == (4, 7)
    assert capacity.lacking(capacity.needs(5, 6, 3)) == {"kv": (12, 4), "linear_attention": (21, 14)}


def test_the_probe_s_blocks_belong_to_nobody_else() -> None:
    capacity = Capacity.of(facts(PoolFacts("kv", 9, 4), LA), None)
    assert [pool.blocks for pool in capacity.pools] == [8, 3]
    without = Capacity.of(evolve(facts(PoolFacts("kv", 9, 4), LA), probe_blocks={"kv": 1}), None)
    assert [pool.blocks for pool in without.pools] == [8, LA.blocks], "nothing could be set aside there"


def test_the_smaller_of_both_numbers_of_running_sequences_counts() -> None:
    assert Capacity.of(facts(running_max=2), None).running_max == 2
    assert Capacity.of(facts(running_max=2), 5).running_max == 2
    assert Capacity.of(facts(running_max=2), 1).running_max == 1


def test_a_reservation_that_one_pool_cannot_take_takes_nothing_of_the_others() -> None:
    ledger = Ledger()
    ledger.open(Capacity.of(facts(PoolFacts("kv", 9, 4), PoolFacts("linear_attention", 2, None), running_max=9), None))
    ledger.reserve((1, 1))
    assert not ledger.fits((1, 1))
    with pytest.raises(AssertionError):
        ledger.reserve((1, 1))
    assert (ledger.reserved, ledger.held) == ([1, 1], 1)


def test_nothing_fits_without_an_engine() -> None:
    assert not Ledger().fits(())


def test_a_new_incarnation_is_not_opened_on_top_of_what_is_held() -> None:
    ledger, capacity = Ledger(), Capacity.of(facts(), None)
    ledger.open(capacity)
    ledger.reserve((1,))
    with pytest.raises(AssertionError):
        ledger.open(capacity)


def test_giving_back_what_was_never_reserved_is_noticed() -> None:
    ledger = Ledger()
    ledger.open(Capacity.of(facts(), None))
    with pytest.raises(AssertionError):
        ledger.give_back((1,))


requests = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 3))


@given(st.lists(st.none() | requests, max_size=60), st.sampled_from([LA, CACHED]), st.integers(1, 5))
def test_the_ledger_is_never_below_nothing_nor_above_all(
    script: list[tuple[int, int, int] | None], second: PoolFacts, running_max: int
) -> None:
    capacity = Capacity.of(facts(PoolFacts("kv", 21, 4), second, running_max=running_max), None)
    ledger = Ledger()
    ledger.open(capacity)
    inside: list[tuple[int, ...]] = []
    for request in script:
        if request is None and inside:
            ledger.give_back(inside.pop(0))
        elif request is not None:
            needs = capacity.needs(*request)
            totals = [sum(column) for column in zip(needs, *inside, strict=True)]
            room = len(inside) < running_max and all(t <= p.blocks for t, p in zip(totals, capacity.pools, strict=True))
            assert ledger.fits(needs) is room
            if room:
                ledger.reserve(needs)
                inside.append(needs)
        assert ledger.held == len(inside)
        assert ledger.reserved == [sum(column) for column in zip((0, 0), *inside, strict=True)]
    for needs in inside:
        ledger.give_back(needs)
    assert (ledger.held, ledger.reserved) == (0, [0, 0])
