"""The same script on the real loop and engine and on the simulated engine: every report of both is the same.

Real are the child's loop, the adapter, OpenVINO GenAI, wire and stamps; commands land in the round that they name.
"""

from collections.abc import Iterator

import pytest
from attrs import fields
from conformance import admitted
from conformance.cases import CASES, ROOM, Case
from conformance.lanes import RealLane, compare, model_of, simulate
from conformance.scripts import Admit, Settings, Stop, script
from conformance.traces import NOT_COMPARED, differences, record
from genai.raw import laboratory

from boundedgen._core._events import Progress

NAMED = [pytest.param(settings, case, id=f"{kind}: {case.name}") for kind, settings, cases in CASES for case in cases]


@pytest.fixture(scope="module")
def lane() -> Iterator[RealLane]:
    with laboratory() as lab:
        yield RealLane(lab)


@pytest.mark.parametrize(("settings", "case"), NAMED)
def test_the_simulated_engine_says_what_the_real_one_says(lane: RealLane, settings: Settings, case: Case) -> None:
    assert compare(lane, settings, case.script) == []


def test_an_engine_of_another_batch_or_another_cache_is_told_apart(lane: RealLane) -> None:
    busy = script((0, Admit(1, 200, 20)), (3, Admit(2, 40, 20)), (9, Stop(1)))
    facts = lane.facts(ROOM)
    (real,) = lane.run(ROOM, [busy])
    other_batch = simulate(model_of({**facts, "step_tokens": 65}, {}), busy)
    other_cache = simulate(model_of({**facts, "pools": [{**facts["pools"][0], "blocks": 199}]}, {}), busy)
    assert differences(real, simulate(model_of(facts, {}), busy)) == []
    assert differences(real, other_batch) != []
    assert differences(real, other_cache) != []


def test_each_admitted_difference_is_one(lane: RealLane) -> None:
    """Where nothing differs any more, the entry has to go."""
    left = {one.name for one in admitted.ADMITTED}
    for _, settings, cases in CASES:
        for case in cases:
            names = {one.name for one in admitted.of(settings, case.script)} & left
            if names and compare(lane, settings, case.script, admit=False):
                left -= names
    assert left == set()


def test_every_part_of_a_report_is_compared_or_said_not_to_be() -> None:
    said = record(Progress(1, 1, 0.0, 1.0, 1, 0.5, None), None)
    known = {"began": "time", "ended": "time", "singles": "outputs"}
    for field in fields(Progress):
        assert known.get(field.name, field.name) in said or field.name in NOT_COMPARED
