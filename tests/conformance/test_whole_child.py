"""The real engine process, through host, link, pipes and stamps, against the simulated engine: reports are the same."""

import pytest
from attrs import asdict, evolve
from conformance import cases
from conformance.lanes import engine_spec, model_of, simulate
from conformance.scripts import Script, Settings, script
from conformance.traces import differences
from conformance.whole_child import whole_child
from genai.raw import TESTS

_APART = 300  #: instants between two scripts; each is at rest before
_TAKEN = (
    "a prompt in parts, one behind it",
    "several stops in one step",
    "the same stop twice",
    "stop and admission in one round",
    "samples",
    "the table of what is held",
)


def joined(*scripts: Script) -> Script:
    """One after another, in one process."""
    return script(
        *(
            (_APART * n + at, evolve(command, stay=100 * n + command.stay))
            for n, one in enumerate(scripts)
            for at, command in one.commands
        )
    )


@pytest.mark.parametrize(
    ("settings", "scripts"),
    [
        pytest.param(cases.ROOM, [case.script for case in cases.ROOMY if case.name in _TAKEN], id="plain"),
        pytest.param(cases.FULL, [case.script for case in cases.OVERFULL[2:5]], id="plain, cache full"),
        pytest.param(cases.HYBRID, [case.script for case in cases.ROOMY if case.name in _TAKEN[:3]], id="hybrid"),
    ],
)
def test_a_real_process_says_what_the_simulated_engine_says(
    settings: Settings, scripts: list[Script], monkeypatch: pytest.MonkeyPatch, nothing_left_behind: None
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    whole = joined(*scripts)
    with whole_child(engine_spec(settings)) as child:
        facts = asdict(child.ready())
        real = child.run(whole)
    model = model_of({**facts, "step_tokens": settings.scheduler["max_num_batched_tokens"]}, {})
    assert differences(real, simulate(model, whole), leave_out=frozenset({"time", "seconds"})) == []
    assert len({said["steps"] for said in real}) > 50
