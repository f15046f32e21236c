"""Random scripts, the same on both engines: BOUNDEDGEN_CONFORMANCE (12) of each kind, many more in `nox -s deep`."""

import os
from collections.abc import Iterator

import pytest
from conformance import cases
from conformance.lanes import RealLane, compare, simulate
from conformance.random_scripts import scripts
from conformance.scripts import Admit, Script, Stop
from genai.raw import laboratory
from hypothesis import HealthCheck, example, given, settings

from boundedgen._core._events import PoolFacts
from boundedgen.testing._sim_model import SimModel

EXAMPLES = int(os.environ.get("BOUNDEDGEN_CONFORMANCE", "12"))
ENGINES = {
    "plain": (cases.ROOM, True),
    "plain, cache full": (cases.FULL, False),
    "plain, cache full, large batches": (cases.FULL_AT_ONCE, False),
    "plain, whole prompts": (cases.WHOLE, True),
    "plain, whole prompts, cache full": (cases.WHOLE_FULL, False),
    "plain, prefix caching": (cases.CACHING, True),
    "plain, release proved by counts": (cases.COUNTED, True),
    "hybrid": (cases.HYBRID, True),
    "hybrid, few slots": (cases.SLOTS, False),
}
FROM_A_SEED = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


#: The second prompt has no room in the first step, and the whole one once the first request is stopped.
STOPPED_BEFORE_ITS_TURN = Script(
    (
        (0, Admit(1, prompt=128, new=1)),
        (0, Admit(2, prompt=1, new=2, config={"do_sample": True, "num_return_sequences": 2})),
        (1, Stop(1)),
    )
)


@pytest.fixture(scope="module")
def lane() -> Iterator[RealLane]:
    with laboratory() as lab:
        yield RealLane(lab)


@pytest.mark.slow
@pytest.mark.timeout(max(120, 2 * EXAMPLES))
@pytest.mark.parametrize("kind", ENGINES)
def test_random_scripts_are_told_alike(lane: RealLane, kind: str) -> None:
    engine, several = ENGINES[kind]

    @FROM_A_SEED
    @given(scripts(several=several))
    def alike(drawn: Script) -> None:
        assert compare(lane, engine, drawn) == []

    alike()


@settings(FROM_A_SEED, max_examples=10 * EXAMPLES)
@given(scripts())
@example(STOPPED_BEFORE_ITS_TURN)
def test_no_step_computes_more_than_the_stamps_say_of_it(drawn: Script) -> None:
    """Where blocks do not run out: each request has what it needs when it enters, as with admission "reserve"."""
    slower_by_the_token = SimModel(
        pools=(PoolFacts("kv", 1000, 32),), max_num_batched_tokens=64, boot_s=0.0, step_s=1.0, token_s=1e-4
    )
    for said in simulate(slower_by_the_token, drawn):
        if said["load"] is not None:
            began, ended = said["time"]
            assert round((ended - began - 1.0) / 1e-4) <= said["load"][0], said
