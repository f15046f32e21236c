"""The simulated engine says what the real one says on the GPU plugin too, with its blocks of 16 tokens.

On an emulated device: it says nothing about real GPU hardware, its speed or its memory.
"""

from collections.abc import Iterator

import pytest
from conformance import cases
from conformance.lanes import RealLane, compare
from conformance.scripts import Settings
from genai.raw import laboratory

#: Loading an engine takes a second or more here, so each test runs all scripts of one engine.
ENGINES = {
    "plain": (cases.ROOM, cases.ROOMY[::2]),
    "plain, cache full": (cases.FULL, cases.OVERFULL),
    "hybrid": (cases.HYBRID, cases.ROOMY[::4]),
    "hybrid, few slots": (cases.SLOTS, cases.FEW_SLOTS[1:]),
}


@pytest.fixture(scope="module")
def lane(gpu_environment: dict[str, str], gpu_properties: dict[str, str]) -> Iterator[RealLane]:
    with laboratory(gpu_environment) as lab:
        yield RealLane(lab, "GPU", gpu_properties)


@pytest.mark.parametrize("kind", ENGINES)
def test_the_simulated_engine_says_what_the_real_one_says(lane: RealLane, kind: str) -> None:
    settings, scripts = ENGINES[kind]
    plain_stops = [case for case in scripts if not any(one.stop_at for one in case.script.admissions())]
    found = {case.name: compare(lane, settings, case.script) for case in plain_stops}
    assert {name: differs for name, differs in found.items() if differs} == {}


def test_the_engine_it_is_held_to_has_the_blocks_of_a_gpu(lane: RealLane) -> None:
    facts = lane.facts(Settings(tokens=288))
    assert (facts["device"], facts["pools"]) == (
        "GPU",
        [{"name": "kv", "blocks": 18, "tokens_per_block": 16, "ahead": 0}],
    )
